"""``ReplicaPool``: sessions for reading on replicas that have applied everything that the writer
(the server that takes writes) has committed: time to catch up (``CATCH_UP_S``), and pause after a
failure (``REST_S``). If no replica has caught up, the writer is read."""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from countersink.database.errors import (
    Conflict,
    Misconfigured,
    ReadInterrupted,
    Refused,
    SchemaMismatch,
    Unavailable,
    UnknownZone,
)
from countersink.database.migrate import identity
from countersink.database.session import Connect, Session
from countersink.database.sessions import Pool, Ready
from countersink.database.url import Settings

CATCH_UP_S: Final = 1.0
"""Seconds that a replica has to catch up with the writer."""
REST_S: Final = 5.0
"""Seconds for which a replica that lags or does not answer is not asked again."""
LONGEST_REST_S: Final = 60.0
"""Longest such pause: it doubles while the replica goes on not answering."""
_ANSWER_S: Final = 2.0
"""Seconds, beyond the time to catch up, until a silent replica counts as unavailable."""

LOGGER: Final = logging.getLogger("countersink.database")
Result = TypeVar("Result")
_Position = tuple[str, str]
"""The writer's committed transactions: its GTIDs (empty: it has none, or its numbers mean other
transactions on other servers), and the UUID of its Galera cluster (empty: it is in none)."""
Open = Callable[[Settings], Session]
"""Opens a session on one host; raises StoreError."""


class _Behind(Exception):
    """The replica has not applied everything; the message is for people."""


class ReplicaPool(Pool):
    """A pool whose reads run on replicas and see the same as on the writer.

    Before each read the writer is asked for its GTIDs; a replica that has not applied these within
    :data:`CATCH_UP_S` is not asked again for a while. A node of the writer's own Galera cluster
    waits for the cluster's commits instead. Without GTIDs all reads go to the writer.

    Args:
        writer: opens a session on the writer.
        settings: one host of a replica or several, in the order in which they are asked.
        replica: opens a session on a replica.
    """

    def __init__(self, writer: Connect, settings: Settings, replica: Open) -> None:
        super().__init__(writer)
        self._replicas = [_Replica(host, replica) for host in settings.each_host()]
        self._identity = ""

    def read(self, work: Callable[[Session], Result]) -> Result:
        """Run ``work`` in a snapshot that has everything committed before the call.

        ``work`` only reads; it may be run again, on another server.

        Raises:
            Misconfigured: a replica has other tables than the writer.
            StoreError: a query on the writer failed.
        """
        try:
            return self._on_replica(lambda replica, ready: replica.pool.read_after(ready, work))
        except _Behind:
            return super().read(work)

    def open_session(self, replica: Open) -> Session | None:
        """A new session, for one long read, on a replica that has caught up with the writer; None:
        there is none. ``replica`` opens it.

        Raises:
            StoreError: as :meth:`read`.
        """

        def opened(found: _Replica, ready: Ready) -> Session:
            session = replica(found.host)
            try:
                ready(session)
            except BaseException:
                session.close()
                raise
            return session

        try:
            return self._on_replica(opened)
        except _Behind:
            return None

    def close(self) -> None:
        """Close the kept sessions. The pool can be used again."""
        super().close()
        for replica in self._replicas:
            replica.pool.close()

    def _on_replica(self, work: Callable[["_Replica", Ready], Result]) -> Result:
        """The result of ``work`` for a replica, and for the function that lets a session on it
        catch up.

        Raises:
            _Behind: no replica has caught up.
            Misconfigured, StoreError: as :meth:`read`.
        """
        position: _Position | None = None
        for replica in self._replicas:
            if not replica.take_turn():
                continue
            if position is None:
                position = super().read(_committed)
                self._identity = self._identity or super().read(identity)
            ready = partial(_catch_up, host=replica.host, position=position, tables=self._identity)
            try:
                found = work(replica, ready)
            except UnknownZone:
                raise  # a fault of this machine
            except (_Behind, *_UNUSABLE) as error:
                replica.rest(error)
            else:
                replica.note_success()
                return found
        raise _Behind("there is none")


_UNUSABLE: Final = (Unavailable, Refused, SchemaMismatch)
"""Errors of a replica after which another server is asked."""


class _Replica:
    """A replica, its sessions, and its pauses."""

    def __init__(self, host: Settings, opened: Open) -> None:
        self.host = host
        self.pool = Pool(lambda: opened(host))
        self._lock = threading.Lock()
        self._rests_until = 0.0
        self._rest_s = 0.0
        self._logged = ""

    def take_turn(self) -> bool:
        """Whether the caller may ask it now. After a failure one reader asks it, while all others
        ask other servers for twice as long as before, unless it answers.
        """
        with self._lock:
            now = time.monotonic()
            if now < self._rests_until:
                return False
            self._rest_s = min(LONGEST_REST_S, 2 * self._rest_s)
            self._rests_until = now + self._rest_s
            return True

    def note_success(self) -> None:
        """End the pauses: the replica has answered a read."""
        with self._lock:
            self._rest_s = self._rests_until = 0.0
            self._logged = ""

    def rest(self, reason: BaseException) -> None:
        """Begin a pause, and log its reason where that is new."""
        with self._lock:
            # A lagging replica catches up soon, but each try of a silent one takes seconds.
            if not self._rest_s or not isinstance(reason, Unavailable):
                self._rest_s = REST_S
            self._rests_until = time.monotonic() + self._rest_s
            new, self._logged = self._logged != str(reason), str(reason)
        if new:
            LOGGER.warning("the replica %s is not read from: %s", self.host.where, reason)


def _committed(session: Session) -> _Position:
    if session.cluster:
        gtids, same, all_logged = session.query(
            "SELECT @@GLOBAL.gtid_binlog_pos, @@GLOBAL.wsrep_gtid_mode, @@GLOBAL.log_slave_updates"
        )[0]
        # Without these options each node gives the cluster's transactions its own numbers.
        return str(gtids) if same and all_logged else "", session.cluster
    if session.dialect.name == "mariadb":
        return str(session.query("SELECT @@GLOBAL.gtid_binlog_pos")[0][0]), ""
    mode, executed = session.query("SELECT @@GLOBAL.gtid_mode, @@GLOBAL.gtid_executed")[0]
    # With gtid_mode off the set does not grow with the commits.
    return str(executed).replace("\n", "") if mode == "ON" else "", ""


def _catch_up(session: Session, host: Settings, position: _Position, tables: str) -> None:
    """Wait until a new snapshot has everything that the writer has committed.

    Raises:
        _Behind: it had not, in time.
        Misconfigured: the replica's tables are not ``tables``, the identity of the writer's.
        StoreError: as any query.
    """
    with session.reply_timeout(CATCH_UP_S + _ANSWER_S):
        gtids, cluster = position
        same_cluster = cluster and session.cluster == cluster
        if same_cluster:
            session.execute("SET SESSION wsrep_sync_wait = 1")
        try:
            found = identity(session)
        except (Unavailable, Conflict) as error:
            if not same_cluster or isinstance(error, ReadInterrupted):
                raise
            raise _Behind(f"the Galera node does not keep up: {error}") from error
        if found != tables:
            raise Misconfigured(
                f"COUNTERSINK_MYSQL_READ_URL leads to tables of another installation on"
                f" {host.where} than COUNTERSINK_MYSQL_URL: name replicas of the same database"
            )
        if same_cluster:
            return
        if not gtids:
            raise _Behind(
                "the server that takes writes has no GTIDs that replicas share (set log_bin and"
                " gtid_mode; on Galera wsrep_gtid_mode and log_slave_updates)"
            )
        mariadb = session.dialect.name == "mariadb"
        wait = "MASTER_GTID_WAIT" if mariadb else "WAIT_FOR_EXECUTED_GTID_SET"
        late = session.query(f"SELECT {wait}(%s, %s)", (gtids, CATCH_UP_S))[0][0]
        if late is None or int(late) != 0:
            raise _Behind(f"it lags more than {CATCH_UP_S:g} s behind the server that takes writes")
        if mariadb:
            _check_origin(session, gtids)


def _check_origin(session: Session, position: str) -> None:
    """Check the server ids of the last transactions: MASTER_GTID_WAIT compares numbers only, which
    another server may have used as well.

    Raises:
        _Behind: in a GTID domain the last applied transaction is of another server than the
            writer's last one.
    """
    applied = _origins(str(session.query("SELECT @@GLOBAL.gtid_slave_pos")[0][0]))
    for domain, server in _origins(position).items():
        if applied.get(domain, server) != server:
            raise _Behind(
                f"its last transaction in GTID domain {domain} is of server {applied[domain]}, but"
                f" that of the server that takes writes is of server {server}"
            )


def _origins(position: str) -> dict[str, str]:
    """GTID domain → server id of its last transaction, for a MariaDB position (``0-1-9,1-2-3``)."""
    parts = (each.strip().split("-") for each in position.split(",") if each.strip())
    return {domain: server for domain, server, _ in parts}

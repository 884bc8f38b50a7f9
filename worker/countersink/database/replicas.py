"""``ReplicaPool``, sessions for reading on replicas that have all that was committed where writes
go: how long a replica is waited for (``CATCH_UP_S``), and for how long it is left alone after that
(``REST_S``). If none has it, the read goes where the writes go."""

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
"""Seconds that a replica has to apply what it has not applied yet."""
REST_S: Final = 5.0
"""For so many seconds a replica that lags or does not answer is not asked again."""
LONGEST_REST_S: Final = 60.0
"""One that goes on not answering is asked more and more seldom, but as often as this."""
_ANSWER_S: Final = 2.0
"""Seconds, beyond the wait, until a silent replica counts as gone."""

LOGGER: Final = logging.getLogger("countersink.database")
Result = TypeVar("Result")
_Position = tuple[str, str]
"""What the writer has committed: its GTIDs (empty: it keeps none, or none that other servers know
by the same numbers), and the UUID of its Galera cluster (empty: it is in none)."""
Open = Callable[[Settings], Session]
"""Opens a session on one host; raises StoreError."""


class _Behind(Exception):
    """The replica lacks something; the message is for people."""


class ReplicaPool(Pool):
    """A pool whose reads are answered by replicas, as well as the server that takes writes would
    have answered: so what is said of freshness holds, whoever answers.

    Before each read the writer is asked what it has committed (its GTIDs), and a replica that has
    not applied this within :data:`CATCH_UP_S` is left alone for a while. A node of the writer's own
    Galera cluster is asked to wait for that instead. Without GTIDs all reads go to the writer.

    Args:
        writer: opens a session where writes go.
        settings: of the replicas: one host or several, in the order in which they are asked.
        replica: opens a session on one of them.
    """

    def __init__(self, writer: Connect, settings: Settings, replica: Open) -> None:
        super().__init__(writer)
        self._replicas = [_Replica(host, replica) for host in settings.each_host()]
        self._identity = ""

    def read(self, work: Callable[[Session], Result]) -> Result:
        """Run ``work`` in one snapshot of a database that has all that was committed before.

        ``work`` may be run again, elsewhere. It only reads.

        Raises:
            Misconfigured: a replica has other tables than the writer.
            StoreError: the writer did not do its part.
        """
        try:
            return self._on_replica(lambda replica, ready: replica.pool.read_after(ready, work))
        except _Behind:
            return super().read(work)

    def opened(self, replica: Open) -> Session | None:
        """A session of its own, for one long read, on a replica that has all that was committed;
        None: there is none. ``replica`` opens it.

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
        """What ``work`` returns, given a replica, and what makes a session on it ready.

        Raises:
            _Behind: none of them has all that was committed.
            Misconfigured, StoreError: as :meth:`read`.
        """
        position: _Position | None = None
        for replica in self._replicas:
            if not replica.take_turn():
                continue
            if position is None:
                position = super().read(_committed)
                self._identity = self._identity or super().read(identity)
            ready = partial(_catch_up, host=replica.host, position=position, own=self._identity)
            try:
                found = work(replica, ready)
            except UnknownZone:
                raise  # that is this machine's affair
            except (_Behind, *_LEFT) as error:
                replica.rest(error)
            else:
                replica.answered()
                return found
        raise _Behind("there is none")


_LEFT: Final = (Unavailable, Refused, SchemaMismatch)
"""Errors for which the read goes elsewhere: the replica is away, or not what it should be."""


class _Replica:
    """One of the replicas, with its sessions."""

    def __init__(self, host: Settings, opened: Open) -> None:
        self.host = host
        self.pool = Pool(lambda: opened(host))
        self._lock = threading.Lock()
        self._rests_until = 0.0
        self._rest_s = 0.0
        self._said = ""

    def take_turn(self) -> bool:
        """Whether the caller is to ask it now. One that failed the last time is asked by one reader
        for all, who go elsewhere for twice as long as before, unless it answers.
        """
        with self._lock:
            now = time.monotonic()
            if now < self._rests_until:
                return False
            self._rest_s = min(LONGEST_REST_S, 2 * self._rest_s)
            self._rests_until = now + self._rest_s
            return True

    def answered(self) -> None:
        """It has all that it should have."""
        with self._lock:
            self._rest_s = self._rests_until = 0.0
            self._said = ""

    def rest(self, reason: BaseException) -> None:
        """Leave it alone for a while, and say so if that is new."""
        with self._lock:
            # One that lags is back soon; to find out that one is silent takes seconds each time.
            if not self._rest_s or not isinstance(reason, Unavailable):
                self._rest_s = REST_S
            self._rests_until = time.monotonic() + self._rest_s
            new, self._said = self._said != str(reason), str(reason)
        if new:
            LOGGER.warning("the replica %s is not read from: %s", self.host.where, reason)


def _committed(session: Session) -> _Position:
    if session.cluster:
        gtids, same, all_logged = session.query(
            "SELECT @@GLOBAL.gtid_binlog_pos, @@GLOBAL.wsrep_gtid_mode, @@GLOBAL.log_slave_updates"
        )[0]
        # Else each node numbers the transactions of the cluster by itself.
        return str(gtids) if same and all_logged else "", session.cluster
    if session.dialect.name == "mariadb":
        return str(session.query("SELECT @@GLOBAL.gtid_binlog_pos")[0][0]), ""
    mode, executed = session.query("SELECT @@GLOBAL.gtid_mode, @@GLOBAL.gtid_executed")[0]
    # With the mode off the set stands still, while commits go on.
    return str(executed).replace("\n", "") if mode == "ON" else "", ""


def _catch_up(session: Session, host: Settings, position: _Position, own: str) -> None:
    """Wait until all that the writer had committed is visible in a snapshot that begins now.

    Raises:
        _Behind: it is not, in time.
        Misconfigured: these are not the writer's tables.
        StoreError: as any query.
    """
    with session.patience(CATCH_UP_S + _ANSWER_S):
        gtids, cluster = position
        same_cluster = cluster and session.cluster == cluster
        if same_cluster:
            session.execute("SET SESSION wsrep_sync_wait = 1")
        try:
            found = identity(session)
        except (Unavailable, Conflict) as error:
            if not same_cluster or isinstance(error, ReadInterrupted):
                raise
            raise _Behind(f"the node of Galera does not keep up: {error}") from error
        if found != own:
            raise Misconfigured(
                f"COUNTERSINK_MYSQL_READ_URL leads to tables of another installation on"
                f" {host.where} than COUNTERSINK_MYSQL_URL: name replicas of that database"
            )
        if same_cluster:
            return
        if not gtids:
            raise _Behind(
                "the server that takes writes keeps no GTIDs that replicas know (log_bin,"
                " gtid_mode; of Galera wsrep_gtid_mode and log_slave_updates)"
            )
        mariadb = session.dialect.name == "mariadb"
        wait = "MASTER_GTID_WAIT" if mariadb else "WAIT_FOR_EXECUTED_GTID_SET"
        late = session.query(f"SELECT {wait}(%s, %s)", (gtids, CATCH_UP_S))[0][0]
        if late is None or int(late) != 0:
            raise _Behind(f"it has not applied within {CATCH_UP_S:g} s what was committed")
        if mariadb:
            _check_origin(session, gtids)


def _check_origin(session: Session, position: str) -> None:
    """MASTER_GTID_WAIT compares numbers only, and another server may have given out the same ones.

    Raises:
        _Behind: what was applied last of some domain is of another server than the writer's last.
    """
    applied = _origins(str(session.query("SELECT @@GLOBAL.gtid_slave_pos")[0][0]))
    for domain, server in _origins(position).items():
        if applied.get(domain, server) != server:
            raise _Behind(
                f"it has applied transactions of server {applied[domain]} in GTID domain {domain},"
                f" where the last one of the server that takes writes is of server {server}"
            )


def _origins(position: str) -> dict[str, str]:
    """Domain → server id of its last transaction, of a MariaDB position (``0-1-100,1-2-3``)."""
    parts = (each.strip().split("-") for each in position.split(",") if each.strip())
    return {domain: server for domain, server, _ in parts}

"""``ReplicaPool``: sessions that read on replicas instead of on the writer, which is the server
that takes writes. A replica is read only after it has applied everything that the writer has
committed. This module sets how long a replica may take to catch up (``CATCH_UP_S``), and for how
long no read uses a replica after a failure (``REST_S``; each further time that the replica does not
answer, twice as long, up to ``LONGEST_REST_S``). If no replica has caught up, reads run on the
writer.
"""

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
"""Seconds that a read waits for a replica to catch up with the writer."""
REST_S: Final = 5.0
"""Seconds for which a replica that lags or does not answer is not asked again."""
LONGEST_REST_S: Final = 60.0
"""Longest such pause in seconds. The pause doubles each time that the replica does not answer."""
_ANSWER_S: Final = 2.0
"""Seconds, in addition to :data:`CATCH_UP_S`, after which a silent replica counts as
unavailable."""

LOGGER: Final = logging.getLogger("countersink.database")
Result = TypeVar("Result")
_Position = tuple[str, str]
"""The position of the writer: the GTIDs of its committed transactions, and the UUID of its Galera
cluster.

The GTIDs are empty if the writer has none, or if other servers use the same numbers for other
transactions. The UUID is empty if the writer is in no cluster."""
Open = Callable[[Settings], Session]
"""A function that opens a session on one host. It may raise StoreError."""


class _Behind(Exception):
    """A replica has not applied everything yet, or cannot tell whether it has; or no replica can be
    used. The caller then asks the next replica, or at last the writer. The message is for the log.
    """


class ReplicaPool(Pool):
    """A pool whose reads run on replicas, and see the same data as a read on the writer. If no
    replica can be used, they run on the writer.

    Sessions from :meth:`lent` are on the writer. Before each read the pool asks the writer for the
    GTIDs of its commits, and waits until a replica has applied them. If this takes longer than
    :data:`CATCH_UP_S`, reads do not use the replica for a while. If writer and replica are nodes of
    one Galera cluster, the replica waits for the cluster's commits instead of GTIDs. If the writer
    has no GTIDs, replicas outside its cluster cannot be used, and reads run on the writer.

    Args:
        writer: opens a session on the writer.
        settings: the hosts of the replicas, one or several, in the order in which they are asked.
        replica: opens a session on the replica whose settings it gets.
    """

    def __init__(self, writer: Connect, settings: Settings, replica: Open) -> None:
        super().__init__(writer)
        self._replicas = [_Replica(host, replica) for host in settings.each_host()]
        self._identity = ""

    def read(self, work: Callable[[Session], Result]) -> Result:
        """Run ``work`` in a snapshot that has everything that was committed before the call, and
        return its result. If no replica can be used, run it on the writer.

        Args:
            work: a function that only reads. It may be run again on another server.

        Raises:
            Misconfigured: a replica has the tables of another installation.
            StoreError: a query on the writer failed; or a query on a replica failed, for example
                with Conflict or UnknownZone. But if a replica raises Unavailable, SchemaMismatch or
                another Refused than UnknownZone, the next server is asked instead.
        """
        try:
            return self._on_replica(lambda replica, ready: replica.pool.read_after(ready, work))
        except _Behind:
            return super().read(work)

    def open_session(self, replica: Open) -> Session | None:
        """Open a new session for one long read, on a replica that has caught up with the writer.
        The caller closes it. Return None if no replica can be used.

        Args:
            replica: a function that opens a session on the host in its argument. It is called with
                a replica that this pool chose.

        Raises:
            Misconfigured: a replica has the tables of another installation.
            StoreError: a query on the writer failed; or a replica raised an error other than
                Unavailable, SchemaMismatch and Refused, after which the next replica is asked.
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
        """Close the idle sessions on the writer and on the replicas. The pool can be used again."""
        super().close()
        for replica in self._replicas:
            replica.pool.close()

    def _on_replica(self, work: Callable[["_Replica", Ready], Result]) -> Result:
        """Call ``work`` for one replica after another until one has caught up and ``work`` returns.
        Return the result of ``work``. Leave out replicas that have a pause.

        Args:
            work: a function of a replica and of a second function. It must call the second one with
                its session on the replica; this waits until the replica has caught up, or raises.

        Raises:
            _Behind: no replica can be used.
            Misconfigured: a replica has the tables of another installation.
            StoreError: a query on the writer failed; or ``work`` raised an error other than
                Unavailable, SchemaMismatch and Refused, after which the next replica is asked.
                UnknownZone, a Refused, is raised, too.
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
    """A replica with a pool of sessions on it. After a failure it has a pause, in which it is not
    asked.
    """

    def __init__(self, host: Settings, opened: Open) -> None:
        self.host = host
        self.pool = Pool(lambda: opened(host))
        self._lock = threading.Lock()
        self._rests_until = 0.0
        self._rest_s = 0.0
        self._logged = ""

    def take_turn(self) -> bool:
        """Return whether the caller may ask the replica now.

        Without a failure the answer is always True. After a failure there is a pause, in which the
        answer is False. The first call after the pause returns True. It begins a new pause, twice
        as long (at most :data:`LONGEST_REST_S`), for all other callers. :meth:`note_success` ends
        the pause.
        """
        with self._lock:
            now = time.monotonic()
            if now < self._rests_until:
                return False
            self._rest_s = min(LONGEST_REST_S, 2 * self._rest_s)
            self._rests_until = now + self._rest_s
            return True

    def note_success(self) -> None:
        """Note that the replica was used with success: end the pause. The next failure begins a
        pause of :data:`REST_S`.
        """
        with self._lock:
            self._rest_s = self._rests_until = 0.0
            self._logged = ""

    def rest(self, reason: BaseException) -> None:
        """Begin a pause after a failure. The pause lasts :data:`REST_S` after the first failure
        since a success, and after each error other than Unavailable. After a further Unavailable it
        has the length that :meth:`take_turn` has doubled.

        Log the reason, unless the failure before had the same, and there was no success since.

        Args:
            reason: the error.
        """
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
    """Wait until a new snapshot on a replica has everything that the writer has committed.

    Args:
        session: a session on the replica.
        host: the replica's host.
        position: GTIDs of the writer's commits, and the UUID of the writer's Galera cluster; each
            may be empty.
        tables: the identity of the writer's tables.

    Raises:
        _Behind: the replica has not caught up in time. Or it is not in the writer's Galera cluster,
            and the writer has no GTIDs to wait for. Or :func:`_check_origin` raised it.
        Misconfigured: the replica's tables have another identity.
        StoreError: a query on the replica failed.
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
    """Check that a MariaDB replica has applied the writer's transactions, and not others with the
    same numbers. MASTER_GTID_WAIT, which has returned before, compares only the numbers. So this
    function compares in each GTID domain which server made the last transaction. A domain that the
    replica does not have is not compared.

    Args:
        session: a session on the replica.
        position: the writer's GTIDs, one for each GTID domain.

    Raises:
        _Behind: in some GTID domain the last transactions of replica and writer are from different
            servers.
    """
    applied = _origins(str(session.query("SELECT @@GLOBAL.gtid_slave_pos")[0][0]))
    for domain, server in _origins(position).items():
        if applied.get(domain, server) != server:
            raise _Behind(
                f"its last transaction in GTID domain {domain} is of server {applied[domain]}, but"
                f" that of the server that takes writes is of server {server}"
            )


def _origins(position: str) -> dict[str, str]:
    """Return GTID domain → id of the server whose transaction was the last in the domain.

    Args:
        position: GTIDs as MariaDB writes them (``0-1-9,1-2-3``: domain, server, number).
    """
    parts = (each.strip().split("-") for each in position.split(",") if each.strip())
    return {domain: server for domain, server, _ in parts}

"""The writer of a Galera cluster: the only node that countersink writes through. This module
chooses the writer, checks each transaction against it, and replaces it (``GRACE_S``).

Row locks of a Galera node, and so the share lock on ``control``, do not hold on other nodes. But if
transactions on two nodes write the same row, the cluster commits only one of them. So all rows of
the table ``writer_fence`` name the writer:

* A transaction that has written anything adds 1 to one of these rows before it commits. If that row
  names another node, the transaction is rolled back.
* A change of the writer writes all of these rows, in one transaction.

If a transaction on the old node and a change of the writer run together, only one commits. A
transaction on the new node sees all commits of the old node.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.database.app_connection import Executed
from countersink.database.errors import (
    DENIED,
    NO_SUCH_TABLE,
    OtherWriter,
    Refused,
    SchemaMismatch,
    Unavailable,
)
from countersink.database.session import Session, rerun_transaction
from countersink.database.sql import show

FENCES: Final = 256
"""Rows of ``writer_fence``. Transactions that add to the same row wait for each other's COMMIT."""
GRACE_S: Final = 3.0
"""Seconds before a process replaces a writer that is in the cluster and that it cannot use."""
USED_GRACE_S: Final = 60.0
"""The same while others use the writer, if the URL has several hosts. If two processes reach no
common node, each makes its node the writer in turn, which breaks the other's connections."""
FORGET_S: Final = 60.0
"""Seconds without a failed use of the writer after which the wait begins anew."""
COMMIT_S: Final = 60.0
"""Seconds that a COMMIT may take, even if reads may take longer."""
_ATTEMPTS: Final = 3
"""Attempts at a statement that is a transaction of its own, if it meets a Conflict."""
_HELD_UP: Final = (
    "no answer to COMMIT, whose outcome is unknown: a Galera node that is behind may hold up all"
    " writes (flow control: see `countersink doctor`)"
)
_NO_NODE: Final = "-"
_WRITES: Final = ("INSERT", "UPDATE", "DELETE", "REPLACE")
_DDL: Final = ("CREATE", "ALTER", "DROP")
_VERB_BYTES: Final = 40
_STATUS: Final = (
    "wsrep_ready",
    "wsrep_cluster_status",
    "wsrep_local_state_comment",
    "wsrep_gcomm_uuid",
    "wsrep_cluster_state_uuid",
    "wsrep_local_index",
    "wsrep_incoming_addresses",
)
_CLUSTER: Final = "wsrep_cluster_state_uuid"
_DONOR: Final = "Donor/Desynced"
_ADD: Final = "UPDATE writer_fence SET uses = uses + 1 WHERE number = %s AND node = %s"
_NO_STOP: Final = ("mariabackup", "xtrabackup", "clone")
"""Methods by which a node sends its data to a new node (as its donor) and still takes writes."""
LOGGER: Final = logging.getLogger("countersink.database")


@dataclass(slots=True)
class _Missed:
    """A writer that this process could not use, and that :func:`_require_change` replaces after a
    while. All times are seconds on the monotonic clock.

    Attributes:
        address: the writer's address, or its UUID.
        since: time of the first failed use.
        last: time of the last failed use.
        quiet_since: time since which no other process has committed through the writer.
        uses: sum of the column ``uses`` of ``writer_fence`` at ``quiet_since``."""

    address: str
    since: float
    last: float
    quiet_since: float
    uses: int


_missed: Final[dict[str, _Missed]] = {}
"""UUID of a cluster → the cluster's writer, while this process cannot use that writer."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a Galera cluster, as its own status describes it.

    Attributes:
        name: UUID of the node within the cluster.
        address: the node's address for clients; empty if it is unknown or not unique.
        members: the addresses of all nodes in this node's part of the cluster.
        trouble: the reason why the node takes no writes; empty if it takes writes.
        cluster: UUID of the cluster."""

    name: str
    address: str
    members: tuple[str, ...]
    trouble: str
    cluster: str


def _trouble(status: Mapping[str, str]) -> str:
    component = status.get("wsrep_cluster_status", "")
    state = status.get("wsrep_local_state_comment", "")
    if component.upper() != "PRIMARY":
        return f"a Galera node that is {component or 'disconnected'}"
    if status.get("wsrep_ready") != "ON" or state != "Synced":
        return f"a Galera node that is {state or 'not ready'}"
    if not status.get("wsrep_gcomm_uuid"):
        return "a Galera node that does not know its own UUID"
    return ""


@dataclass(eq=False, repr=False)
class GaleraSession(Session):
    """A session on a Galera node. Its writes are committed only while that node is the writer.

    A writing statement outside a transaction gets a transaction of its own. A statement that takes
    values of a sequence needs none: two nodes cannot both change its row. DDL cannot be rolled
    back, so the writer is checked before and after it. If the second check raises, repeat the DDL.

    Attributes:
        node: UUID that the writer must have at COMMIT: that of this node. It is ``-``, which no
            writer has, if this node is not the writer and the user may not change that. It is empty
            if nothing is checked: the session only reads, has no database, or there are no tables.
        number: number of the row of ``writer_fence`` to which the session adds."""

    node: str = ""
    number: int = 0
    _begun: bool = False
    _written: bool = False

    def __post_init__(self) -> None:
        # Connections of one node have consecutive numbers.
        self.number = self.connection_id % FENCES

    @property
    def checked(self) -> bool:
        return bool(self.node)

    def execute(self, sql: str, args: Sequence[object] | None = None) -> int:
        verb = sql[:_VERB_BYTES].lstrip().upper()  # a statement may have 700 KB
        if self.node and not self._begun and verb.startswith(_DDL):
            self._check()
            changed = super().execute(sql, args)
            self._check()
            return changed
        if self._begun or not self.node or not verb.startswith(_WRITES):
            changed = super().execute(sql, args)
            self._written = self._written or changed > 0
            return changed
        return rerun_transaction(self, partial(self.execute, sql, args), attempts=_ATTEMPTS)

    def _check(self) -> None:
        with self.transaction():
            self._written = True

    def hand_out(self, sql: str) -> Executed:
        self._written = True
        return super().hand_out(sql)

    def see_all_commits(self) -> None:
        super().execute("SET SESSION wsrep_sync_wait = 1")

    def begin(self, *, snapshot: bool = False) -> None:
        if snapshot:
            # Includes commits on other nodes: their entries may have left the queue already.
            self.see_all_commits()
        super().begin(snapshot=snapshot)
        self._begun, self._written = True, False

    def commit(self) -> None:
        # The last statement: a transaction with the same row waits for this COMMIT only, and no
        # lock is requested afterwards, so there is no deadlock.
        fenced = self._begun and self._written and self.node
        if fenced and super().execute(_ADD, (self.number, self.node)) != 1:
            self.close(hard=True)
            raise Unavailable("another Galera node takes countersink's writes now")
        self._begun = False
        try:
            # Flow control has no time limit.
            with self.reply_timeout(COMMIT_S):
                super().commit()
        except Unavailable as error:
            if isinstance(getattr(error.__cause__, "__context__", None), TimeoutError):
                error.args = (_HELD_UP,)
            raise

    def rollback(self) -> None:
        self._begun = False
        super().rollback()

    def takes_writes(self) -> bool:
        """Return whether the session is open. No query is needed: COMMIT checks the writer."""
        return not self.closed

    def excludes(self, other: Session) -> bool:
        """Return whether the node of another session was excluded from this node's cluster; False
        if that node is of another cluster.

        Raises:
            Unavailable: this node itself takes no writes, or does not reply."""
        self.see_all_commits()
        for _ in range(2):  # the status is right after the second query: see _check_writer
            self.query("SELECT 1")
        node = read_node(self)
        if node.trouble:
            raise Unavailable(node.trouble)
        return node.cluster == other.cluster and other.address not in node.members


def admit(
    session: GaleraSession, database: bool, several: bool, former: OtherWriter | None
) -> GaleraSession:
    """Check a session that has just logged in, and return it. If there is an error, close the
    session. With ``database`` the session's node is the writer from now on, unless there are no
    tables or the user may not write.

    Args:
        session: the session, outside a transaction.
        database: True if the session may write to countersink's database.
        several: True if the URL has other hosts, or if the session only reads.
        former: the error that names the writer, if no host of the URL could reach it; else None.

    Raises:
        Unavailable: the node takes no writes, and ``database`` or ``several`` is True.
        OtherWriter: ``database`` is True, and another node is the writer and not replaced now."""
    try:
        node = read_node(session)
        session.cluster, session.address = node.cluster, node.address
        if node.trouble and (database or several):
            raise Unavailable(node.trouble)
        if database:
            session.node = _check_writer(session, node, several, former)
    except BaseException:
        session.close()
        raise
    return session


def _check_writer(
    session: GaleraSession, node: Node, several: bool, former: OtherWriter | None
) -> str:
    """Make ``node`` the writer if there is none, if it was the writer before it was restarted, if
    not all rows of ``writer_fence`` name it, or if the present writer must be replaced. Return the
    UUID for :attr:`GaleraSession.node`: that of ``node``, ``-`` if the user may not change the
    writer then, empty without that table. ``several``, ``former``, errors: see :func:`admit`."""
    try:
        # A change of the writer on another node may not have arrived at this node yet.
        session.execute("SET SESSION wsrep_sync_wait = 1")
        found, complete, uses = _fences(session)
        if _is_other(found, node):
            # The read may have waited until the cluster had excluded that writer. The node's status
            # says so after the next read.
            found, complete, uses = _fences(session)
            node = read_node(session)
            if node.trouble:
                raise Unavailable(node.trouble)
        session.execute("SET SESSION wsrep_sync_wait = 0")
    except SchemaMismatch as error:
        if error.code != NO_SUCH_TABLE:
            raise
        return ""  # no tables, or old ones: the session can only migrate
    name, address = found or ("", "")
    if name != node.name or not complete:
        why = "there was none" if found is None else "it was started again, or rows were missing"
        if _is_other(found, node):
            why = _require_change(address or name, uses, node, several, former)
        try:
            set_writer(session, node, found, why)
        except Refused as error:
            if error.code not in DENIED:
                raise
            return _NO_NODE  # this user may only read: another user's process sets the writer
    _missed.pop(node.cluster, None)
    return node.name


def _is_other(found: tuple[str, str] | None, node: Node) -> bool:
    """Return whether there is a writer (``found``: its UUID and address) that is not ``node``: both
    UUID and address differ. A restarted node has a new UUID and its old address."""
    return found is not None and found[0] != node.name and found[1] != (node.address or None)


def _require_change(
    address: str, uses: int, node: Node, several: bool, former: OtherWriter | None
) -> str:
    """Return the reason why the writer at ``address`` must be replaced by ``node`` now: the writer
    has left the cluster, or this process could not use it for ``GRACE_S`` while nobody else did, or
    for ``USED_GRACE_S`` with ``several``. See OtherWriter for ``uses``, admit for the others.

    Raises:
        OtherWriter: the writer must not be replaced, or not yet."""
    known = ":" in address
    # A writer whose address is unknown has certainly left where this node is the only member.
    if address not in node.members if known else len(node.members) == 1:
        return "it is not in the cluster any more"
    if several and (former is None or former.writer != address):
        raise OtherWriter(address, uses)  # another host of the URL may be the writer
    if not several and known:
        raise OtherWriter(address)
    now = time.monotonic()
    missed = _missed.get(node.cluster)
    if missed is None or missed.address != address or now - missed.last > FORGET_S:
        # Counted from a login to it that got no reply.
        since, used = (former.since, former.uses) if former is not None else (now, uses)
        missed = _missed[node.cluster] = _Missed(address, since, now, since, used)
    missed.last = now
    if uses != missed.uses:
        missed.uses, missed.quiet_since = uses, now
    # With one host in each URL, two processes may name different nodes: the writer stays while it
    # is used, else each would make its node the writer again and again.
    used_grace = USED_GRACE_S if several else math.inf
    if now - missed.quiet_since < GRACE_S and now - missed.since < used_grace:
        raise OtherWriter(address)
    return f"it could not be used for {now - missed.since:.1f} s"


def read_node(session: Session) -> Node:
    """Return the node that a session is connected to, by its own status."""
    status: dict[str, str] = dict(session.query(show("GLOBAL STATUS", _STATUS)))
    if status.get("wsrep_local_state_comment") == _DONOR:
        found = dict(session.query(show("GLOBAL VARIABLES", ("wsrep_desync", "wsrep_sst_method"))))
        # A desynced node takes writes during a backup, and as a donor by some methods.
        method = str(found.get("wsrep_sst_method", ""))
        if found.get("wsrep_desync") in ("ON", "1") or method.startswith(_NO_STOP):
            status["wsrep_local_state_comment"] = "Synced"
    members = tuple(
        "" if each == "AUTO" else each
        for each in status.get("wsrep_incoming_addresses", "").split(",")
    )
    index = int(status.get("wsrep_local_index", "0"))
    address = members[index] if index < len(members) and members.count(members[index]) == 1 else ""
    name, cluster = status.get("wsrep_gcomm_uuid", ""), status.get(_CLUSTER, "")
    return Node(name, address, members, _trouble(status), cluster)


def _fences(session: Session) -> tuple[tuple[str, str] | None, bool, int]:
    """Read ``writer_fence``. Return the writer's UUID and address (None if there is no writer),
    whether all rows name it, and the sum of ``uses``: each transaction that writes adds 1."""
    rows = session.query(
        "SELECT node, address, COUNT(*), SUM(uses) FROM writer_fence"
        " GROUP BY node, address ORDER BY MIN(number)"
    )
    if not rows:
        return None, False, 0
    name, address, count, _ = rows[0]
    return (str(name), str(address)), count == FENCES, sum(int(each[3]) for each in rows)


def set_writer(
    session: GaleraSession, node: Node, former: tuple[str, str] | None, why: str
) -> None:
    """Make ``node`` the writer in place of ``former``. Do nothing if all rows name it already.

    Args:
        session, node: the new writer, and a session on it that is outside a transaction.
        former: UUID and address of the writer until now; None if there was none.
        why: the reason for the change, for the log.

    Raises:
        OtherWriter: a third node has become the writer meanwhile."""
    own = (node.name, node.address)

    def work() -> bool:
        found = session.query("SELECT node, address FROM writer_fence ORDER BY number FOR UPDATE")
        if found == [own] * FENCES:
            return False  # another session on this node has done it
        if (found[0] if found else None) not in (former, own):
            name, address = found[0] if found else ("", "")
            raise OtherWriter(address or name)
        values = ", ".join(f"({number:d}, %s, %s, 0, UTC_TIMESTAMP(3))" for number in range(FENCES))
        session.execute(
            "INSERT INTO writer_fence (number, node, address, uses, taken_at)"
            f" VALUES {values} ON DUPLICATE KEY UPDATE node = VALUES(node),"
            " address = VALUES(address), uses = uses + 1, taken_at = VALUES(taken_at)",
            own * FENCES,
        )
        return True

    if rerun_transaction(session, work) and former is not None and former != own:
        LOGGER.warning(
            "Galera: %s takes countersink's writes from now on, in place of %s: %s",
            node.address or node.name,
            former[1] or former[0],
            why,
        )

"""Galera: which node takes our writes (``writer_fence``), how each transaction checks that its node
does, and when another node becomes the one (``GRACE_S``, ``USED_GRACE_S``).

Row locks, and so the share lock on ``control``, do not reach from one node of a cluster to another;
which transactions may commit is decided by the rows that they write. So all that we write goes
through one node, which every row of ``writer_fence`` names:

* Each transaction of ours that has written anything adds 1 to one of these rows before it commits,
  where that row still names its node. If it does not, the transaction is rolled back.
* Who lets another node become the writer writes all rows, in one transaction.

So of a transaction on the old node and the change of nodes the cluster lets only one commit, in
whichever order they come, and a transaction on the new node has everything that the old one has
committed. As long as the writer stays the same, locks on it are those of a single server.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.database.app_connection import Done
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
"""Rows of ``writer_fence``: two transactions wait for each other's COMMIT if they have the same."""
GRACE_S: Final = 3.0
"""A writer that is still in the cluster, but does not take our writes, is waited for so long."""
USED_GRACE_S: Final = 60.0
"""The same while others go on using it: two that reach no common node take turns, and each turn
costs the other one its connections."""
FORGET_S: Final = 60.0
"""After so many seconds in which nobody missed a writer the grace begins anew."""
COMMIT_S: Final = 60.0
"""A COMMIT that the cluster holds up is waited for so long at most, however long reads may take."""
_ATTEMPTS: Final = 3
"""How often a statement that is a transaction of its own is sent when it meets another one."""
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
"""Ways in which a donor gives its data while it goes on taking writes."""

LOGGER: Final = logging.getLogger("countersink.database")


@dataclass(slots=True)
class _Missed:
    """A writer that this process has not been able to use; times on the monotonic clock.

    Attributes:
        address: its address, or its UUID.
        since: of the first time.
        last: of the last time.
        quiet_since: since when nobody was seen to use it.
        uses: how often it was used up to then.
    """

    address: str
    since: float
    last: float
    quiet_since: float
    uses: int


_missed: Final[dict[str, _Missed]] = {}
"""Cluster → its writer that this process has not been able to use."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a Galera cluster, as it sees itself.

    Attributes:
        name: its UUID in the group, which no other node has.
        address: where its clients find it; empty where the cluster does not know.
        members: the addresses of all nodes in its part of the cluster.
        trouble: why it takes no writes; empty: it does.
        cluster: UUID of the cluster.
    """

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
    """A session on a node: what it writes is committed only while that is the writer node.

    A statement outside a transaction that writes has one of its own; but for those that hand out
    values of sequences, where the row itself is what no two nodes can change at once. DDL, which no
    transaction undoes, has one before it and one after it: if the second one fails, it is to be run
    again on the writer.

    Attributes:
        node: the UUID of its node; empty: before the tables are there, nothing is checked.
        number: of its row of ``writer_fence``.
    """

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
        verb = sql[:_VERB_BYTES].lstrip().upper()  # not the whole of a statement of 700 KB
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

    def hand_out(self, sql: str) -> Done:
        self._written = True
        return super().hand_out(sql)

    def read_all(self) -> None:
        super().execute("SET SESSION wsrep_sync_wait = 1")

    def begin(self, *, snapshot: bool = False) -> None:
        if snapshot:
            # What any node has committed before: the queue may no longer hold what is in there.
            self.read_all()
        super().begin(snapshot=snapshot)
        self._begun, self._written = True, False

    def commit(self) -> None:
        # Last of all: whoever has the same row waits for this COMMIT alone, and locks that are
        # asked for afterwards, of which deadlocks are made, there are none.
        fenced = self._begun and self._written and self.node
        if fenced and super().execute(_ADD, (self.number, self.node)) != 1:
            self.close(hard=True)
            raise Unavailable("another Galera node takes countersink's writes now")
        self._begun = False
        try:
            # Flow control has no limit of its own.
            with self.patience(COMMIT_S):
                super().commit()
        except Unavailable as error:
            if isinstance(getattr(error.__cause__, "__context__", None), TimeoutError):
                error.args = (_HELD_UP,)
            raise

    def rollback(self) -> None:
        self._begun = False
        super().rollback()

    def takes_writes(self) -> bool:
        """Not asked: snapshots hold all that any node has committed, and writes are checked."""
        return not self.closed

    def leaves_out(self, other: Session) -> bool:
        """Whether the node of another session is not in the cluster, whatever that one says.

        Raises:
            Unavailable: this node is itself out of it; it may know of nothing yet, and then reads
                that wait for the cluster have no answer.
        """
        self.read_all()
        for _ in range(2):  # the node tells after the second one: see _writes_as
            self.query("SELECT 1")
        node = look(self)
        if node.trouble:
            raise Unavailable(node.trouble)
        return node.cluster == other.cluster and other.address not in node.members


def opened(
    session: GaleraSession, database: bool, several: bool, former: OtherWriter | None
) -> GaleraSession:
    """A session that has just logged in, if its node is the writer, or becomes it.

    Args:
        session: outside a transaction.
        database: whether our database is in use; else nothing of ours is written.
        several: its URL has several hosts, of which the writer may be another one.
        former: the writer, of which it is known that it is none of these hosts; else None.

    Raises:
        Unavailable: the node takes no writes.
        OtherWriter: another node is the writer.
    """
    try:
        node = look(session)
        session.cluster, session.address = node.cluster, node.address
        if node.trouble and (database or several):
            raise Unavailable(node.trouble)
        if database:
            session.node = _writes_as(session, node, several, former)
    except BaseException:
        session.close()
        raise
    return session


def _writes_as(
    session: GaleraSession, node: Node, several: bool, former: OtherWriter | None
) -> str:
    """For which node's transactions those of the session pass; empty: nothing is checked."""
    try:
        # What was decided on another node may not have come to this one yet.
        session.execute("SET SESSION wsrep_sync_wait = 1")
        found, whole, uses = _fences(session)
        if _is_other(found, node):
            # The read may have waited until the cluster had left that writer out. The node tells so
            # after the next one.
            found, whole, uses = _fences(session)
            node = look(session)
            if node.trouble:
                raise Unavailable(node.trouble)
        session.execute("SET SESSION wsrep_sync_wait = 0")
    except SchemaMismatch as error:
        if error.code != NO_SUCH_TABLE:
            raise
        return ""  # there are no tables, or old ones: good for nothing but `migrate`
    name, address = found or ("", "")
    if name != node.name or not whole:
        why = "there was none" if found is None else "it was started again, or rows were missing"
        if _is_other(found, node):
            why = _wait_for(address or name, uses, node, several, former)
        try:
            take(session, node, found, why)
        except Refused as error:
            if error.code not in DENIED:
                raise
            return _NO_NODE  # a user who only reads: others will make it the writer
    _missed.pop(node.cluster, None)
    return node.name


def _is_other(found: tuple[str, str] | None, node: Node) -> bool:
    """Whether the writer is another node: not this one before it was started again, either."""
    return found is not None and found[0] != node.name and found[1] != (node.address or None)


def _wait_for(
    address: str, uses: int, node: Node, several: bool, former: OtherWriter | None
) -> str:
    """Why the writer at ``address`` is to be replaced; raises OtherWriter if it is not."""
    known = ":" in address
    # A writer whose address the cluster does not know is surely away if the node is alone.
    gone = address not in node.members if known else len(node.members) == 1
    if gone:
        return "it is not in the cluster any more"
    if several and (former is None or former.writer != address):
        raise OtherWriter(address, uses)  # maybe another host of the URL is the one
    if not several and known:
        raise OtherWriter(address)
    now = time.monotonic()
    missed = _missed.get(node.cluster)
    if missed is None or missed.address != address or now - missed.last > FORGET_S:
        # A login at it that had no answer lasted long enough.
        since, used = (former.since, former.uses) if former is not None else (now, uses)
        missed = _missed[node.cluster] = _Missed(address, since, now, since, used)
    missed.last = now
    if uses != missed.uses:
        missed.uses, missed.quiet_since = uses, now
    # With one host in the URL another process may have another one: that one stays as long as it
    # is used, else they would take it from each other for ever.
    used_grace = USED_GRACE_S if several else math.inf
    if now - missed.quiet_since < GRACE_S and now - missed.since < used_grace:
        raise OtherWriter(address)
    return f"it could not be used for {now - missed.since:.1f} s"


def look(session: Session) -> Node:
    """The node that a session is on."""
    status: dict[str, str] = dict(session.query(show("GLOBAL STATUS", _STATUS)))
    if status.get("wsrep_local_state_comment") == _DONOR:
        found = dict(session.query(show("GLOBAL VARIABLES", ("wsrep_desync", "wsrep_sst_method"))))
        # For a backup, and as some donors, a node that is desynced takes writes.
        method = str(found.get("wsrep_sst_method", ""))
        if found.get("wsrep_desync") in ("ON", "1") or method.startswith(_NO_STOP):
            status["wsrep_local_state_comment"] = "Synced"
    members = tuple(
        "" if each == "AUTO" else each
        for each in status.get("wsrep_incoming_addresses", "").split(",")
    )
    index = int(status.get("wsrep_local_index", "0"))
    own = members[index] if index < len(members) and members.count(members[index]) == 1 else ""
    name, cluster = status.get("wsrep_gcomm_uuid", ""), status.get(_CLUSTER, "")
    return Node(name, own, members, _trouble(status), cluster)


def _fences(session: Session) -> tuple[tuple[str, str] | None, bool, int]:
    """UUID and address of the writer, whether all rows are there and say so, and their uses."""
    rows = session.query(
        "SELECT node, address, COUNT(*), SUM(uses) FROM writer_fence"
        " GROUP BY node, address ORDER BY MIN(number)"
    )
    if not rows:
        return None, False, 0
    name, address, count, _ = rows[0]
    return (str(name), str(address)), count == FENCES, sum(int(each[3]) for each in rows)


def take(session: GaleraSession, node: Node, former: tuple[str, str] | None, why: str) -> None:
    """Let ``node``, on which the session is, be the writer; whoever it was must be ``former``.

    Args:
        session: outside a transaction.
        node: the one that it is on.
        former: UUID and address of the writer so far; None: there was none.
        why: for the log.

    Raises:
        OtherWriter: somebody else has become it meanwhile.
    """
    own = (node.name, node.address)

    def work() -> bool:
        found = session.query("SELECT node, address FROM writer_fence ORDER BY number FOR UPDATE")
        if found == [own] * FENCES:
            return False  # another session on this node
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
            "Galera: %s takes countersink's writes from now on, no longer %s: %s",
            node.address or node.name,
            former[1] or former[0],
            why,
        )

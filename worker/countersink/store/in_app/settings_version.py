"""The table ``app_counter``, by which an in-app transaction notices that a counter's settings have
changed; and refusals of tracked counters and, in strict mode, unknown ones.

Such a transaction never touches ``control``, on which workers and scheduled jobs would wait for it.
Each counter that is counted so has a row in ``app_counter`` instead, with a version. The statement
that counts is an INSERT … SELECT from that row, under a share lock that lasts as long as the
transaction, with the version that the store knows: so it counts by the counter's settings as they
are, or else it writes nothing, and the store reads them again.

Whoever changes those settings locks that row, and raises the version (:func:`lower`), before
anything else: that waits for the transactions that have counted by the old ones, and from then on
nobody else does.

On Galera neither lock reaches the other nodes, through which applications may go. There each
transaction that counts also writes one of the counter's rows of ``app_fence``, and who changes its
settings writes all of them: of two that were committed at the same time on different nodes the
cluster refuses the later one.

A row, once made, is never deleted. A statement that finds none leaves a gap lock at REPEATABLE
READ, in the application's transaction, and whoever made the row anew would wait for that one: the
store itself, in the midst of a call on it.
"""

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from countersink.store import sql
from countersink.store.apply.control import Control, exclusive, read_control
from countersink.store.apply.refusals import known
from countersink.store.connection import Connect, Session, rerun, rerun_transaction
from countersink.store.counters.policies import Policies, load
from countersink.store.counters.settings import DEFAULT_APP_SLOTS
from countersink.store.errors import DENIED, Conflict, TrackedCounter, UnknownCounter
from countersink.store.in_app.connection import AppConnection, error_code, execute, query
from countersink.store.sessions import Pool
from countersink.store.tracked.definitions import tracked_names

ATTEMPTS: Final = 5
"""How often to ask for what open transactions hold, for some seconds each."""
PROBES: Final = 20
"""How often, in each of them, to look without waiting: three to four seconds together."""

_FENCES: Final = 256
"""Rows of ``app_fence`` that a counter's transactions share, as they do slots, by connection."""
_NAMES_PER_STATEMENT: Final = 500
_HOLD: Final = "SELECT version FROM app_counter WHERE counter = %s FOR UPDATE"
_RAISE: Final = "UPDATE app_counter SET version = version + 1 WHERE counter IN ({})"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Fence:
    """The settings of a counter, with the version of its row in ``app_counter`` for which they
    hold.

    Attributes:
        counter: its name.
        version: of its row in ``app_counter``.
        policies: its own and its breakdowns', as of then.
        app_slots: over how many slots the application's transactions spread.
        snapshot_isolation: whether the server has ``innodb_snapshot_isolation``.
        locks_are_local: the server is a node of Galera.
    """

    counter: str
    version: int
    policies: Policies
    app_slots: int
    snapshot_isolation: bool
    locks_are_local: bool


def lower(session: Session, counter: str) -> None:
    """Let nobody count by a counter's settings as they were; waits for those who have.

    To be called first thing in a transaction of :func:`countersink.store.apply.control.exclusive`,
    before anything is read without a lock: what is read then holds what they have counted.
    :func:`alone` does so, and keeps fewer waiting.

    Raises:
        Conflict: one of them was still open after a second; roll back, which ``exclusive`` does,
            and tries again.
    """
    session.execute(_RAISE.format("%s"), (counter,))
    write_fences(session, counter)


def write_fences(session: Session, counter: str) -> None:
    """On Galera: let the transaction, and one that counts the counter on another node and that it
    has not seen, not both be committed.

    Args:
        session: in a transaction that goes by what was counted.
        counter: its name.
    """
    if session.locks_are_local:
        session.execute(_write_fences("%s", map(str, range(_FENCES))), [counter] * _FENCES)


def write_fence(connection: AppConnection, database: str, counter: str) -> None:
    """On Galera: let the transaction, and a change of the counter's settings on another node that
    it has not seen, not both be committed.

    Args:
        connection: in a transaction that goes by the settings.
        database: where the tables are, quoted.
        counter: its name, which was checked.

    Raises:
        The driver's own errors, as they are.
    """
    number = f"CONNECTION_ID() MOD {_FENCES:d}"
    execute(connection, _write_fences(f"'{counter}'", [number], f"{database}."))


def _write_fences(counter: str, numbers: Iterable[str], database: str = "") -> str:
    values = ", ".join(f"({counter}, {number}, 1)" for number in numbers)
    return (
        f"INSERT INTO {database}app_fence (counter, number, uses) VALUES {values}"
        " ON DUPLICATE KEY UPDATE uses = uses + 1"
    )


def alone(
    session: Session,
    counter: str,
    work: Callable[[Control], Result],
    *,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
) -> Result:
    """As :func:`countersink.store.apply.control.exclusive`, with the counter's settings lowered
    first.

    Open transactions that have counted it are waited for without ``control``, so that one that
    stays open keeps nobody from counting anything else; and as long as there is hope without
    waiting for the row itself, behind which all others that count this counter would wait. Only
    every few seconds that is done, for a second: where many short transactions follow each other
    there is never a moment without any.
    """

    def lowered(control: Control) -> Result:
        # Locked already, unless the row was made since. Nobody makes one now: see _make.
        lower(session, counter)
        return work(control)

    def attempt() -> Result:
        _look(session, counter, pause)
        return exclusive(
            session, lowered, attempts=1, before=partial(session.query, _HOLD, (counter,))
        )

    return rerun(attempt, attempts=attempts, pause=pause)


def _look(session: Session, counter: str, pause: Callable[[float], object]) -> None:
    """Wait for a moment in which no open transaction has counted a counter, but not for long."""
    look = partial(session.query, f"{_HOLD} NOWAIT", (counter,))
    try:
        rerun(look, attempts=PROBES, pause=pause)
    except Conflict:
        return  # there was none


def lower_unknown(session: Session) -> None:
    """The same of all counters that were neither made nor ever counted; for strict mode.

    Not on other nodes of Galera: one that counts such a counter there at this moment makes it
    known, as it would have a moment ago.
    """
    names = {name for (name,) in session.query("SELECT counter FROM app_counter")}
    for part in sql.parts(sorted(names - known(session, names)), _NAMES_PER_STATEMENT):
        session.execute(_RAISE.format(sql.marks(part)), part)


def refuse_tracked(session: Session, counter: str) -> None:
    """Check that no table's triggers count a counter.

    Raises:
        TrackedCounter: they do.
    """
    if counter in tracked_names(session):
        raise TrackedCounter(
            f"{counter} is the row count of a tracked table: only its triggers count it, and it has"
            f" no settings of its own (`countersink untrack {counter}` ends that)"
        )


def find(pool: Pool, connect: Connect, counter: str) -> Fence:
    """The settings of a counter as they are now, of which the first call makes the row.

    Args:
        pool: for reading.
        connect: makes a session to write the row.
        counter: its name.

    Raises:
        UnknownCounter: in strict mode, of a counter that was neither made nor ever counted.
        TrackedCounter: it is that of a tracked table.
        StoreError: MySQL did not do its part.
    """
    while (found := read(pool, counter)) is None:
        with connect() as session:
            rerun_transaction(session, partial(_make, session, counter))
    return found


def find_in(connection: AppConnection, database: str, pool: Pool, counter: str) -> Fence | None:
    """As :func:`find`, with the row made in the application's transaction, which may have a
    snapshot that a row of anybody else would be too new for.

    Until that transaction ends nobody changes the settings, so what is read afterwards is right.
    The version is one that no other transaction that makes the row will take, as this one may roll
    back.

    Args:
        connection: the application's.
        database: where the tables are, quoted.
        pool: for reading.
        counter: its name, which was checked.

    Returns:
        None where the connection's user may not make the row: somebody else has to.

    Raises:
        As :func:`find`. And the driver's errors.
    """
    table, version = f"{database}.app_counter", secrets.randbits(62)
    try:
        execute(
            connection,
            f"INSERT IGNORE INTO {table} (counter, version) VALUES ('{counter}', {version:d})",
        )
    except Exception as error:  # whichever driver it is
        if error_code(error) in DENIED:
            return None
        raise
    # Maybe there is one: of an earlier call in this transaction, or of somebody else by now.
    ((version,),) = query(
        connection, f"SELECT version FROM {table} WHERE counter = '{counter}' LOCK IN SHARE MODE"
    )
    return pool.read(partial(_read, counter=counter, version=int(version)))


def read(pool: Pool, counter: str) -> Fence | None:
    """The settings of a counter as they are now; None where its row is to be made.

    Raises:
        As :func:`find`.
    """
    return pool.read(partial(_read, counter=counter))


def _read(session: Session, counter: str, version: int | None = None) -> Fence | None:
    """The settings in one snapshot, which changes of them commit to as a whole.

    Args:
        session: in that snapshot.
        counter: its name.
        version: of the counter's row, where the caller holds it; None: to be read.
    """
    refuse_tracked(session, counter)
    policies = load(session)
    if policies.strict and not known(session, (counter,)):
        raise UnknownCounter(
            f"no counter is called {counter!r}, and only known ones are counted here:"
            f" `countersink counter set {counter}` makes it"
        )
    if version is None:
        versions = session.query("SELECT version FROM app_counter WHERE counter = %s", (counter,))
        if not versions:
            return None
        version = int(versions[0][0])
    own = policies.dimensioned.get(counter)
    names = (counter, *(each.name for each in own.breakdowns)) if own is not None else (counter,)
    made = session.query("SELECT app_slots FROM counter WHERE name = %s", (counter,))
    return Fence(
        counter,
        version,
        Policies(
            policies.version,
            policies.strict,
            {name: policies.of(name) for name in names},
            dimensioned={} if own is None else {counter: own},
            salt_days={name: days for name, days in policies.salt_days.items() if name == counter},
        ),
        int(made[0][0]) if made else DEFAULT_APP_SLOTS,
        session.snapshot_isolation,
        session.locks_are_local,
    )


def _make(session: Session, counter: str) -> None:
    # Its share lock: not while somebody changes the counter, who has found no row to raise.
    version = read_control(session).policy_version
    session.execute(
        "INSERT IGNORE INTO app_counter (counter, version) VALUES (%s, %s)", (counter, version)
    )

"""What an application's own transactions go by when they count, and how that is changed.

Such a transaction never touches ``control``, on which workers and scheduled jobs would wait for it.
Each counter that is counted so has a row in ``app_counter`` instead, with a version. The statement
that counts is an INSERT … SELECT from that row, under a share lock that lasts as long as the
transaction, with the version that the store knows: so it counts by the counter's settings as they
are, or else it writes nothing, and the store reads them again.

Whoever changes those settings locks that row, and raises the version (:func:`lower`), before
anything else: that waits for the transactions that have counted by the old ones, and from then on
nobody else does.

A row, once made, is never deleted. A statement that finds none leaves a gap lock at REPEATABLE
READ, in the application's transaction, and whoever made the row anew would wait for that one: the
store itself, in the midst of a call on it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from countersink.store import cells
from countersink.store.connection import Connect, Session
from countersink.store.control import Control, exclusive, read_control
from countersink.store.counter_reads import DEFAULT_APP_SLOTS
from countersink.store.errors import Conflict, TrackedCounter, UnknownCounter
from countersink.store.policies import Policies, load
from countersink.store.pool import Pool
from countersink.store.rerun import rerun
from countersink.store.strict import known
from countersink.store.tracked.definitions import tracked_names

ATTEMPTS: Final = 5
"""How often to ask for what open transactions hold, for some seconds each."""
PROBES: Final = 20
"""How often, in each of them, to look without waiting: three to four seconds together."""

_HOLD: Final = "SELECT version FROM app_counter WHERE counter = %s FOR UPDATE"
_RAISE: Final = "UPDATE app_counter SET version = version + 1 WHERE counter = %s"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Fence:
    """The settings of a counter, right as long as its row has this version.

    Attributes:
        counter: its name.
        version: of its row in ``app_counter``.
        policies: its own, as of then.
        app_slots: over how many slots the application's transactions spread.
        room: bytes that the values of one statement may take.
    """

    counter: str
    version: int
    policies: Policies
    app_slots: int
    room: int


def lower(session: Session, counter: str) -> None:
    """Let nobody count by a counter's settings as they were; waits for those who have.

    To be called first thing in a transaction of :func:`countersink.store.control.exclusive`, before
    anything is read without a lock: what is read then holds what they have counted. :func:`alone`
    does so, and keeps fewer waiting.

    Raises:
        Conflict: one of them was still open after a second; roll back, which ``exclusive`` does,
            and tries again.
    """
    session.execute(_RAISE, (counter,))


def alone(
    session: Session,
    counter: str,
    work: Callable[[Control], Result],
    *,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
) -> Result:
    """As :func:`countersink.store.control.exclusive`, with the counter's settings lowered first.

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
    """The same of all counters that were neither made nor ever counted; for strict mode."""
    names = {name for (name,) in session.query("SELECT counter FROM app_counter")}
    for name in sorted(names - known(session, names)):
        lower(session, name)


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
    read = partial(_read, counter=counter)
    found = pool.read(read)
    while found is None:
        with connect() as session:
            rerun(partial(_make, session, counter))
        found = pool.read(read)
    return found


def _read(session: Session, counter: str) -> Fence | None:
    """The settings in one snapshot, which changes of them commit to as a whole."""
    refuse_tracked(session, counter)
    policies = load(session)
    if policies.strict and not known(session, (counter,)):
        raise UnknownCounter(
            f"no counter is called {counter!r}, and only known ones are counted here:"
            f" `countersink counter set {counter}` makes it"
        )
    versions = session.query("SELECT version FROM app_counter WHERE counter = %s", (counter,))
    if not versions:
        return None
    made = session.query("SELECT app_slots FROM counter WHERE name = %s", (counter,))
    return Fence(
        counter,
        int(versions[0][0]),
        Policies(policies.version, policies.strict, {counter: policies.of(counter)}),
        int(made[0][0]) if made else DEFAULT_APP_SLOTS,
        cells.room(session),
    )


def _make(session: Session, counter: str) -> None:
    with session.transaction():
        # Its share lock: not while somebody changes the counter, who has found no row to raise.
        version = read_control(session).policy_version
        session.execute(
            "INSERT IGNORE INTO app_counter (counter, version) VALUES (%s, %s)", (counter, version)
        )

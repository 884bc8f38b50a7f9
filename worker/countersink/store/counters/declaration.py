"""Declares dimensions and breakdowns of a counter (``counter set``): limits, the sentences of what
cannot be, from when on a breakdown holds events, its settings, and removing it."""

from collections.abc import Iterable, Sequence
from typing import Final

from countersink.store.apply.control import Control, bump
from countersink.store.connection import Session
from countersink.store.counters import buckets
from countersink.store.counters.breakdowns import Dimensioned, empty_key, read_dimensioned
from countersink.store.counters.buckets import MAX_MINUTE
from countersink.store.counters.policies import load
from countersink.store.ledger import seals
from countersink.store.sql import label_of, label_time

MAX_NUMBER: Final = 99
"""Numbers of a counter's breakdowns, those that were removed included."""
MAX_LENGTH: Final = 61
"""Characters in the name of a counter with dimensions: its breakdowns' names have 3 more."""
NOTICE_MS: Final = 60_000
"""Milliseconds ahead, at the least, at which a breakdown begins of what was counted already: for
what producers count now, and clocks that are ahead."""


def removed(session: Session, counter: str) -> list[str]:
    """The names of a counter's breakdowns that were removed, and are to be deleted."""
    found = session.query(
        "SELECT name FROM counter WHERE breakdown_of = %s AND dimensions IS NULL ORDER BY name",
        (counter,),
    )
    return [name for (name,) in found]


def remove_all(session: Session, counter: str) -> None:
    """Let nothing be counted in a counter's breakdowns any more, in a transaction in which nobody
    counts.
    """
    session.execute("UPDATE counter SET dimensions = NULL WHERE breakdown_of = %s", (counter,))


def refuse_empty_key(session: Session, counter: str, key: str) -> None:
    """Check that a key is not that of the events which breakdowns hold too.

    Raises:
        ValueError: it is.
    """
    if key == "" and names_of(session, counter):
        raise empty_key(counter)


def declare(
    session: Session,
    counter: str,
    dimensions: tuple[str, ...] | None,
    breakdowns: tuple[tuple[str, ...], ...] | None,
    since: int,
) -> bool:
    """Declare dimensions and breakdowns of a counter, which has its row; whether anything changed.
    Breakdowns that are not named any more are removed.

    Args:
        session: in a transaction in which nobody counts.
        counter: its name.
        dimensions, breakdowns: what is wanted; None: as they are.
        since: Unix minutes from which on a new breakdown holds events; 0: it holds all.

    Raises:
        ValueError: it cannot be.
    """
    before = read_dimensioned(session, counter).get(counter, Dimensioned(counter, ()))
    there = {each.dimensions: each for each in before.breakdowns}
    names = before.dimensions if dimensions is None else dimensions
    wanted = tuple(there) if breakdowns is None else breakdowns
    _check(counter, names, wanted)
    if names != before.dimensions:
        session.execute(
            "UPDATE counter SET dimensions = %s WHERE name = %s",
            (",".join(names) or None, counter),
        )
    for gone in there.keys() - set(wanted):
        session.execute("UPDATE counter SET dimensions = NULL WHERE name = %s", (there[gone].name,))
    new = [each for each in wanted if each not in there]
    if new:
        _add(session, counter, new, since)
    return names != before.dimensions or set(wanted) != set(there)


def _check(counter: str, names: Sequence[str], breakdowns: Iterable[tuple[str, ...]]) -> None:
    if names and len(counter) > MAX_LENGTH:
        raise ValueError(
            f"{counter} has {len(counter)} characters, and a counter with dimensions at most"
            f" {MAX_LENGTH}: count under a shorter name"
        )
    for each in breakdowns:
        for name in each:
            if name not in names:
                raise ValueError(
                    f"the breakdown {','.join(each)} needs the dimension {name}: declare it as well"
                    " (--dimensions), or remove the breakdown (--breakdowns)"
                )


def _add(session: Session, counter: str, new: Sequence[tuple[str, ...]], since: int) -> None:
    ((last,),) = session.query("SELECT last_breakdown FROM counter WHERE name = %s", (counter,))
    last = int(last or 0)
    if last + len(new) > MAX_NUMBER:
        raise ValueError(
            f"{counter} has had {last} breakdowns, and there is no room for {len(new)} more: at"
            f" most {MAX_NUMBER} are possible, those that were removed included"
        )
    for number, dimensions in enumerate(new, last + 1):
        session.execute(
            "INSERT INTO counter (name, dimensions, breakdown_of, since, created)"
            " VALUES (%s, %s, %s, %s, UTC_TIMESTAMP(3))",
            (
                f"{counter}#{number}",
                ",".join(dimensions),
                counter,
                label_time(since * 60) if since else None,
            ),
        )
    session.execute(
        "UPDATE counter SET last_breakdown = %s WHERE name = %s", (last + len(new), counter)
    )


_COPIED: Final = "keep_days, max_keys, app_slots, keep_steps"
_POLICY: Final = "valid_from, time_zone, resolution, used_to, rolls"


def names_of(session: Session, counter: str) -> list[str]:
    """The names of all of a counter's breakdowns, those that are being deleted included."""
    found = session.query(
        "SELECT name FROM counter WHERE breakdown_of = %s ORDER BY name", (counter,)
    )
    return [name for (name,) in found]


def copy_settings(session: Session, counter: str, breakdown: str) -> None:
    """Give a breakdown the settings and policies of its counter; how far retention is with it stays
    as it is.
    """
    (values,) = session.query(f"SELECT {_COPIED} FROM counter WHERE name = %s", (counter,))
    assignments = ", ".join(f"{column} = %s" for column in _COPIED.split(", "))
    session.execute(f"UPDATE counter SET {assignments} WHERE name = %s", (*values, breakdown))
    wanted, there = (
        {
            int(number): policy
            for number, *policy in session.query(
                f"SELECT number, {_POLICY} FROM counter_policy WHERE counter = %s", (name,)
            )
        }
        for name in (counter, breakdown)
    )
    for number in there.keys() - wanted.keys():
        session.execute(
            "DELETE FROM counter_policy WHERE counter = %s AND number = %s", (breakdown, number)
        )
    for number, policy in wanted.items():
        if number not in there:
            session.execute(
                f"INSERT INTO counter_policy (counter, number, {_POLICY})"
                " VALUES (%s, %s, %s, %s, %s, %s, %s)",
                (breakdown, number, *policy),
            )
        elif policy != there[number]:
            assignments = ", ".join(f"{column} = %s" for column in _POLICY.split(", "))
            session.execute(
                f"UPDATE counter_policy SET {assignments} WHERE counter = %s AND number = %s",
                (*policy, breakdown, number),
            )


def remove_breakdowns(session: Session, control: Control, *, name: str) -> bool:
    """Let nothing be counted in a counter's breakdowns any more, while nobody is counting; whether
    there are any to be deleted.
    """
    there = names_of(session, name)
    sealed = [(each, seals.begin(session, each)) for each in there]
    remove_all(session, name)
    for each, difference in sealed:
        seals.renew(session, each, difference)
    if there:
        bump(session)
    return bool(there)


def first_event(session: Session, name: str, now_ms: int, *, used: bool) -> int:
    """The Unix minute from which on a new breakdown holds all that is counted: 0 where nothing was;
    else one that is still to come, behind the buckets of such times that were counted already.
    """
    if not used:
        return 0
    since = -(-(now_ms + NOTICE_MS) // 60_000)
    policies = load(session)
    beyond = session.query(
        "SELECT MAX(bucket) FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s"
        " AND bucket > %s",
        (name, label_time(now_ms // 1000 // 60 * 60 + buckets.MAX_POLICIES)),
    )
    if beyond[0][0] is not None:
        label = label_of(beyond[0][0])
        policy = policies.numbered(name, label)
        if policy.starts_at(label) > now_ms // 1000:
            since = max(since, policy.ends_at(label) // 60)
    return min(since, MAX_MINUTE)

"""What has to be known of a counter before its rows can be added up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from countersink.store.connection import Session
from countersink.store.errors import UnknownCounter
from countersink.store.keys import is_name
from countersink.store.periods import ONE_DAY, month_ends
from countersink.store.policies import DEFAULT, Policy, policy_of
from countersink.store.rollups import RolledUpDays
from countersink.store.views import View


@dataclass(frozen=True, slots=True)
class Shape:
    """A counter, as of one snapshot.

    Attributes:
        counter: its name, '' where it cannot be one: no row has it.
        known: somebody has made it, or something was counted, be it 0.
        policies: its policies, the earliest first; at least one.
        rolled: what of it is in months; None for nothing.
    """

    counter: str
    known: bool
    policies: tuple[Policy, ...]
    rolled: RolledUpDays | None

    def view(self, time_zone: str | None) -> View:
        """Its buckets in a time zone; ValueError where there is none of that name."""
        return View(self.counter, self.policies, time_zone)


def shape(session: Session, counter: str) -> Shape:
    """What is known of a counter; also of one that is not known."""
    name = _name(counter)
    if session.group is not None and name in session.group:
        return session.group.shape(name)
    rows = session.query(
        "SELECT EXISTS (SELECT 1 FROM counter_ledger WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter_slot WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter_month WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter WHERE name = %s),"
        " (SELECT rolled_up_to FROM counter WHERE name = %s),"
        " (SELECT MIN(bucket) FROM counter_month WHERE counter = %s),"
        " (SELECT MAX(bucket) FROM counter_month WHERE counter = %s),"
        " number, valid_from, time_zone, resolution, used_to"
        " FROM (SELECT 1) AS one LEFT JOIN counter_policy ON counter = %s"
        " ORDER BY valid_from, number",
        (name,) * 8,
    )
    known, up_to, first, last = rows[0][:4]
    policies = tuple(policy_of(counter, *row[4:]) for row in rows if row[4] is not None)
    rolled = None if first is None else _rolled(up_to, first, last)
    return Shape(name, bool(known), policies or (DEFAULT,), rolled)


def shapes(session: Session, names: Sequence[str]) -> dict[str, Shape]:
    """What is known of each of some counters, of which no query asks for one alone."""
    if not names:
        return {}
    inside = f"IN ({', '.join(['%s'] * len(names))})"
    up_to = dict(
        session.query(f"SELECT name, rolled_up_to FROM counter WHERE name {inside}", names)
    )
    months = {
        name: (first, last)
        for name, first, last in session.query(
            "SELECT counter, MIN(bucket), MAX(bucket) FROM counter_month FORCE INDEX (PRIMARY)"
            f" WHERE counter {inside} GROUP BY counter",
            names,
        )
    }
    policies: dict[str, list[Policy]] = {}
    for name, *columns in session.query(
        "SELECT counter, number, valid_from, time_zone, resolution, used_to FROM counter_policy"
        f" WHERE counter {inside} ORDER BY counter, valid_from, number",
        names,
    ):
        policies.setdefault(name, []).append(policy_of(name, *columns))
    known = {*up_to, *months}
    for table in ("counter_ledger", "counter_slot"):
        # Hardly any counter has rows, and none in the ledger: only these are looked up there.
        if left := [name for name in names if name not in known]:
            found = session.query(
                f"SELECT DISTINCT counter FROM {table} FORCE INDEX (PRIMARY)"
                f" WHERE counter IN ({', '.join(['%s'] * len(left))})",
                left,
            )
            known |= {name for (name,) in found}
    return {
        name: Shape(
            name,
            name in known,
            tuple(policies.get(name, ())) or (DEFAULT,),
            _rolled(up_to.get(name), *months[name]) if name in months else None,
        )
        for name in names
    }


def known_shape(session: Session, counter: str) -> Shape:
    """What is known of a counter.

    Raises:
        UnknownCounter: nothing.
    """
    found = shape(session, counter)
    if not found.known:
        raise UnknownCounter(f"nothing was ever counted as {counter!r}")
    return found


def rolled_up_to(
    session: Session,
    counter: str | None = None,
    visible: Callable[[str], bool] = lambda name: True,
) -> date | None:
    """The day before which days of a counter are in months, of all that are visible the latest such
    day; None where nothing is in months.
    """
    if counter is not None and session.group is not None and counter in session.group:
        rolled = session.group.shape(counter).rolled
        return None if rolled is None else rolled.up_to
    one, args = ("", ()) if counter is None else (" WHERE counter = %s", (_name(counter),))
    # A loose scan: of each counter its first month and its last are looked up.
    found = session.query(
        "SELECT counter, first, last, rolled_up_to FROM ("
        "SELECT counter, MIN(bucket) AS first, MAX(bucket) AS last"
        f" FROM counter_month FORCE INDEX (PRIMARY){one} GROUP BY counter"
        ") AS months LEFT JOIN counter ON name = counter",
        args,
    )
    return max(
        (_rolled(up_to, first, last).up_to for name, first, last, up_to in found if visible(name)),
        default=None,
    )


def counter_names(session: Session) -> list[str]:
    """The names of all counters that were made or counted, in order."""
    found = session.query(
        "SELECT DISTINCT counter FROM counter_ledger"
        " UNION SELECT counter FROM counter_slot FORCE INDEX (PRIMARY) GROUP BY counter"
        " UNION SELECT counter FROM counter_month FORCE INDEX (PRIMARY) GROUP BY counter"
        " UNION SELECT name FROM counter"
    )
    return sorted(name for (name,) in found)


def shaped_names(session: Session) -> set[str]:
    """The counters whose rows do not simply add up by UTC day: that have policies, or months."""
    found = session.query(
        "SELECT DISTINCT counter FROM counter_policy"
        " UNION SELECT counter FROM counter_month FORCE INDEX (PRIMARY) GROUP BY counter"
    )
    return {name for (name,) in found}


def _rolled(up_to: date | None, first: datetime, last: datetime) -> RolledUpDays:
    """What is in months from the first to the last, with the day that is on record.

    Whatever is on record, no row is left out of a total: a month for which there is no such day, or
    an earlier one, may hold any of its days.
    """
    if up_to is None or up_to <= last.date():
        last_day = month_ends(last.date())
        up_to = last_day if last_day == date.max else last_day + ONE_DAY
    return RolledUpDays(up_to, first.date(), last.date())


def _name(counter: str) -> str:
    """``counter``; '' for what cannot be a counter's name, which is as unknown.

    The column would take 'c ' for 'c': it is compared with blanks added at the end.
    """
    return counter if is_name(counter) else ""

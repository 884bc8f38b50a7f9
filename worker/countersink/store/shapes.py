"""What has to be known of a counter before its rows can be added up."""

import re
from dataclasses import dataclass
from datetime import date
from typing import Final, cast

from countersink.store.connection import Session
from countersink.store.errors import UnknownCounter
from countersink.store.policies import DEFAULT, Policy, policy_of
from countersink.store.rollups import RolledUpDays
from countersink.store.views import View

_COUNTER: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


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
    rows = session.query(
        "SELECT EXISTS (SELECT 1 FROM counter_ledger WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter_slot WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter_month WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter WHERE name = %s),"
        " (SELECT rolled_up_to FROM counter WHERE name = %s),"
        " number, valid_from, time_zone, resolution, used_to"
        " FROM (SELECT 1) AS one LEFT JOIN counter_policy ON counter = %s"
        " ORDER BY valid_from, number",
        (name,) * 6,
    )
    known, up_to = rows[0][:2]
    policies = tuple(policy_of(counter, *row[2:]) for row in rows if row[2] is not None)
    rolled = None if up_to is None else _rolled(session, name, up_to)
    return Shape(name, bool(known), policies or (DEFAULT,), rolled)


def known_shape(session: Session, counter: str) -> Shape:
    """What is known of a counter.

    Raises:
        UnknownCounter: nothing.
    """
    found = shape(session, counter)
    if not found.known:
        raise UnknownCounter(f"nothing was ever counted as {counter!r}")
    return found


def rolled_up_to(session: Session, counter: str | None = None) -> date | None:
    """The day before which days of a counter are in months, of all counters the latest such day;
    None where nothing is in months.
    """
    one, args = ("", ()) if counter is None else (" AND name = %s", (_name(counter),))
    found = session.query(
        f"SELECT name, rolled_up_to FROM counter WHERE rolled_up_to IS NOT NULL{one}"
        " ORDER BY rolled_up_to DESC",
        args,
    )
    for name, up_to in found:
        # One by one: as an EXISTS in the query above it would be a scan of all months.
        if session.query("SELECT 1 FROM counter_month WHERE counter = %s LIMIT 1", (name,)):
            return cast(date, up_to)
    return None


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
        " UNION SELECT name FROM counter WHERE rolled_up_to IS NOT NULL"
    )
    return {name for (name,) in found}


def _rolled(session: Session, name: str, up_to: date) -> RolledUpDays | None:
    ((first, last),) = session.query(
        "SELECT MIN(bucket), MAX(bucket) FROM counter_month WHERE counter = %s", (name,)
    )
    return None if first is None else RolledUpDays(up_to, first.date(), last.date())


def _name(counter: str) -> str:
    """``counter``; '' for what cannot be a counter's name, which is as unknown.

    The column would take 'c ' for 'c': it is compared with blanks added at the end.
    """
    return counter if _COUNTER.fullmatch(counter) else ""

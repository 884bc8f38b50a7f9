"""All counters at a glance: what each has in all, and its last days."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Final

from countersink.reads.pending import Pending
from countersink.store import buckets, series, totals_sql
from countersink.store.clock import NOW_MS
from countersink.store.connection import Session
from countersink.store.errors import InexactZone, RolledUp, UnknownZone
from countersink.store.groups import SIZE, grouped
from countersink.store.policies import DEFAULT, Policy, load
from countersink.store.shapes import counter_names, shape, shaped_names
from countersink.store.sums import marks, parts

MAX_DAYS: Final = 92
"""Days at a glance, at most."""
_COUNTERS_PER_QUERY: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """Which counters are looked at, and how much of them.

    Attributes:
        search: a part of their names; empty for all.
        after: only names after this one, in order of bytes; empty for all.
        limit: so many of them at most.
        days: last days, today's included, of each counter's own time zone; 0 for none.
        totals: whether all that was ever counted is asked for.
        visible: tells which names may be seen.
    """

    search: str = ""
    after: str = ""
    limit: int = 100
    days: int = 14
    totals: bool = True
    visible: Callable[[str], bool] = field(default=lambda name: True, repr=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be answered.

        Raises:
            ValueError: no counters, or too many days, are asked for.
        """
        if self.limit < 1:
            raise ValueError("ask for 1 counter or more")
        if not 0 <= self.days <= MAX_DAYS:
            raise ValueError(f"ask for 0 to {MAX_DAYS} days")


@dataclass(slots=True, kw_only=True)
class Line:
    """One counter at a glance.

    Attributes:
        counter: its name.
        time_zone, resolution: of the policy in force now.
        total: all that was ever counted; None where it was not asked for.
        days: (day, total) of the last days, today's as the last; None where its buckets do not
            tell, the days are in months by now, or this machine does not know its time zone.
    """

    counter: str
    time_zone: str
    resolution: str
    total: int | None = None
    days: list[tuple[date, int]] | None = None


@dataclass(slots=True, kw_only=True)
class Overview:
    """What a glance saw.

    Attributes:
        lines: by name.
        counters: how many counters there are, before ``after`` and ``limit``.
        more: there are others after the last line.
    """

    lines: list[Line]
    counters: int
    more: bool


def overview(session: Session, pending: Pending, glance: Glance) -> Overview:
    """Counters by name with their totals and last days, in the session's snapshot.

    Raises:
        StoreError: as any query.
    """
    names = sorted(
        name
        for name in {*counter_names(session), *pending.counters}
        if glance.search in name and glance.visible(name)
    )
    page = [name for name in names if name > glance.after]
    more = len(page) > glance.limit
    page = page[: glance.limit]
    ((now_ms,),) = session.query(f"SELECT {NOW_MS}")
    policies = load(session)
    in_force = {name: policies.at(name, int(now_ms) // 60_000) for name in page}
    lines = [
        Line(counter=name, time_zone=in_force[name].time_zone, resolution=in_force[name].resolution)
        for name in page
    ]
    totals = _totals(session, page, pending) if glance.totals else {}
    days = _days(session, in_force, pending, glance.days, int(now_ms) // 1000)
    for line in lines:
        line.total = totals.get(line.counter)
        line.days = days.get(line.counter)
    return Overview(lines=lines, counters=len(names), more=more)


def _totals(session: Session, names: Sequence[str], pending: Pending) -> dict[str, int]:
    found = totals_sql.ledger_totals(session, names)
    for name, amount in pending.by_counter().items():
        if name in found:
            found[name] += amount
    return found


def _days(
    session: Session, in_force: dict[str, Policy], pending: Pending, number: int, now: int
) -> dict[str, list[tuple[date, int]] | None]:
    """The last days of each counter; None where they cannot be told."""
    if number == 0:
        return {}
    shaped = shaped_names(session)
    added: dict[str, dict[int, int]] = {}
    for (counter, label, _), amount in pending.cells.items():
        own = added.setdefault(counter, {})
        own[label] = own.get(label, 0) + amount
    plain = [name for name in in_force if name not in shaped]
    found: dict[str, list[tuple[date, int]] | None] = {}
    found |= _plain(session, plain, added, _last(number, DEFAULT.time_zone, now))
    for some in parts(sorted(in_force.keys() & shaped), SIZE):
        with grouped(session, some):
            for name in some:
                try:
                    days = _last(number, in_force[name].known_zone(), now)
                    found[name] = series.daily(
                        session,
                        name,
                        start=days[0],
                        end=days[-1],
                        added=_within(session, name, days, added.get(name, {})),
                        known=True,
                    )
                except (InexactZone, RolledUp, UnknownZone):
                    found[name] = None
    return found


def _plain(
    session: Session,
    names: Iterable[str],
    added: dict[str, dict[int, int]],
    days: Sequence[date],
) -> dict[str, list[tuple[date, int]]]:
    """Of counters that have counted UTC days all the time: many of them in one query."""
    labels = {buckets.day_label(day): day for day in days}
    first, last = min(labels), max(labels)
    sums = {name: dict.fromkeys(days, 0) for name in names}
    for some in parts(list(sums), _COUNTERS_PER_QUERY):
        rows = session.query(
            "SELECT counter, bucket, SUM(amount) FROM counter_slot FORCE INDEX (PRIMARY)"
            f" WHERE counter IN ({marks(some)}) AND bucket >= %s AND bucket <= %s"
            " GROUP BY counter, bucket",
            (*some, buckets.label_time(first), buckets.label_time(last)),
        )
        for name, bucket, amount in rows:
            sums[name][bucket.date()] += int(amount)
    for name, own in added.items():
        for label, amount in own.items():
            if name in sums and label in labels:
                sums[name][labels[label]] += amount
    return {name: list(own.items()) for name, own in sums.items()}


def _within(
    session: Session, name: str, days: Sequence[date], added: dict[int, int]
) -> dict[int, int]:
    """Of amounts by label those of the days."""
    if not added:
        return {}
    ranges = shape(session, name).view(None).ranges(days[0], days[-1]) or ()
    return {label: amount for label, amount in added.items() if any(label in one for one in ranges)}


def _last(number: int, time_zone: str, now: int) -> list[date]:
    today = buckets.date_at(time_zone, now)
    return [today - timedelta(days=back) for back in reversed(range(number))]

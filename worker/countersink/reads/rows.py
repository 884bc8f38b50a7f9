"""All rows of a counter's totals, one by one: for exports, whose memory does not grow with them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Final, TypedDict

from countersink.store import periods, series, totals_sql
from countersink.store.connection import Session
from countersink.store.periods import month_ends
from countersink.store.ranges import check_days
from countersink.store.shapes import Shape, known_shape
from countersink.store.sums import Scope, bucket_labels, keyed

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "day": ("counter", "day", "total"),
    "hour": ("counter", "hour", "total"),
    "month": ("counter", "month", "total"),
    "key": ("counter", "key", "total"),
    "key-day": ("counter", "day", "key", "total"),
    "key-month": ("counter", "month", "key", "total"),
    "total": ("counter", "total"),
}
"""What each layout has."""

Value = str | int | date | datetime
"""A counter and a key are str, a total is int, a day is a date, a month the date of its first day,
an hour an aware datetime."""


class _Given(TypedDict):
    keys: Sequence[str] | None
    start: date | None
    end: date | None
    time_zone: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of a counter is wanted; see :class:`countersink.reads.query.Query`.

    Attributes:
        by: a key of :data:`COLUMNS`.
        keys: these keys only; None for all.
        start, end: days, both inclusive; None for where the data begins or ends.
        time_zone: whose days, hours and months; None for the counter's own.
    """

    by: str
    keys: Sequence[str] | None = None
    start: date | None = None
    end: date | None = None
    time_zone: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be answered.

        Raises:
            ValueError: no such layout, or a range that ends before it begins.
        """
        if self.by not in COLUMNS:
            raise ValueError(f"no rows by {self.by!r}: there are {', '.join(COLUMNS)}")
        check_days(self.start, self.end)


def rows(session: Session, counter: str, wanted: Wanted) -> Iterator[tuple[Value, ...]]:
    """The rows of one counter, as wide as its columns, in the session's snapshot.

    Days, hours and months ascending, keys in the order of their bytes. Days, hours and months
    without counts are there as 0, but not by key. Series of days begin behind what is rolled up to
    months, where no ``start`` says otherwise.

    Args:
        session: in a snapshot; nothing else can be asked of it until the last row.
        counter: its name.
        wanted: what of it.

    Raises:
        UnknownCounter, InexactZone, RolledUp, StoreError: as
            :mod:`countersink.store.totals_sql`.
        ValueError: no such time zone; a series that is too long.
    """
    given: _Given = {
        "keys": wanted.keys,
        "start": wanted.start,
        "end": wanted.end,
        "time_zone": wanted.time_zone,
    }
    found: Iterator[tuple[Value, ...]]
    if wanted.by == "day":
        found = iter(series.daily(session, counter, **given))
    elif wanted.by == "hour":
        found = iter(series.hourly(session, counter, **given))
    elif wanted.by == "month":
        found = iter(series.monthly(session, counter, **given))
    elif wanted.by == "total":
        found = iter([(totals_sql.total(session, counter, **given),)])
    else:
        found = _by_key(session, known_shape(session, counter), wanted)
    for row in found:
        yield counter, *row


def _by_key(session: Session, shape: Shape, wanted: Wanted) -> Iterator[tuple[Value, ...]]:
    view = shape.view(wanted.time_zone)
    if wanted.by == "key":
        yield from keyed(session, Scope.of(shape, view, wanted.start, wanted.end), wanted.keys)
    elif wanted.by == "key-day":
        begins = wanted.start
        if shape.rolled is not None:
            begins = shape.rolled.require_days(view, wanted.start, wanted.end)
        unrolled = replace(shape, rolled=None)
        labels = bucket_labels(session, Scope.of(unrolled, view, begins, wanted.end))
        days = sorted({view.day(label) for label in labels})
        view.require_days(days)
        for day in days:
            scope = Scope.of(unrolled, view, day, day)
            for key, total in keyed(session, scope, wanted.keys):
                yield day, key, total
    else:
        if shape.rolled is not None:
            shape.rolled.require_own(view)
        for month, first, last in _months(session, shape, wanted):
            scope = Scope.of(shape, view, first, last)
            for key, total in keyed(session, scope, wanted.keys):
                yield month, key, total


def _months(
    session: Session, shape: Shape, wanted: Wanted
) -> Iterator[tuple[date, date | None, date | None]]:
    """(month, first day, last day) of the months that can have rows."""
    span = totals_sql.span(session, shape.counter, time_zone=wanted.time_zone)
    if span is None:
        return
    first, last = max(span[0], wanted.start or date.min), min(span[1], wanted.end or date.max)
    if last < first:
        return
    for month in periods.months(first, last):
        # The edges as they were asked for: whether a range may begin within a month that is rolled
        # up is for the range to say.
        begin = month if wanted.start is None else max(month, wanted.start)
        end = month_ends(month) if wanted.end is None else min(month_ends(month), wanted.end)
        yield month, begin, end


def text(value: Value, column: str) -> str | int:
    """A value as JSON and CSV have it: ``2026-11-21``, ``2026-11-21T08:00+01:00``, ``2026-11``."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="minutes")
    if isinstance(value, date):
        return value.isoformat()[:7] if column == "month" else value.isoformat()
    return value

"""Rows of ``countersink export``, one by one: its layouts, names of columns (``COLUMNS``) and texts
of days and months."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Final

from countersink.runtime.limits import text_bytes
from countersink.store.connection import Session
from countersink.store.counters import buckets
from countersink.store.counters.buckets import month_ends
from countersink.store.totals import series, sums
from countersink.store.totals.selection import Selection
from countersink.store.totals.shapes import BreakdownView, known_shape, view_of
from countersink.store.totals.sums import Scope, bucket_labels, keyed
from countersink.store.totals.views import View, intersected
from countersink.store.totals.windows import settled

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "day": ("counter", "day", "total"),
    "hour": ("counter", "hour", "total"),
    "minute": ("counter", "minute", "total"),
    "month": ("counter", "month", "total"),
    "key": ("counter", "key", "total"),
    "key-day": ("counter", "day", "key", "total"),
    "key-month": ("counter", "month", "key", "total"),
    "total": ("counter", "total"),
}
"""What each layout has."""

DIMENSIONS: Final = "dimensions"
"""The layout of totals by dimensions."""

_SERIES: Final[Mapping[str, Callable[[Session, Selection], Iterable[tuple[date, int]]]]] = {
    "day": series.daily,
    "hour": series.hourly,
    "minute": series.minutely,
    "month": series.monthly,
}

Value = str | int | date | datetime
"""A counter and a key are str, a total is int, a day is a date, a month the date of its first day,
an hour an aware datetime."""


def columns(by: str, dimensions: Sequence[str] = ()) -> tuple[str, ...]:
    """The columns of a layout; of that by dimensions, which they are.

    Raises:
        ValueError: there is no such layout.
    """
    if by == DIMENSIONS:
        return ("counter", *dimensions, "total")
    if by not in COLUMNS:
        raise ValueError(f"no rows by {by!r}: there are {', '.join(COLUMNS)}")
    return COLUMNS[by]


def rows(
    session: Session, by: str, wanted: Selection, dimensions: Sequence[str] = ()
) -> Iterator[tuple[Value, ...]]:
    """The rows of one counter, as wide as its columns, in the session's snapshot.

    Days, hours and months ascending, keys in the order of their bytes. Days, hours and months
    without counts are there as 0, but not by key.

    Args:
        session: in a snapshot; nothing else can be asked of it until the last row.
        by: a key of :data:`COLUMNS`, or ``dimensions``.
        wanted: of which counter, and what of it.
        dimensions: those that the rows are by.

    Raises:
        UnknownCounter, InexactZone, RolledUp, StoreError: as
            :mod:`countersink.store.totals.sums`.
        ValueError: no such time zone; a series that is too long.
    """
    assert wanted.counter is not None
    found: Iterator[tuple[Value, ...]]
    if by == DIMENSIONS or wanted.where:
        if wanted.keys is not None or by.startswith("key"):
            raise ValueError("events with dimensions have no keys: leave out what chooses these")
        view = view_of(session, wanted, dimensions)
        with view.named():
            if by == DIMENSIONS:
                found = _by_dimensions(session, view)
            else:
                found = (row[1:] for row in rows(session, by, view.selection))
            for row in found:
                yield view.counter, *row
        return
    wanted = settled(session, wanted)
    assert wanted.counter is not None
    if by in _SERIES:
        found = iter(_SERIES[by](session, wanted))
    elif by == "total":
        found = iter([(sums.total(session, wanted),)])
    else:
        found = _by_key(session, by, wanted)
    for row in found:
        yield wanted.counter, *row


def _by_dimensions(session: Session, view: BreakdownView) -> Iterator[tuple[Value, ...]]:
    """(values…, total) in the order of the values' bytes."""
    selection = settled(session, view.selection)
    own = known_shape(session, selection.counter).view(selection.time_zone)
    scope = Scope.of(session, own, selection.start, selection.end)
    amounts = keyed(session, scope, selection.keys)
    if view.whole:
        for key, total in amounts:
            yield *view.values(key), total
    else:
        for values, total in sorted(view.projected(list(amounts)), key=_values_bytes):
            yield *values, total


def _values_bytes(row: tuple[tuple[str, ...], int]) -> list[bytes]:
    return [text_bytes(value) for value in row[0]]


def _by_key(session: Session, by: str, wanted: Selection) -> Iterator[tuple[Value, ...]]:
    view = known_shape(session, wanted.counter).view(wanted.time_zone)
    begins = wanted.start
    if by == "key-day":
        begins = series.begins(session, view, wanted, "day")
    whole = Scope.of(session, view, begins, wanted.end)
    if by == "key":
        yield from keyed(session, whole, wanted.keys)
    elif by == "key-day":
        days = sorted({view.day(label) for label in bucket_labels(session, whole)})
        view.require_days(session, days)
        for day in days:
            scope = _within(session, view, whole, wanted, day, day)
            for key, total in keyed(session, scope, wanted.keys):
                yield day, key, total
    else:
        for month in _months(session, view, wanted):
            scope = _within(session, view, whole, wanted, month, month_ends(month))
            for key, total in keyed(session, scope, wanted.keys):
                yield month, key, total


def _months(session: Session, view: View, wanted: Selection) -> Iterator[date]:
    """The months that can have rows."""
    span = sums.span(session, Selection(view.counter, time_zone=wanted.time_zone))
    if span is None:
        return
    first, last = span
    if wanted.start is not None:
        first = max(first, view.first_day(wanted.start))
    if wanted.end is not None:
        last = min(last, view.final_day(wanted.end))
    if first <= last:
        yield from buckets.months(first, last)


def _within(
    session: Session, view: View, whole: Scope, wanted: Selection, first: date, last: date
) -> Scope:
    """What a range has of the days from ``first`` to ``last``.

    Raises:
        InexactZone, RolledUp: of these days one that the range goes beyond begins or ends within a
            bucket.
    """
    begins_before = wanted.start is None or view.first_day(wanted.start) < first
    ends_behind = wanted.end is None or view.final_day(wanted.end) > last
    view.require_range(session, first if begins_before else None, last if ends_behind else None)
    return Scope.within(view, intersected(view.ranges(first, last), whole.ranges))


def text(value: Value, column: str) -> str | int:
    """A value as JSON and CSV have it: ``2026-11-21``, ``2026-11-21T08:00+01:00``, ``2026-11``."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="minutes")
    if isinstance(value, date):
        return value.isoformat()[:7] if column == "month" else value.isoformat()
    return value

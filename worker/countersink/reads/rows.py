"""Rows of ``countersink export``, one by one: its layouts, names of columns (``COLUMNS``) and texts
of days and months."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Final

from countersink.runtime.limits import text_bytes
from countersink.store.connection import Session
from countersink.store.counters import buckets
from countersink.store.counters.buckets import month_ends
from countersink.store.totals import series, sums
from countersink.store.totals.selection import Selection
from countersink.store.totals.shapes import BreakdownView, Shape, known_shape, view_of
from countersink.store.totals.sums import Scope, bucket_labels, keyed
from countersink.store.totals.views import View
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
        found = _by_key(session, known_shape(session, wanted.counter), by, wanted)
    for row in found:
        yield wanted.counter, *row


def _by_dimensions(session: Session, view: BreakdownView) -> Iterator[tuple[Value, ...]]:
    """(values…, total) in the order of the values' bytes."""
    selection = settled(session, view.selection)
    shape = known_shape(session, selection.counter)
    scope = Scope.of(shape, shape.view(selection.time_zone), selection.start, selection.end)
    amounts = keyed(session, scope, selection.keys)
    if view.whole:
        for key, total in amounts:
            yield *view.values(key), total
    else:
        for values, total in sorted(view.projected(list(amounts)), key=_values_bytes):
            yield *values, total


def _values_bytes(row: tuple[tuple[str, ...], int]) -> list[bytes]:
    return [text_bytes(value) for value in row[0]]


def _by_key(
    session: Session, shape: Shape, by: str, wanted: Selection
) -> Iterator[tuple[Value, ...]]:
    view = shape.view(wanted.time_zone)
    if by == "key":
        yield from keyed(session, Scope.of(shape, view, wanted.start, wanted.end), wanted.keys)
    elif by == "key-day":
        begins = wanted.start
        if shape.rolled is not None:
            begins = shape.rolled.require_days(
                view, wanted.start, wanted.end, unrolled=wanted.unrolled
            )
        unrolled = replace(shape, rolled=None)
        labels = bucket_labels(session, Scope.of(unrolled, view, begins, wanted.end))
        days = sorted({view.day(label) for label in labels})
        view.require_days(days)
        for day in days:
            scope = Scope.of(unrolled, view, *_within(view, begins, wanted.end, day, day))
            for key, total in keyed(session, scope, wanted.keys):
                yield day, key, total
    else:
        if shape.rolled is not None:
            shape.rolled.require_own(view)
        for month, first, last in _months(session, shape, wanted):
            scope = Scope.of(shape, view, first, last)
            for key, total in keyed(session, scope, wanted.keys):
                yield month, key, total


def _months(session: Session, shape: Shape, wanted: Selection) -> Iterator[tuple[date, date, date]]:
    """(month, first day, last day) of the months that can have rows."""
    span = sums.span(session, Selection(shape.counter, time_zone=wanted.time_zone))
    if span is None:
        return
    view = shape.view(wanted.time_zone)
    first, last = span
    if wanted.start is not None:
        first = max(first, view.first_day(wanted.start))
    if wanted.end is not None:
        last = min(last, view.final_day(wanted.end))
    if last < first:
        return
    for month in buckets.months(first, last):
        # The edges as they were asked for: whether a range may begin within a month that is rolled
        # up is for the range to say.
        yield month, *_within(view, wanted.start, wanted.end, month, month_ends(month))


def _within(
    view: View, start: date | None, end: date | None, first: date, last: date
) -> tuple[date, date]:
    """What a range has of the days from ``first`` to ``last``: an edge of it where that lies in
    them.
    """
    begin, finish = first, last
    if start is not None and view.first_day(start) >= first:
        begin = start
    if end is not None and view.final_day(end) <= last:
        finish = end
    return begin, finish


def text(value: Value, column: str) -> str | int:
    """A value as JSON and CSV have it: ``2026-11-21``, ``2026-11-21T08:00+01:00``, ``2026-11``."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="minutes")
    if isinstance(value, date):
        return value.isoformat()[:7] if column == "month" else value.isoformat()
    return value

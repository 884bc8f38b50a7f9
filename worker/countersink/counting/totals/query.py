"""One question for totals and its answer (``Query``, ``Answer``), for Python, ``countersink
totals``, ``export`` and ``/v1``: what rows are by with their columns (``COLUMNS``), order of keys,
texts of days and times, and what limits an answer. Windows that end now (``--last 24h``), the
windows before them, and the errors where a counter's buckets do not tell.

A window of minutes or hours is made of whole buckets: that which is open now is the last one, and
the first begins so long before its end. So there is no guess in it, and it moves with the buckets:
by the minute, the quarter or the hour. Where it begins among buckets that are rolled up to wider
ones, it is made of quarters or hours, if no bucket goes beyond them. A window of days is of whole
days, today's included.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from countersink.counting.counters import buckets
from countersink.counting.counters.buckets import FINER, MINUTES, ONE_DAY
from countersink.counting.counters.catalog import Scheme
from countersink.counting.errors import InexactZone, RolledUp
from countersink.counting.totals.selection import Last, Selection
from countersink.counting.totals.series import UNITS
from countersink.counting.totals.snapshot import Snapshot
from countersink.counting.totals.views import View
from countersink.runtime.dimensions import UNIQUE_COLUMNS, check_name
from countersink.runtime.texts import iso

DIMENSIONS: Final = "dimensions"
"""What rows are by that are by dimensions."""
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    **{unit: (unit,) for unit in UNITS},
    "key": ("key",),
    "counter": ("counter",),
    "total": (),
}
"""What rows may be by, beside dimensions, and the columns for that."""
EXPORTED: Final[Mapping[str, tuple[str, ...]]] = {
    **{by: columns for by, columns in COLUMNS.items() if by != "counter"},
    "key-day": ("day", "key"),
    "key-month": ("month", "key"),
}
"""The same of rows that are read one by one (``Query.streamed``)."""
By = tuple[str, tuple[str, ...]]
"""``Query.by`` and ``Query.dimensions``."""
Row = tuple[Any, ...]
"""A counter and a key are str, a total is int, a day is a date, a month the date of its first day,
an hour or minute an aware datetime; a previous total may be None."""


def read_by(text: str, words: Iterable[str] = COLUMNS) -> By:
    """What rows are by: one of some words, or dimensions, such as ``page,country``.

    Raises:
        ValueError: neither.
    """
    if text in words:
        return text, ()
    names = text.split(",")
    try:
        for name in names:
            check_name(name)
    except ValueError as error:
        raise ValueError(
            f"{text[:80]!r}: one of {', '.join(words)}, or dimensions of the counter, such as"
            f" page,country ({error})"
        ) from None
    if len(set(names)) != len(names):
        raise ValueError(f"{text[:80]!r}: name each dimension once")
    return DIMENSIONS, tuple(names)


def read_where(text: str) -> tuple[str, str]:
    """(dimension, value) of ``country=DE``.

    Raises:
        ValueError: it is not so.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text[:80]!r}: give a dimension and its value, such as country=DE")
    return check_name(name), value


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A range as it was settled.

    Attributes:
        start, end: days, both inclusive, or times, from the one to before the other.
    """

    start: date
    end: date

    def document(self) -> dict[str, str]:
        """Both ends as JSON has them: days, or times in UTC."""
        return {
            name: iso(each, "minutes") for name, each in (("from", self.start), ("to", self.end))
        }

    @property
    def before(self) -> "TimeWindow | None":
        """That of the same length which ends where this one begins; None: it would begin before
        all times that can be asked for.
        """
        start, end = self.start, self.end
        if isinstance(start, datetime) and isinstance(end, datetime):
            length = end - start
            return TimeWindow(start - length, start) if start - _FIRST >= length else None
        days = end - start + ONE_DAY
        return TimeWindow(start - days, start - ONE_DAY) if start - date.min >= days else None


@dataclass(frozen=True, slots=True)
class Query:
    """A question for totals.

    Attributes:
        selection: which counts the answer is of.
        by: a key of :data:`COLUMNS`, or :data:`DIMENSIONS`.
        dimensions: what the rows are by, where ``by`` says so, in this order.
        top: at most so many keys or counters (of each counter).
        most: where ``top`` is not given, so many keys or counters; the answer says if it leaves any
            out. None for all.
        max_rows: an answer of more rows is refused; None for any.
        also: with ``by="key"``, ranges of days: what each key has in these, too, is in ``also`` of
            its row, None where that cannot be told.
        against_previous: with a range that has both ends, or the last so many: what each row but
            one of a series had in the window of the same length before is its ``previous``, None
            where that cannot be told.
        include_pending: add what is still in the queue.
        unique: how many different members there are, instead of how often they were counted.
        strict: all that was asked for is told, or it is an error.
        streamed: for :func:`countersink.counting.totals.answer.rows` alone: keys, and values of
            dimensions, come in the order of their bytes, one by one as the server sends them, all
            of them; ``by`` is a key of :data:`EXPORTED`, or :data:`DIMENSIONS`.

    Raises:
        ValueError: there is nothing to hold against; or it asks for what does not go together.
    """

    selection: Selection
    _: KW_ONLY
    by: str
    dimensions: tuple[str, ...] = ()
    top: int | None = None
    most: int | None = None
    max_rows: int | None = None
    also: Sequence[tuple[date, date]] = ()
    against_previous: bool = False
    include_pending: bool = False
    unique: bool = False
    strict: bool = False
    streamed: bool = False

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        for why in self._refusals():
            raise ValueError(why)

    def _refusals(self) -> Iterator[str]:
        selection, by = self.selection, self.by
        several = selection.counter is None and not self.streamed
        if by not in (*(EXPORTED if self.streamed else COLUMNS), DIMENSIONS):
            yield f"no rows by {by!r}"
        if self.top is not None and self.top < 1:
            yield "ask for 1 key or more"
        if self.top is not None and by not in ("key", "counter", DIMENSIONS):
            yield f"the largest are keys, counters or values of dimensions, not {by}s"
        if self.unique:
            for asked, what in (
                (several or by == "counter", "of several counters"),
                (self.include_pending, "of what is still in the queue"),
                (self.against_previous, "of the previous window"),
                (bool(self.also), "of other days in the same answer"),
            ):
                if asked:
                    yield f"different members are not told {what}"
        if self.against_previous and by in UNITS:
            yield f"the previous window is of keys, counters or totals, not of {by}s"
        if self.against_previous and selection.last is None and window_of(selection) is None:
            yield (
                "the previous window is one of the same length: give the last so many, or a range"
                " that has both ends"
            )
        if self.dimensional and several:
            yield "totals by dimensions are of one counter: name it"
        if self.dimensional and selection.keys is not None:
            yield "choose by keys, or by the values of dimensions (where), not by both"
        if self.dimensional and by.startswith("key"):
            yield (
                "events with dimensions have no keys: ask by day, hour, minute, month, total, or"
                " by dimensions"
            )

    @property
    def dimensional(self) -> bool:
        """Whether a breakdown answers."""
        return self.by == DIMENSIONS or bool(self.selection.where)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the answer, in order."""
        named = {**COLUMNS, **EXPORTED}.get(self.by, self.dimensions)
        several = self.selection.counter is None and self.by != "counter"
        return (
            *(("counter",) if several or self.streamed else ()),
            *named,
            "total",
            *(("previous",) if self.against_previous else ()),
            *(("also",) if self.also else ()),
            *(UNIQUE_COLUMNS if self.unique else ()),
        )


@dataclass(slots=True)
class Answer:
    """The answer to a query: columns, rows, and what limits it.

    Attributes:
        columns: the names of the members of each row.
        rows: in order: days, hours and months ascending; keys and counters by total, largest first,
            then by name.
        complete_up_to: everything that reached Redis before it is in the rows; None if not known.
        unknown_because: why Redis did not tell.
        pending: entries included that were still in the queue.
        rolled_up_to: the first day of which everything can still be told, those before it are in
            months; of several counters the latest; None where nothing is in months.
        since: the time from which on the breakdown that answers holds the events, where the range
            begins before it.
        told_from: the day, or time, from which on there are single days, hours or minutes, where
            some of those that were asked for are not in the rows, as they are rolled up to wider
            buckets; of several counters the latest.
        truncated: there are more keys or counters than the largest, which are in the rows, or more
            days, hours or months than those, as many as may be, with most of the counts.
        window: the range that the last so many meant; None where that was not asked, or of several
            counters.
    """

    columns: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    complete_up_to: datetime | None = None
    unknown_because: Exception | None = None
    pending: int = 0
    rolled_up_to: date | None = None
    since: datetime | None = None
    told_from: date | None = None
    truncated: bool = False
    window: TimeWindow | None = None

    def documents(self) -> Iterator[dict[str, Any]]:
        """The rows as JSON and CSV have them."""
        return documents(self.columns, self.rows)

    def limits(self) -> dict[str, Any]:
        """What limits the answer, as JSON has it; what there may not be is there only if it is."""
        found: dict[str, Any] = {
            "complete_up_to": iso(self.complete_up_to),
            "rolled_up_to": iso(self.rolled_up_to),
            "truncated": self.truncated,
        }
        if self.since is not None:
            found["since"] = iso(self.since)
        if self.told_from is not None:
            found["told_from"] = iso(self.told_from)
        if self.window is not None:
            found["window"] = self.window.document()
        return found


def documents(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Rows as JSON and CSV have them."""
    dated = any(column in UNITS for column in columns)
    for row in rows:
        found = dict(zip(columns, row, strict=True))
        yield {name: text(value, name) for name, value in found.items()} if dated else found


def text(value: Any, column: str) -> Any:
    """A value as JSON and CSV have it: ``2026-11-21``, ``2026-11-21T08:00+01:00``, ``2026-11``."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="minutes")
    if isinstance(value, date):
        return value.isoformat()[:7] if column == "month" else value.isoformat()
    return value


_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)


def settled(
    snapshot: Snapshot, selection: Selection, last: Last, *, before: bool = False
) -> Selection:
    """The selection of one counter, with the range that its ``last`` means instead.

    Args:
        snapshot: that is asked; now is the time of its server.
        selection: of one counter.
        last: its window.
        before: the window before it is asked for, too.

    Raises:
        UnknownCounter: there is no such counter.
        InexactZone: its buckets do not make up such a window.
        Refused: this machine does not know its time zone, and days are asked for.
    """
    view = snapshot.selected(selection)
    window = _last(view, last, snapshot.now_ms // 60_000, before=before)
    return replace(selection, last=None, start=window.start, end=window.end)


def window_of(selection: Selection) -> TimeWindow | None:
    """The range of a selection that was settled, if it has both ends of one kind."""
    start, end = selection.start, selection.end
    if start is None or end is None or isinstance(start, datetime) != isinstance(end, datetime):
        return None
    return TimeWindow(start, end)


def _last(view: View, last: Last, minute: int, *, before: bool) -> TimeWindow:
    if last.days:
        today = buckets.date_at(view.zone, minute * 60)
        return TimeWindow(today - timedelta(days=last.minutes // 1440 - 1), today)
    narrowest = MINUTES[view.scheme.resolution]
    if view.scheme.resolution == "day" or last.minutes % narrowest:
        raise _inexact(view.scheme, last)
    windows = []
    for width in (MINUTES[resolution] for resolution in FINER):
        if width >= narrowest and last.minutes % width == 0:
            end = (minute // width + 1) * width  # the bucket that is open is included
            windows.append(TimeWindow(_time(end - last.minutes), _time(end)))
    if before:
        for window in windows:
            if _tells(view, window) and (window.before is None or _tells(view, window.before)):
                return window
    # Whoever reads one that is not told is told why not.
    return next((window for window in windows if _tells(view, window)), windows[0])


def _tells(view: View, window: TimeWindow) -> bool:
    """Whether a window begins and ends where no bucket goes on."""
    with suppress(InexactZone, RolledUp):
        view.require_range(window.start, window.end)
        return True
    return False


def _inexact(scheme: Scheme, last: Last) -> InexactZone:
    answering = buckets.widest(last.minutes)
    width = MINUTES[scheme.resolution]
    other = Last(-(-last.minutes // width) * width, days=scheme.resolution == "day")
    return InexactZone(
        f"{scheme.counter!r} is counted by {scheme.resolution}, so the last {last} cannot be told:"
        f" ask for the last {other}; `countersink counter set {scheme.counter} --resolution"
        f" {answering}` counts so that it can, from now on"
    )


def _time(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, UTC)

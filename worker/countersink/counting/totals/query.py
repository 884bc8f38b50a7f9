"""A question for totals (``Query``) and its answer (``Answer``), as used from Python, by
``countersink totals``, ``export`` and ``/v1``. Defines the columns of rows (``COLUMNS``), checks
questions, formats days and times, and tells where an answer is partial. Computes windows that end
now (``--last 24h``) and the windows before them.

A window of minutes or hours consists of whole buckets, so its total is exact. The bucket that is
open now is the last one. The window moves on by a bucket: a minute, a quarter or an hour. If
buckets at its beginning are rolled up to wider ones, the whole window consists of such wider
buckets; then its length must be a multiple of their width. A window of days consists of whole days,
today included. A window of weeks consists of whole ISO weeks, this week included.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, astuple, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from countersink.counting.counters import buckets
from countersink.counting.counters.buckets import FINER, MINUTES, ONE_DAY
from countersink.counting.counters.catalog import Scheme
from countersink.counting.errors import InexactZone, RolledUp
from countersink.counting.totals.selection import Last, Selection
from countersink.counting.totals.series import SECONDS, UNITS, week_ends
from countersink.counting.totals.snapshot import Snapshot
from countersink.counting.totals.views import View
from countersink.runtime.dimensions import UNIQUE_COLUMNS, check_name
from countersink.runtime.texts import NamedRange, iso

DIMENSIONS: Final = "dimensions"
"""Value of ``Query.by`` for a row per combination of values of dimensions."""
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    **{unit: (unit,) for unit in UNITS},
    "key": ("key",),
    "counter": ("counter",),
    "total": (),
}
"""For each value of ``Query.by`` except dimensions, the columns that name a row."""
EXPORTED: Final[Mapping[str, tuple[str, ...]]] = {
    **{by: columns for by, columns in COLUMNS.items() if by != "counter"},
    "key-day": ("day", "key"),
    "key-month": ("month", "key"),
}
"""The same for queries that are ``streamed``."""
By = tuple[str, tuple[str, ...]]
"""The values of ``Query.by`` and ``Query.dimensions``."""
Row = tuple[Any, ...]
"""The values of a row. Counter and key are str, a total is int, and a day is a date. A week (from
Monday on) or month is the date of its first day, an hour or a minute is an aware datetime. A
previous total may be None."""


def read_by(text: str, words: Iterable[str] = COLUMNS) -> By:
    """Parse the text of ``--by``, which says what each row of an answer is for. It is one of
    ``words``, such as ``day``, or names dimensions, such as ``page,country``.

    Returns:
        The values of ``Query.by`` and ``Query.dimensions``.

    Raises:
        ValueError: the text is neither, or names a dimension twice.
    """
    if text in words:
        return text, ()
    names = text.split(",")
    try:
        for name in names:
            check_name(name)
    except ValueError as error:
        raise ValueError(
            f"{text[:80]!r}: use one of {', '.join(words)}, or dimensions of the counter, such as"
            f" page,country ({error})"
        ) from None
    if len(set(names)) != len(names):
        raise ValueError(f"{text[:80]!r}: name each dimension once")
    return DIMENSIONS, tuple(names)


def read_where(text: str) -> tuple[str, str]:
    """Parse a text such as ``country=DE`` into a dimension and its value.

    Raises:
        ValueError: the text has another form, or the dimension's name is invalid.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text[:80]!r}: give a dimension and its value, such as country=DE")
    return check_name(name), value


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A range that has both ends.

    Attributes:
        start, end: two days, both included; or two times, of which ``end`` is excluded.
    """

    start: date
    end: date

    def document(self) -> dict[str, str]:
        """Return both ends for JSON, as ``from`` and ``to``: days, or times in UTC."""
        return {
            name: iso(each, "minutes") for name, each in (("from", self.start), ("to", self.end))
        }

    @property
    def before(self) -> "TimeWindow | None":
        """The window of equal length that ends where this one begins. None if it would begin before
        the first day or time that can be asked for.
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
        selection: which counter, keys and range.
        by: what each row is for: a key of :data:`COLUMNS`, or :data:`DIMENSIONS`.
        dimensions: the dimensions of the rows, in order, if ``by`` is :data:`DIMENSIONS`.
        top: maximum number of keys (of each counter), counters or combinations of values; the rows
            with the largest totals are returned. None for any number.
        most: like ``top``, and used if ``top`` is None. The answer then says whether rows were left
            out (``truncated``).
        max_rows: an answer with more rows is refused with AnswerTooLarge; None accepts any number.
        also: further ranges of days or times. Each row gets a column ``also`` with its totals in
            these ranges. A total is None if buckets do not add up to its range, or if the
            breakdown that answers did not count from its begin on. Only for ``by="key"`` and
            :data:`DIMENSIONS`.
        against_previous: True to add a column ``previous``: the row's total in the window before,
            or None if that is unknown. Needs a range between two days or two times, or a window.
            Rows of days, weeks and months need neither: they get the total of the whole day, week
            or month before. This is None if it is unknown, if the row's own day, week or month is
            not over, or if days that the range cuts off from it would change its total. Not for
            hours and minutes.
        include_pending: True to add increments that are still in the queue; needs
            :class:`countersink.reads.Reads`.
        unique: True to ask for numbers of different members instead of totals.
        strict: True to raise an error instead of returning a partial answer.
        streamed: True if :func:`countersink.counting.totals.answer.rows` is to stream all rows from
            the server, with keys or values in the order of their bytes. ``by`` is then a key of
            :data:`EXPORTED`, or :data:`DIMENSIONS`.

    Raises:
        ValueError: options are invalid or exclude each other; or ``against_previous`` is set, and
            the range lacks an end that it needs.
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
        """Raise ValueError as described for the class."""
        for refusal in self._refusals():
            raise ValueError(refusal)

    def _refusals(self) -> Iterator[str]:
        selection, by = self.selection, self.by
        several = selection.counter is None and not self.streamed
        if by not in (*(EXPORTED if self.streamed else COLUMNS), DIMENSIONS):
            yield f"no rows by {by!r}"
        if any(most is not None and most < 1 for most in (self.top, self.most)):
            yield "ask for at least 1 key"
        if self.top is not None and by not in ("key", "counter", DIMENSIONS):
            yield f"the largest can be keys, counters or values of dimensions, not {by}s"
        if self.unique:
            for asked, option in (
                (several or by == "counter", "for several counters"),
                (self.include_pending, "with increments that are still in the queue"),
                (self.against_previous, "against the previous window"),
                (bool(self.also), "with other days in one answer"),
            ):
                if asked:
                    yield f"different members cannot be counted {option}"
        if self.against_previous and by in SECONDS:
            yield f"only days, weeks, months, keys, counters or totals have a previous, not {by}s"
        if self.also and (self.streamed or by not in ("key", DIMENSIONS)):
            yield f"only rows by keys or dimensions have totals of further ranges (also), not {by}s"
        window = selection.last or window_of(selection)
        # A range with names of days may lack an end.
        lacks_end = window is None or None in astuple(window)
        if self.against_previous and by not in UNITS and lacks_end:
            yield (
                "the previous window needs a range with both ends, or a length such as the last 24h"
            )
        if self.dimensional and several:
            yield "totals by dimensions need the name of one counter"
        if self.dimensional and selection.keys is not None:
            yield "choose by keys, or by the values of dimensions (where), not by both"
        if self.dimensional and by.startswith("key"):
            yield (
                "events with dimensions have no keys: ask by day, week, hour, minute, month, total,"
                " or by dimensions"
            )

    @property
    def dimensional(self) -> bool:
        """Whether the question is about dimensions, so that a breakdown has to answer."""
        return self.by == DIMENSIONS or bool(self.selection.where)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the answer's columns, in order."""
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
    """The answer to a query: its columns and rows, and where it is partial.

    Attributes:
        columns: names of the values in each row.
        rows: the rows. Days, weeks, hours, minutes and months are in ascending order; keys,
            counters and combinations of values by total, the largest first, then by name. Rows of
            several counters are in the order of the counters' names, except with ``by="counter"``.
        complete_up_to: a time; all increments that reached Redis before it are in the rows. None if
            this is unknown. :class:`countersink.reads.Reads` sets it.
        unknown_because: the error that made ``complete_up_to`` unknown; otherwise None.
        pending: number of entries that were still in the queue and are included.
        rolled_up_to: the counter's first day that is not rolled up to a month; for several
            counters, the latest of these days. None if no days are rolled up to months.
        since: the time at which the breakdown that was read for this answer began to count, if this
            is after the beginning of the range: earlier events are missing. Otherwise None.
        told_from: day or time before which days, weeks, hours or minutes of the range are left out,
            because they are rolled up; for several counters, the latest. Otherwise None.
        truncated: True if ``most`` left out keys, counters or combinations of values; or if a
            series was too long, and the rows are only a part of it: of all parts that are short
            enough, the one with the most days that have counts.
        window: the range that the question's ``last`` became. None if the question has no ``last``,
            if the range lacks an end, or if the answer is for several counters.
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
        """Yield each row as a dict by column, for JSON and CSV: days and times become text."""
        return documents(self.columns, self.rows)

    def limits(self) -> dict[str, Any]:
        """Return a dict for JSON that tells where the answer is partial: ``complete_up_to``,
        ``rolled_up_to``, ``truncated``; and ``since``, ``told_from``, ``window`` if they are set.
        """
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
    """Yield each row as a dict by column, for JSON and CSV: days and times become text."""
    dated = any(column in UNITS for column in columns)
    for row in rows:
        found = dict(zip(columns, row, strict=True))
        yield {name: text(value, name) for name, value in found.items()} if dated else found


def text(value: Any, column: str) -> Any:
    """Convert a value for JSON and CSV. A time becomes ``2026-11-21T08:00+01:00``, a day
    ``2026-11-21``. In the columns ``week`` and ``month``, a day becomes ``2026-W48`` or
    ``2026-11``. Other values stay as they are.
    """
    if isinstance(value, datetime):
        return value.isoformat(timespec="minutes")
    if isinstance(value, date) and column == "week":
        year, week, _ = value.isocalendar()
        return f"{year:04}-W{week:02}"
    if isinstance(value, date):
        return value.isoformat()[:7] if column == "month" else value.isoformat()
    return value


_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)


def with_window(
    snapshot: Snapshot, selection: Selection, last: Last | NamedRange, *, before: bool = False
) -> Selection:
    """Return a copy of a selection of one counter, with the window ``last`` as its range.

    Args:
        snapshot: the snapshot to read; the time of its server is now.
        selection: a selection of one counter.
        last: the length of the window; or a range with names of days, such as ``yesterday``.
        before: True to prefer a width of buckets in which :attr:`TimeWindow.before` of the window
            can be answered, too. Only for windows of minutes or hours.

    Raises:
        UnknownCounter: there is no such counter.
        InexactZone: the counter's buckets do not add up to such a window.
        Refused: days are asked for, and this machine does not know the counter's time zone.
        ValueError: the range ends before it begins, or there is no such time zone.
    """
    view, minute = snapshot.selected(selection), snapshot.now_ms // 60_000
    if isinstance(last, NamedRange):
        start, end = last.dated(buckets.date_at(view.zone, minute * 60))
        return replace(selection, last=None, start=start, end=end)
    window = _window(view, last, minute, before=before)
    return replace(selection, last=None, start=window.start, end=window.end)


def window_of(selection: Selection) -> TimeWindow | None:
    """Return the range of a selection if it has both ends, and these are two days or two times;
    otherwise None.
    """
    start, end = selection.start, selection.end
    if start is None or end is None or isinstance(start, datetime) != isinstance(end, datetime):
        return None
    return TimeWindow(start, end)


def _window(view: View, last: Last, minute: int, *, before: bool) -> TimeWindow:
    if last.days:
        today = buckets.date_at(view.zone, minute * 60)
        final = week_ends(today) if last.weeks else today
        return TimeWindow(final - timedelta(days=last.minutes // 1440 - 1), final)
    narrowest = MINUTES[view.scheme.resolution]
    if view.scheme.resolution == "day" or last.minutes % narrowest:
        raise _inexact(view.scheme, last)
    windows = []
    for width in (MINUTES[resolution] for resolution in FINER):
        if width >= narrowest and last.minutes % width == 0:
            end = (minute // width + 1) * width  # includes the open bucket
            windows.append(TimeWindow(_time(end - last.minutes), _time(end)))
    if before:
        for window in windows:
            if _fits(view, window) and (window.before is None or _fits(view, window.before)):
                return window
    # A window that does not fit makes the reader raise an error that says why.
    return next((window for window in windows if _fits(view, window)), windows[0])


def _fits(view: View, window: TimeWindow) -> bool:
    """Return whether a window begins and ends at edges of buckets, so that it can be answered."""
    with suppress(InexactZone, RolledUp):
        view.require_range(window.start, window.end)
        return True
    return False


def _inexact(scheme: Scheme, last: Last) -> InexactZone:
    answering = buckets.widest(last.minutes)
    width = MINUTES[scheme.resolution]
    other = Last(-(-last.minutes // width) * width, days=scheme.resolution == "day")
    unit = " (m: minutes)" if str(last).endswith("m") else ""
    return InexactZone(
        f"{scheme.counter!r} is counted by {scheme.resolution}, so the last {last}{unit} are"
        f" unknown: ask for the last {other}, or have later events counted by {answering} with"
        f" `countersink counter set {scheme.counter} --resolution {answering}`"
    )


def _time(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, UTC)

"""One question for totals and its answer (``Query``, ``Answer``), for Python, ``countersink
totals``, ``export`` and ``/v1``: what rows are by with their columns (``COLUMNS``), order of keys,
texts of days and times, and what limits an answer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import date, datetime
from typing import Any, Final

from countersink.counting.totals.selection import Selection
from countersink.counting.totals.series import UNITS
from countersink.counting.totals.windows import TimeWindow, window_of
from countersink.runtime.dimensions import UNIQUE_COLUMNS, check_name
from countersink.runtime.times import iso

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

"""One question for totals and its answer, for ``countersink totals`` and ``/v1``: names of columns
in JSON, CSV and tables (``COLUMNS``), most rows, order of keys, and days that are left out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from datetime import date, datetime
from functools import partial
from typing import Any, Final, TypeVar

from countersink.reads.errors import AnswerTooLarge
from countersink.reads.pending import (
    Pending,
    Question,
    by_key,
    counters,
    daily,
    hourly,
    many,
    minutely,
    monthly,
    names,
    total,
)
from countersink.reads.rows import DIMENSIONS, text
from countersink.reads.snapshot import Read, Reads
from countersink.runtime.dimensions import UNIQUE_COLUMNS, check_name
from countersink.runtime.limits import key_bytes
from countersink.store.connection import Session
from countersink.store.counters.buckets import month_ends, month_of
from countersink.store.errors import InexactZone, RolledUp, SeriesTooLong
from countersink.store.sql import parts
from countersink.store.totals.many_counters import SIZE
from countersink.store.totals.selection import KeyMatch, Selection
from countersink.store.totals.series import Unit, told_from
from countersink.store.totals.shapes import BreakdownView
from countersink.store.totals.windows import TimeWindow, window_of
from countersink.store.visitors import answers
from countersink.stream.errors import StreamError

T = TypeVar("T")

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "day": ("day", "total"),
    "hour": ("hour", "total"),
    "minute": ("minute", "total"),
    "month": ("month", "total"),
    "key": ("key", "total"),
    "counter": ("counter", "total"),
    "total": ("total",),
}
"""What each ``--by`` shows."""
By = tuple[str, tuple[str, ...]]
"""``Query.by`` and ``Query.dimensions``."""


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


_SERIES: Final[Mapping[str, Question[Any]]] = {
    "day": daily,
    "hour": hourly,
    "minute": minutely,
    "month": monthly,
}


def _unique_series(unit: answers.Unit) -> Question[list[tuple[Any, Any]]]:
    def question(session: Session, wanted: Selection, pending: Pending) -> list[tuple[Any, Any]]:
        return answers.by_unit(session, wanted, unit)

    return question


_UNIQUE_SERIES: Final[Mapping[str, Question[list[tuple[Any, Any]]]]] = {
    unit: _unique_series(unit) for unit in answers.UNITS
}


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
    """

    selection: Selection
    _: KW_ONLY
    by: str
    top: int | None = None
    most: int | None = None
    max_rows: int | None = None
    also: Sequence[tuple[date, date]] = ()
    against_previous: bool = False
    include_pending: bool = False
    dimensions: tuple[str, ...] = ()
    unique: bool = False

    def __post_init__(self) -> None:
        """Refuse what there is nothing to hold against.

        Raises:
            ValueError: there is not; or different members are asked for together with what is not
                told of them.
        """
        if self.unique:
            self._check_unique()
        if self.against_previous:
            if self.by in _SERIES:
                raise ValueError(
                    f"the previous window is of keys, counters or totals, not of {self.by}s"
                )
            if self.selection.last is None and window_of(self.selection) is None:
                raise ValueError(
                    "the previous window is one of the same length: give the last so many, or a"
                    " range that has both ends"
                )

    def _check_unique(self) -> None:
        for asked, what in (
            (self.selection.counter is None or self.by == "counter", "of several counters"),
            (self.include_pending, "of what is still in the queue"),
            (self.against_previous, "of the previous window"),
            (bool(self.also), "of other days in the same answer"),
        ):
            if asked:
                raise ValueError(f"different members are not told {what}")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the answer, in order."""
        named = (*self.dimensions, "total") if self.by == DIMENSIONS else COLUMNS[self.by]
        own = (*named, *(("previous",) if self.against_previous else ()))
        own = (*own, *(UNIQUE_COLUMNS if self.unique else ()))
        return own if self.selection.counter is not None or "counter" in own else ("counter", *own)


@dataclass(slots=True)
class Answer:
    """The answer to a query: columns, rows, and how fresh and complete it is.

    Attributes:
        columns: the names in each row.
        rows: in order: days, hours and months ascending; keys and counters by total, largest first,
            then by name.
        complete_up_to: everything that reached Redis before it is in the rows; None if not known.
        pending: entries included that were still in the queue.
        rolled_up_to: the first day of which everything can still be told, of several counters the
            latest; None where nothing is rolled up to months.
        since: the time from which on the breakdown that answers holds the events, where the range
            begins before it.
        window: the range that the last so many meant; None where that was not asked, or of several
            counters.
        days_gone: days or hours that were asked for are not in the rows, since they are rolled up
            to months.
        told_from: the time from which on there are single hours or minutes, where some of those
            that were asked for are not in the rows; of several counters the latest.
        unknown_because: why Redis did not tell.
        truncated: there are more keys or counters than the largest, which are in the rows, or
            more days, hours or months than those, as many as may be, with most of the counts.
    """

    columns: tuple[str, ...]
    rows: list[dict[str, Any]] = field(default_factory=list)
    complete_up_to: datetime | None = None
    pending: int = 0
    rolled_up_to: date | None = None
    since: datetime | None = None
    window: TimeWindow | None = None
    days_gone: bool = False
    told_from: datetime | None = None
    unknown_because: StreamError | None = None
    truncated: bool = False


def ask(reads: Reads, query: Query) -> Answer:
    """The answer to ``query``.

    All counters are of one snapshot, and are read together: it takes some queries for each 500 of
    them. With what is pending the queue is read once.

    Raises:
        UnknownCounter, StoreError, StreamError, ValueError: as :class:`countersink.reads.Reads`.
        AnswerTooLarge: more than ``max_rows``.
        UnknownDimension: no breakdown answers.
    """
    if query.by == DIMENSIONS or query.selection.where:
        _check_dimensions(query)
        return reads.viewed(
            query.selection,
            query.dimensions,
            lambda some, view: _Answering(
                some, replace(query, selection=view.selection), view
            ).answer(),
            include_pending=query.include_pending,
        )
    return reads.together(
        lambda some: _Answering(some, query).answer(),
        counter=query.selection.counter,
        keys=query.selection.keys,
        include_pending=query.include_pending,
    )


def _check_dimensions(query: Query) -> None:
    """Refuse questions by dimensions of what has none.

    Raises:
        ValueError: it is one.
    """
    if query.selection.counter is None:
        raise ValueError("totals by dimensions are of one counter: name it")
    if query.selection.keys is not None:
        raise ValueError("choose by keys, or by the values of dimensions (where), not by both")
    if query.by == "key":
        raise ValueError(
            "events with dimensions have no keys: ask by day, hour, minute, month, total, or by"
            " dimensions"
        )


class _Answering:
    def __init__(self, reads: Reads, query: Query, view: BreakdownView | None = None) -> None:
        self._reads = reads
        self._query = query
        self._view = view
        self._selection = query.selection
        self._answer = Answer(query.columns)
        self._asked = False

    def answer(self) -> Answer:
        query, rows = self._query, self._answer.rows
        counter = self._selection.counter
        if counter is not None:
            shown = counter if self._view is None else self._view.counter
            self._add(shown, self._rows(counter))
        elif self._all_at_once:
            for name, amount in self._ask(counters, self._selection).items():
                self._add(name, [{"total": amount}])
        else:
            every = self._ask(names, Selection(keys=(), visible=self._selection.visible))
            for some in parts(every, SIZE):
                with self._reads.group(some):
                    for name in some:
                        self._add(name, self._rows(name))
        if query.by == "counter":
            rows.sort(key=lambda row: (-row["total"], row["counter"]))
            self._answer.rows = rows = self._cut(rows)
            self._check_number()
        for row in rows:
            if "counter" not in query.columns:
                del row["counter"]
        return self._answer

    @property
    def _all_at_once(self) -> bool:
        """Whether all counters are added up by the same statements."""
        query, selection = self._query, self._selection
        plain = selection.keys is None and selection.last is None and not query.against_previous
        return plain and query.by in ("counter", "total")

    def _add(self, counter: str, found: Iterable[dict[str, Any]]) -> None:
        """The rows of a counter go into the answer."""
        rows = self._answer.rows
        cut_later = self._query.by == "counter"
        for row in found:
            rows.append({"counter": counter, **row})
            if not cut_later:
                self._check_number()

    def _check_number(self) -> None:
        most = self._query.max_rows
        if most is not None and len(self._answer.rows) > most:
            raise AnswerTooLarge(
                f"the answer would have more than {most:,} rows: ask for a shorter range, for"
                " less at once, or with `countersink export`"
            )

    def _cut(self, ordered: list[T]) -> list[T]:
        """The largest, as many as were asked for."""
        query = self._query
        if query.top is not None:
            return ordered[: query.top]
        if query.most is not None and len(ordered) > query.most:
            self._answer.truncated = True
            return ordered[: query.most]
        return ordered

    def _rows(self, counter: str) -> Iterator[dict[str, Any]]:
        query, wanted = self._query, replace(self._selection, counter=counter)
        if wanted.last is not None:
            # The question is which range that is: whoever answers it has settled that.
            last = replace(wanted.last, again=query.against_previous)
            wanted = replace(wanted, last=last)
            wanted = self._ask(lambda session, settled, pending: settled, wanted)
            if self._selection.counter is not None:
                self._answer.window = window_of(wanted)
        own = window_of(wanted) if query.against_previous else None
        before = None if own is None else own.before
        if self._view is not None:
            self._answer.since = self._lacks(self._view, wanted, wanted.start)
            if before is not None and self._lacks(self._view, wanted, before.start) is not None:
                before = None  # it cannot be told
        if query.unique:
            yield from self._unique(wanted)
        elif query.by == DIMENSIONS and self._view is not None:
            yield from self._by_dimensions(self._view, wanted, before)
        elif query.by in _SERIES:
            for moment, amount in self._series(query.by, wanted):
                yield {query.by: text(moment, query.by), "total": amount}
        elif query.by == "key":
            found = self._by_key(wanted)
            keys = [key for key, _ in found]
            beside = [self._beside(replace(wanted, keys=keys), *days) for days in query.also]
            previous = None
            if before is not None:
                previous = self._beside(replace(wanted, keys=keys), before.start, before.end)
            for key, amount in found:
                row = {"key": key, "total": amount}
                if beside:
                    row["also"] = [None if each is None else each[key] for each in beside]
                if query.against_previous:
                    row["previous"] = None if previous is None else previous[key]
                yield row
        else:
            row = {"total": self._ask(total, wanted)}
            if query.against_previous:
                row["previous"] = None
            if before is not None:
                earlier = replace(wanted, start=before.start, end=before.end)
                with suppress(RolledUp, InexactZone):
                    row["previous"] = self._ask(total, earlier)
            yield row

    def _unique(self, wanted: Selection) -> Iterator[dict[str, Any]]:
        """How many different members there are, by what the query says."""
        query, view = self._query, self._view
        limit = query.top or (query.most and query.most + 1)
        if query.by == DIMENSIONS and view is not None:
            group = view.values
            found = self._ask(
                lambda session, asked, pending: answers.by_group(session, asked, group), wanted
            )
            for values, visitors in self._cut(found):
                named: dict[str, Any] = dict(zip(query.dimensions, values, strict=True))
                yield named | asdict(visitors)
        elif query.by == "key":
            keyed = self._ask(
                lambda session, asked, pending: answers.by_key(session, asked, limit=limit), wanted
            )
            for key, visitors in self._cut(keyed):
                yield {"key": key, **asdict(visitors)}
        elif query.by in answers.UNITS:
            for moment, visitors in self._series(query.by, wanted):
                yield {query.by: text(moment, query.by), **asdict(visitors)}
        else:
            every = self._ask(lambda session, asked, pending: answers.total(session, asked), wanted)
            yield asdict(every)

    def _lacks(self, view: BreakdownView, wanted: Selection, start: date | None) -> datetime | None:
        """From when on a breakdown has the events, where a range has earlier ones."""
        return self._ask(lambda session, asked, pending: view.lacks(session, start), wanted)

    def _series(self, by: str, wanted: Selection) -> list[tuple[Any, Any]]:
        """Months; or days or hours, from where they are not rolled up to months yet."""
        question = _UNIQUE_SERIES[by] if self._query.unique else _SERIES[by]
        if by == "month":
            return self._take(self._fitting(question, wanted))
        answer, wanted = self._answer, replace(wanted, unrolled=True)
        told = self._note_told(by, wanted) if wanted.start is None else None
        try:
            read = self._fitting(question, wanted)
        except RolledUp as error:
            told = self._note_told(by, wanted)
            answer.days_gone = answer.days_gone or told is None
            begin = told or error.rolled_up_to
            if wanted.end is None or _is_before(begin, wanted.end):
                with suppress(RolledUp):
                    return self._take(self._fitting(question, replace(wanted, start=begin)))
            self._ask(total, Selection(wanted.counter))
            return []
        # Had it been meant to begin among them, it would have been refused; before all of them, the
        # zeros are exact.
        if read.rolled_up_to is not None and wanted.start is None:
            answer.days_gone = True
        return self._take(read)

    def _note_told(self, by: str, wanted: Selection) -> datetime | None:
        """The time from which on there are hours or minutes; of several counters the answer has
        the latest.
        """
        if by == "day":
            return None
        unit: Unit = "minute" if by == "minute" else "hour"
        told = self._ask(
            lambda session, asked, pending: told_from(session, replace(asked, known=True), unit),
            wanted,
        )
        known = self._answer.told_from
        self._answer.told_from = told if known is None or (told and told > known) else known
        return told

    def _fitting(
        self, question: Question[list[tuple[Any, Any]]], wanted: Selection
    ) -> Read[list[tuple[Any, Any]]]:
        """A series; where nobody said when it begins, the part of it that is short enough and has
        the most days with counts.

        One event with a wrong time would else make every such question one without an answer.
        """
        query = self._query
        try:
            return self._read(question, wanted)
        except SeriesTooLong as error:
            asked = self._selection
            if (
                asked.start is not None
                or asked.last is not None
                or error.fits_from is None
                or error.fits_to is None
            ):
                raise
            self._answer.truncated = True
            first, last = error.fits_from, error.fits_to
            if query.by == "month":
                most = date.max if wanted.end is None else _date(wanted.end)
                first, last = month_of(first), min(month_ends(last), most)
            return self._read(question, replace(wanted, start=first, end=last))

    def _by_key(self, wanted: Selection) -> list[tuple[str, int]]:
        query = self._query
        if wanted.keys is not None and not isinstance(wanted.keys, KeyMatch):
            found = self._ask(many, wanted)
            return self._cut(sorted(found.items(), key=lambda pair: (-pair[1], key_bytes(pair[0]))))
        # One more than the most, so as to know whether there are more.
        limit = query.top or (query.most and query.most + 1)
        return self._cut(self._ask(partial(by_key, limit=limit), wanted))

    def _by_dimensions(
        self, view: BreakdownView, wanted: Selection, before: TimeWindow | None
    ) -> Iterator[dict[str, Any]]:
        query = self._query
        limit = (query.top or (query.most and query.most + 1)) if view.whole else None
        found = self._ask(partial(by_key, limit=limit), wanted)
        previous: dict[tuple[str, ...], int] | None = None
        if before is not None:
            asked = replace(wanted, start=before.start, end=before.end)
            with suppress(RolledUp, InexactZone):
                # Of all: what has most now may have had none then, under other keys.
                previous = dict(view.projected(self._ask(by_key, asked)))
        for values, amount in self._cut(view.projected(found)):
            row: dict[str, Any] = dict(zip(query.dimensions, values, strict=True))
            row["total"] = amount
            if query.against_previous:
                row["previous"] = None if previous is None else previous.get(values, 0)
            yield row

    def _beside(self, wanted: Selection, start: date, end: date) -> dict[str, int] | None:
        """What keys have in other days; None where that cannot be told."""
        try:
            return self._ask(many, replace(wanted, start=start, end=end))
        except (RolledUp, InexactZone):
            return None

    def _read(self, question: Question[T], wanted: Selection) -> Read[T]:
        return self._reads.ask(question, wanted, include_pending=self._query.include_pending)

    def _ask(self, question: Question[T], wanted: Selection) -> T:
        return self._take(self._read(question, wanted))

    def _take(self, read: Read[T]) -> T:
        """The value of a read; what it says of its freshness goes into the answer."""
        answer = self._answer
        if read.unknown_because is not None:
            answer.unknown_because = read.unknown_because
        if not self._asked:
            answer.complete_up_to = read.complete_up_to
        elif answer.complete_up_to is not None:
            both = (answer.complete_up_to, read.complete_up_to)
            answer.complete_up_to = None if both[1] is None else min(both[0], both[1])
        answer.pending = max(answer.pending, read.pending)
        if read.rolled_up_to is not None:
            answer.rolled_up_to = max(read.rolled_up_to, answer.rolled_up_to or date.min)
        self._asked = True
        return read.value


def _is_before(begin: date, end: date) -> bool:
    """Whether a range from one to the other has anything in it, as far as can be told."""
    if isinstance(begin, datetime) and isinstance(end, datetime):
        return begin < end
    return _date(begin) <= _date(end)


def _date(end: date) -> date:
    """The last day of a range, in UTC where it ends at a time."""
    return end.date() if isinstance(end, datetime) else end

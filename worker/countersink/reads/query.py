"""Asking for totals the way ``countersink totals`` and ``/v1`` lay them out: columns and rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Final, TypeVar

from countersink.reads import Read, Reads
from countersink.store.errors import RolledUp
from countersink.store.groups import SIZE
from countersink.store.key_match import ANY, KeyMatch
from countersink.store.keys import key_bytes
from countersink.store.periods import SeriesTooLong
from countersink.store.sums import parts
from countersink.stream.errors import StreamError

T = TypeVar("T")
When = TypeVar("When", date, datetime)

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "day": ("day", "total"),
    "hour": ("hour", "total"),
    "month": ("month", "total"),
    "key": ("key", "total"),
    "counter": ("counter", "total"),
    "total": ("total",),
}
"""What each ``--by`` shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is asked.

    Attributes:
        counter: one counter, or None for all.
        by: a key of :data:`COLUMNS`.
        keys: these alone; empty for all.
        start, end: days, both inclusive; None for where the data begins or ends.
        time_zone: whose days, hours and months; None for each counter's own.
        top: at most so many keys or counters (of each counter).
        match: of the keys only these; goes with ``by="key"`` and without ``keys``.
        most: where ``top`` is not given, so many keys or counters; the answer says if it leaves any
            out. None for all.
        max_rows: an answer of more rows is refused; None for any.
        visible: tells which counters may be seen where all are asked for.
        include_pending: add what is still in the queue.
    """

    counter: str | None
    by: str
    keys: Sequence[str] = ()
    start: date | None = None
    end: date | None = None
    time_zone: str | None = None
    top: int | None = None
    match: KeyMatch = ANY
    most: int | None = None
    max_rows: int | None = None
    visible: Callable[[str], bool] = field(default=lambda name: True, repr=False)
    include_pending: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the answer, in order."""
        own = COLUMNS[self.by]
        return own if self.counter is not None or "counter" in own else ("counter", *own)


@dataclass(slots=True)
class Answer:
    """What was found.

    Attributes:
        columns: the names in each row.
        rows: in order: days, hours and months ascending; keys and counters by total, largest first,
            then by name.
        complete_up_to: everything that reached Redis before it is in the rows; None if not known.
        pending: entries included that were still in the queue.
        rolled_up_to: the first day of which everything can still be told, of several counters the
            latest; None where nothing is rolled up to months.
        days_gone: days or hours that were asked for are not in the rows, since they are rolled up.
        unknown_because: why Redis did not tell.
        truncated: there are more keys or counters than the largest, which are in the rows, or
            more days or hours than the latest.
    """

    columns: tuple[str, ...]
    rows: list[dict[str, object]] = field(default_factory=list)
    complete_up_to: datetime | None = None
    pending: int = 0
    rolled_up_to: date | None = None
    days_gone: bool = False
    unknown_because: StreamError | None = None
    truncated: bool = False


class TooLarge(ValueError):
    """The answer would have more rows than were wanted at most."""


def ask(reads: Reads, query: Query) -> Answer:
    """The answer to ``query``.

    All counters are of one snapshot, and are read together: it takes some queries for each 500 of
    them. With what is pending the queue is read once.

    Raises:
        UnknownCounter, StoreError, StreamError, ValueError: as :class:`countersink.reads.Reads`.
        TooLarge: more than ``max_rows``.
    """
    return reads.together(
        lambda some: _Asking(some, query).answer(),
        counter=query.counter,
        keys=list(query.keys) or None,
        include_pending=query.include_pending,
    )


class _Asking:
    def __init__(self, reads: Reads, query: Query) -> None:
        self._reads = reads
        self._query = query
        self._answer = Answer(query.columns)
        self._asked = False
        self._range: dict[str, Any] = {
            "start": query.start,
            "end": query.end,
            "time_zone": query.time_zone,
            "include_pending": query.include_pending,
        }

    def answer(self) -> Answer:
        query, rows = self._query, self._answer.rows
        if query.counter is not None:
            self._add(query.counter, self._rows(query.counter))
        elif query.by in ("counter", "total") and not query.keys:
            totals = self._take(self._reads.counters(visible=query.visible, **self._range))
            for name, total in totals.items():
                self._add(name, [{"total": total}])
        else:
            names = self._take(
                self._reads.names(visible=query.visible, include_pending=query.include_pending)
            )
            for some in parts(names, SIZE):
                with self._reads.group(some):
                    for name in some:
                        self._add(name, self._rows(name))
        if query.by == "counter":
            rows.sort(key=lambda row: (-_int(row["total"]), str(row["counter"])))
            self._answer.rows = rows = self._cut(rows)
            self._check_number()
        for row in rows:
            if "counter" not in query.columns:
                del row["counter"]
        return self._answer

    def _add(self, counter: str, found: Iterable[dict[str, object]]) -> None:
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
            raise TooLarge(
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

    def _rows(self, counter: str) -> Iterator[dict[str, object]]:
        query = self._query
        keys = list(query.keys) or None
        if query.by == "day":
            for day, total in self._unrolled(self._reads.daily, counter, keys):
                yield {"day": day.isoformat(), "total": total}
        elif query.by == "hour":
            for hour, total in self._unrolled(self._reads.hourly, counter, keys):
                yield {"hour": hour.isoformat(timespec="minutes"), "total": total}
        elif query.by == "month":
            for month, total in self._take(self._reads.monthly(counter, keys=keys, **self._range)):
                yield {"month": month.isoformat()[:7], "total": total}
        elif query.by == "key":
            for key, total in self._by_key(counter, keys):
                yield {"key": key, "total": total}
        else:
            yield {"total": self._total(counter)}

    def _unrolled(
        self,
        ask: Callable[..., Read[list[tuple[When, int]]]],
        counter: str,
        keys: list[str] | None,
    ) -> list[tuple[When, int]]:
        """A series of days or hours, from where they are not rolled up to months yet."""
        query, answer = self._query, self._answer
        try:
            read = self._latest(ask, counter, keys, query.start)
        except RolledUp as error:
            answer.days_gone = True
            # In another time zone that day may have begun before what is in months ended.
            for begin in (error.rolled_up_to, error.rolled_up_to + timedelta(days=1)):
                if query.end is not None and query.end < begin:
                    break
                with suppress(RolledUp):
                    return self._take(self._latest(ask, counter, keys, begin))
            self._take(self._reads.total(counter, include_pending=query.include_pending))
            return []
        # Had it been meant to begin among them, it would have been refused; before all of them, the
        # zeros are exact.
        if read.rolled_up_to is not None and query.start is None:
            answer.days_gone = True
        return self._take(read)

    def _latest(
        self,
        ask: Callable[..., Read[list[tuple[When, int]]]],
        counter: str,
        keys: list[str] | None,
        start: date | None,
    ) -> Read[list[tuple[When, int]]]:
        """A series; where nobody said when it begins, the latest of it that is short enough.

        One event with a wrong time would else make every such question one without an answer.
        """
        try:
            return ask(counter, keys=keys, **{**self._range, "start": start})
        except SeriesTooLong as error:
            if self._query.start is not None:
                raise
            self._answer.truncated = True
            return ask(counter, keys=keys, **{**self._range, "start": error.fits_from})

    def _total(self, counter: str) -> int:
        keys = list(self._query.keys) or None
        return self._take(self._reads.total(counter, keys=keys, **self._range))

    def _by_key(self, counter: str, keys: list[str] | None) -> list[tuple[str, int]]:
        query = self._query
        if keys is not None:
            found = self._take(self._reads.many(counter, keys, **self._range))
            ordered = sorted(found.items(), key=lambda pair: (-pair[1], key_bytes(pair[0])))
            return self._cut(ordered)
        # One more than the most, so as to know whether there are more.
        n = query.top or (query.most and query.most + 1)
        if n is None:
            return self._take(self._reads.by_key(counter, match=query.match, **self._range))
        return self._cut(
            self._take(self._reads.top(counter, n=n, match=query.match, **self._range))
        )

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


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value

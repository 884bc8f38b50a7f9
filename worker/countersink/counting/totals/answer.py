"""Answers questions for totals, of one snapshot (``answer``), and rows one by one for files
(``rows``): settles the window, chooses the breakdown, and says what limits an answer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass, replace
from datetime import date
from typing import TypeVar, cast

from countersink.counting.counters.all_counters import totals_of
from countersink.counting.counters.buckets import ONE_DAY, month_ends, month_of
from countersink.counting.errors import AnswerTooLarge, IncompleteBreakdown, InexactZone, RolledUp
from countersink.counting.totals import sums, unions
from countersink.counting.totals.breakdown_views import BreakdownView, view_of
from countersink.counting.totals.query import (
    DIMENSIONS,
    Answer,
    Query,
    Row,
    TimeWindow,
    settled,
    window_of,
)
from countersink.counting.totals.selection import KeyMatch, Selection
from countersink.counting.totals.series import UNITS, Unit, series, told_by
from countersink.counting.totals.snapshot import SIZE, Snapshot
from countersink.counting.totals.sums import Scope, bucket_labels, keyed
from countersink.counting.totals.views import View, intersected
from countersink.database.sql import parts
from countersink.runtime.limits import key_bytes, text_bytes
from countersink.runtime.texts import iso

T = TypeVar("T")
Question = Callable[[Snapshot, Selection], T]


def answer(snapshot: Snapshot, query: Query) -> Answer:
    """The answer to a question.

    All counters are read together: it takes some statements for each 500 of them.

    Raises:
        UnknownCounter: the counter was neither made nor ever counted, nor is it pending.
        UnknownDimension: no breakdown answers.
        InexactZone: the counter's buckets do not add up to what is asked.
        RolledUp: the range takes a part of a month into which days are rolled up; or the query is
            ``strict``, and days, hours or minutes are rolled up.
        IncompleteBreakdown: the query is ``strict``, and its range begins before the breakdown.
        AnswerTooLarge: more than ``max_rows``.
        NotUnique, DamagedSketch, NoSketches: as :mod:`countersink.counting.totals.unions`.
        StoreError: MySQL did not do its part.
        ValueError: there is no such time zone; a series is too long.
    """
    selection = query.selection
    found = Answer(query.columns, pending=snapshot.pending.entries)
    if selection.counter is not None:
        shown = (selection.counter,) if query.by == "counter" else ()
        found.rows = [(*shown, *row) for row in rows(snapshot, query, found)]
    elif query.by in ("counter", "total") and selection.everything and selection.keys is None:
        # All that was ever counted adds up whatever the buckets are.
        totals = totals_of(snapshot.session, snapshot.names(selection.visible))
        for name in totals.keys() & snapshot.pending.cells.keys():
            totals[name] += sum(snapshot.pending.cells[name].values())
        found.rows = list(totals.items())
    else:
        for some in parts(snapshot.names(selection.visible), SIZE):
            with snapshot.together(some):
                for each in some:
                    one = replace(query, selection=replace(selection, counter=each))
                    found.rows += [(each, *row) for row in rows(snapshot, one, found)]
                    if query.by != "counter":  # those are cut afterwards
                        _check_number(query, found)
        found.window = None
    if query.by == "counter":
        found.rows.sort(key=lambda row: (-row[1], row[0]))
        found.rows = _largest(query, found, found.rows)
    _check_number(query, found)
    found.rolled_up_to = snapshot.rolled_up_to(selection.counter, selection.visible)
    return found


def _check_number(query: Query, found: Answer) -> None:
    most = query.max_rows
    if most is not None and len(found.rows) > most:
        raise AnswerTooLarge(
            f"the answer would have more than {most:,} rows: ask for a shorter range, for less at"
            " once, or with `countersink export`"
        )


def rows(snapshot: Snapshot, query: Query, limits: Answer) -> Iterator[Row]:
    """The rows of a question of one counter, one by one where it is ``streamed``: nothing else can
    be asked of the snapshot then until the last row.

    Args:
        snapshot: that is asked.
        query: of one counter.
        limits: what limits the answer goes there.

    Raises:
        StoreError, ValueError: as :func:`answer`.
    """
    asked, view = query.selection, None
    wanted = asked
    if query.dimensional:
        view = view_of(snapshot, asked, query.dimensions)
        wanted = view.selection
    with view.named() if view else nullcontext():
        before: TimeWindow | None = None
        if asked.last is not None:
            wanted = settled(snapshot, wanted, asked.last, before=query.against_previous)
            limits.window = window_of(wanted)
        if query.against_previous:
            window = window_of(wanted)
            before = window and window.before
        if view is not None:
            limits.since = view.lacks(snapshot, wanted.start)
            if limits.since is not None and query.strict:
                begins = iso(limits.since, "minutes")
                raise IncompleteBreakdown(
                    f"the breakdown {view.breakdown.text} of {view.counter!r} holds the events from"
                    f" {begins} on: ask for a range that begins then or later",
                    since=limits.since,
                )
            if before is not None and view.lacks(snapshot, before.start) is not None:
                before = None  # it cannot be told
        yield from _Rows(snapshot, query, limits, wanted, view, before).found()


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one counter.

    Attributes:
        snapshot, query, limits: as of :func:`rows`.
        wanted: the selection, its window settled, of the breakdown that answers if one does.
        view: this.
        before: the window before, if it is asked for and can be told.
    """

    snapshot: Snapshot
    query: Query
    limits: Answer
    wanted: Selection
    view: BreakdownView | None
    before: TimeWindow | None

    def found(self) -> Iterator[Row]:
        snapshot, query, wanted = self.snapshot, self.query, self.wanted
        if query.by in UNITS:
            return self._series()
        if query.streamed and query.by != "total":
            return self._streamed()
        if query.by == DIMENSIONS:
            return self._by_dimensions()
        if query.by == "key":
            return self._by_key()
        if query.unique:
            return iter([astuple(unions.total(snapshot, wanted))])
        previous = () if not query.against_previous else (self._before_this(sums.total, wanted),)
        return iter([(sums.total(snapshot, wanted), *previous)])

    def _series(self) -> Iterator[Row]:
        """Of days, hours or minutes where single ones are told, or of months."""
        snapshot, query, wanted, limits = self.snapshot, self.query, self.wanted, self.limits
        unit = cast("Unit", query.by)
        found = series(snapshot, wanted, unit, strict=query.strict, whole=query.streamed)
        limits.truncated |= found.truncated
        self._note_told(found.told_from)
        if not query.unique:
            return iter(found.rows)
        places = [place for place, _ in found.rows]
        united = unions.by_unit(snapshot, wanted, unit, places)
        return ((place, *astuple(visitors)) for place, visitors in united)

    def _note_told(self, told: date | None) -> None:
        known = self.limits.told_from
        if told is not None and (known is None or told > known):
            self.limits.told_from = told

    @property
    def _limit(self) -> int | None:
        """One more than the most, so as to know whether there are more."""
        return self.query.top or (self.query.most and self.query.most + 1)

    def _by_key(self) -> Iterator[Row]:
        snapshot, query, wanted = self.snapshot, self.query, self.wanted
        if query.unique:
            united = unions.by_key(snapshot, wanted, limit=self._limit)
            for key, visitors in _largest(query, self.limits, united):
                yield key, *astuple(visitors)
            return
        if wanted.keys is None or isinstance(wanted.keys, KeyMatch):
            found = sums.by_key(snapshot, wanted, limit=self._limit)
        else:
            each = sums.many(snapshot, wanted).items()
            found = sorted(each, key=lambda pair: (-pair[1], key_bytes(pair[0])))
        found = _largest(query, self.limits, found)
        these = replace(wanted, keys=[key for key, _ in found])
        beside: list[dict[str, int] | None] = []
        if query.against_previous:
            beside.append(self._before_this(sums.many, these))
        beside += [self._beside(sums.many, these, *days) for days in query.also]
        for key, total in found:
            others = [None if each is None else each[key] for each in beside]
            previous = others[: query.against_previous]
            yield key, total, *previous, *([others[len(previous) :]] if query.also else ())

    def _by_dimensions(self) -> Iterator[Row]:
        snapshot, query, wanted, view = self.snapshot, self.query, self.wanted, self.view
        assert view is not None
        if query.unique:
            grouped = unions.by_group(snapshot, wanted, view.values)
            for values, visitors in _largest(query, self.limits, grouped):
                yield *values, *astuple(visitors)
            return
        limit = self._limit if view.whole else None
        found = view.projected(sums.by_key(snapshot, wanted, limit=limit))
        # Of all: what has most now may have had none then, under other keys.
        earlier = self._before_this(sums.by_key, wanted)
        known = None if earlier is None else dict(view.projected(earlier))
        for values, total in _largest(query, self.limits, found):
            previous = None if known is None else known.get(values, 0)
            yield *values, total, *((previous,) if query.against_previous else ())

    def _before_this(self, question: Question[T], wanted: Selection) -> T | None:
        before = self.before
        return None if before is None else self._beside(question, wanted, before.start, before.end)

    def _beside(self, question: Question[T], wanted: Selection, start: date, end: date) -> T | None:
        """What another range has; None where that cannot be told."""
        try:
            return question(self.snapshot, replace(wanted, start=start, end=end))
        except (RolledUp, InexactZone):
            return None

    def _streamed(self) -> Iterator[Row]:
        snapshot, query, wanted, view = self.snapshot, self.query, self.wanted, self.view
        own = snapshot.selected(wanted)
        if query.by == "key":
            yield from keyed(snapshot, Scope.of(own, wanted.start, wanted.end), wanted.keys)
        elif view is not None:
            amounts = keyed(snapshot, Scope.of(own, wanted.start, wanted.end), wanted.keys)
            projected: Iterable[tuple[tuple[str, ...], int]]
            if view.whole:
                projected = ((view.values(key), total) for key, total in amounts)
            else:
                projected = sorted(
                    view.projected(list(amounts)), key=lambda row: [*map(text_bytes, row[0])]
                )
            for values, total in projected:
                yield *values, total
        elif query.by == "key-day":
            told, begins = told_by(own, wanted, "day", strict=query.strict)
            self._note_told(begins)
            if told is not None:
                scope = Scope.of(own, told.start, told.end)
                labels = bucket_labels(snapshot, scope)
                days = sorted(set(map(own.day, labels)))
                yield from self._by_place(own, scope, labels, [(day, day) for day in days])
        else:
            scope = Scope.of(own, wanted.start, wanted.end)
            labels = bucket_labels(snapshot, scope)
            months = sorted({month_of(own.day(label)) for label in labels})
            places = [(month, month_ends(month)) for month in months]
            yield from self._by_place(own, scope, labels, places)

    def _by_place(
        self, view: View, whole: Scope, labels: list[int], places: Sequence[tuple[date, date]]
    ) -> Iterator[Row]:
        """(first day, key, total) of each of some ranges of days, which have buckets.

        Raises:
            InexactZone, RolledUp: one begins, or another day with counts begins behind one, within
                a bucket. Before the first one nothing was counted.
        """
        latest = max(map(view.last_day, labels), default=None)
        behind = [last + ONE_DAY for _, last in places if latest and last < latest]
        view.require_series(sorted({first for first, _ in places}.union(behind)))
        for first, last in places:
            scope = Scope.within(view, intersected(view.ranges(first, last), whole.ranges))
            for key, total in keyed(self.snapshot, scope, self.wanted.keys):
                yield first, key, total


def _largest(query: Query, limits: Answer, ordered: list[T]) -> list[T]:
    """The largest, as many as were asked for."""
    if query.top is not None:
        return ordered[: query.top]
    if query.most is not None and len(ordered) > query.most:
        limits.truncated = True
        return ordered[: query.most]
    return ordered

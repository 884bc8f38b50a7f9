"""Answers questions for totals from one snapshot (``answer``), and streams rows for files
(``rows``). Computes the window that a question asks for, chooses the breakdown that answers, and
notes where an answer is partial.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass, replace
from datetime import date
from typing import Any, Final, TypeVar, cast

from countersink.counting.counters.all_counters import totals_of
from countersink.counting.counters.buckets import ONE_DAY, date_at, month_ends, month_of
from countersink.counting.errors import (
    AnswerTooLarge,
    IncompleteBreakdown,
    InexactZone,
    RolledUp,
    UnknownDimension,
)
from countersink.counting.totals import sums, unions
from countersink.counting.totals.breakdown_views import BreakdownView, view_of
from countersink.counting.totals.query import (
    DIMENSIONS,
    Answer,
    Query,
    Row,
    TimeWindow,
    window_of,
    with_window,
)
from countersink.counting.totals.selection import KeyMatch, Selection
from countersink.counting.totals.series import (
    DATE_UNITS,
    UNITS,
    DateUnit,
    Unit,
    answerable,
    series,
)
from countersink.counting.totals.snapshot import SIZE, Snapshot
from countersink.counting.totals.sums import Scope, by_label, keyed
from countersink.counting.totals.views import View, intersected
from countersink.database.sql import parts
from countersink.runtime.limits import key_bytes, text_bytes
from countersink.runtime.texts import iso

T = TypeVar("T")
K = TypeVar("K")
Question = Callable[[Snapshot, Selection], T]
_SECOND_DAY: Final = date.min + ONE_DAY


def answer(snapshot: Snapshot, query: Query) -> Answer:
    """Answer a question for totals of one counter. If its selection names no counter, answer it for
    all counters for which the selection's ``visible`` returns True.

    All these counters are read together, with a few statements for each 500 counters.

    Raises:
        UnknownCounter: the named counter was neither created nor ever counted, and has no pending
            amounts.
        UnknownDimension: no breakdown has the dimensions that were asked for; or the counter has
            dimensions, and keys are asked for of which none was ever counted.
        InexactZone: the counter's buckets do not add up to the days or times asked for.
        RolledUp: the range begins or ends within a month that is a single bucket; or the query is
            ``strict``, and some of the days, weeks, hours or minutes asked for are rolled up.
        IncompleteBreakdown: the query is ``strict``, and its range begins before the breakdown
            counts events.
        AnswerTooLarge: the answer has more than ``max_rows`` rows.
        NotUnique, DamagedSketch, NoSketches: as in :mod:`countersink.counting.totals.unions`.
        StoreError: a query failed.
        ValueError: there is no such time zone; or a series is too long.
    """
    selection = query.selection
    found = Answer(query.columns, pending=snapshot.pending.entries)
    if selection.counter is not None:
        check_keys(snapshot, selection)
        shown = (selection.counter,) if query.by == "counter" else ()
        found.rows = [(*shown, *row) for row in rows(snapshot, query, found)]
    elif query.by in ("counter", "total") and selection.everything and selection.keys is None:
        # Totals of all times need no buckets.
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


def check_keys(snapshot: Snapshot, selection: Selection) -> None:
    """Raise UnknownDimension if a selection names keys of a counter with dimensions, and none of
    these keys was ever counted. Otherwise do nothing. Allowed are the key ``""``, which has all
    events with dimensions, and keys that the counter had before it got dimensions.
    """
    counter, keys = selection.counter, selection.keys
    dimensions = snapshot.shape(counter).dimensions
    if counter is None or not dimensions or not keys or isinstance(keys, KeyMatch):
        return
    view = snapshot.view(counter)
    if any(snapshot.added(counter, None, keys)) or any(
        not key or snapshot.edges(view, [key]) for key in keys
    ):
        return
    raise UnknownDimension(
        f"{counter!r} has dimensions ({', '.join(dimensions)}), and nothing was counted under the"
        f" key {keys[0]!r}: ask for their values with where, such as {dimensions[0]}={keys[0]}"
    )


def _check_number(query: Query, found: Answer) -> None:
    most = query.max_rows
    if most is not None and len(found.rows) > most:
        raise AnswerTooLarge(
            f"the answer would have more than {most:,} rows: ask for a shorter range or for fewer"
            " keys or counters, or use `countersink export`"
        )


def rows(snapshot: Snapshot, query: Query, limits: Answer) -> Iterator[Row]:
    """Yield the rows that answer a question about one counter. If the question is ``streamed``,
    rows are yielded as the server sends them: the snapshot cannot answer other questions before the
    last of these rows was yielded.

    Args:
        snapshot: the snapshot to read.
        query: a question about one counter.
        limits: an answer. While rows are yielded, this function sets ``window``, ``since``,
            ``told_from`` and ``truncated`` where they apply. Its other attributes are left alone.

    Raises:
        StoreError, ValueError: as for :func:`answer`. But the number of rows has no limit here, and
            keys are not checked: the caller calls :func:`check_keys`.
    """
    asked, view = query.selection, None
    wanted = asked
    if query.dimensional:
        view = view_of(snapshot, asked, query.dimensions)
        wanted = view.selection
    with view.renamed_errors() if view else nullcontext():
        before: TimeWindow | None = None
        if asked.last is not None:
            wanted = with_window(snapshot, wanted, asked.last, before=query.against_previous)
            limits.window = window_of(wanted)
        if query.against_previous:
            window = window_of(wanted)
            before = window and window.before
        if view is not None:
            limits.since = view.since_if_after(snapshot, wanted.start)
            if limits.since is not None and query.strict:
                begins = iso(limits.since, "minutes")
                raise IncompleteBreakdown(
                    f"the breakdown {view.breakdown.text} of {view.counter!r} counts events from"
                    f" {begins} on: ask for a range that begins then or later",
                    since=limits.since,
                )
            if before is not None and view.since_if_after(snapshot, before.start) is not None:
                before = None  # the breakdown does not cover it
        yield from _Rows(snapshot, query, limits, wanted, view, before).found()


@dataclass(frozen=True, slots=True)
class _Rows:
    """Computes the rows of an answer about one counter.

    Attributes:
        snapshot, query, limits: as for :func:`rows`.
        wanted: the selection to read. A window such as ``last="24h"`` has become a range. If a
            breakdown answers, the counter and the keys of the selection are those of the breakdown.
        view: the breakdown that answers; None if the counter itself does.
        before: the previous window, which ends where the question's range begins. None if the
            question does not ask for it, or its range lacks an end. Also None if the window would
            begin before the first possible day or time, or before the breakdown counts events.
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
        previous = () if not query.against_previous else (self._previous(sums.total, wanted),)
        return iter([(sums.total(snapshot, wanted), *previous)])

    def _series(self) -> Iterator[Row]:
        """Return the rows of days, weeks, hours, minutes or months. Note in ``limits`` if the first
        ones are left out because they are rolled up, or others because there are too many.
        """
        snapshot, query, wanted, limits = self.snapshot, self.query, self.wanted, self.limits
        unit = cast("Unit", query.by)
        found = series(snapshot, wanted, unit, strict=query.strict, uncut=query.streamed)
        limits.truncated |= found.truncated
        self._note_told_from(found.told_from)
        if query.against_previous:
            return self._with_previous(found.rows, DATE_UNITS[unit])
        if not query.unique:
            return iter(found.rows)
        places = [place for place, _ in found.rows]
        united = unions.by_unit(snapshot, wanted, unit, places)
        return ((place, *astuple(visitors)) for place, visitors in united)

    def _with_previous(self, found: Sequence[tuple[date, int]], unit: DateUnit) -> Iterator[Row]:
        """Yield each row of a series with the total of the day, week or month before. This total
        is None if it is unknown. It is also None if the row's own day, week or month is not over,
        or if days that the range cuts off from it would change its total.
        """
        snapshot, wanted, view = self.snapshot, self.wanted, self.view
        today = date_at(snapshot.selected(wanted).zone, snapshot.now_ms // 1000)
        before = {place: unit.first(max(place, _SECOND_DAY) - ONE_DAY) for place, _ in found}
        totals: dict[date, int | None] = dict(found)
        # The range lacks the one before the first, and may cut off days of the first and the last.
        for place in {before[found[0][0]], found[0][0], found[-1][0]} if found else ():
            totals[place] = self._within(sums.total, wanted, place, unit.last(place))
        for place, total in found:
            whole = unit.last(place) < today and total == totals[place]
            known = view is None or view.since_if_after(snapshot, before[place]) is None
            yield place, total, totals[before[place]] if whole and known else None

    def _note_told_from(self, begin: date | None) -> None:
        known = self.limits.told_from
        if begin is not None and (known is None or begin > known):
            self.limits.told_from = begin

    @property
    def _limit(self) -> int | None:
        """The number of rows to read: ``top``; without it ``most`` and one more row, which shows if
        there are more than ``most``; without both None, for all rows.
        """
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
        of_found = replace(wanted, keys=[key for key, _ in found])
        further: list[dict[str, int] | None] = []
        if query.against_previous:
            further.append(self._previous(sums.many, of_found))
        further += [self._within(sums.many, of_found, *days) for days in query.also]
        for key, total in found:
            yield key, total, *self._other_totals(further, key)

    def _other_totals(self, further: Sequence[Mapping[K, int] | None], row: K) -> Iterator[Any]:
        """Yield the values of the columns ``previous`` and ``also`` of a row, if the question asks
        for these columns.

        Args:
            further: for each range of these columns (the previous window first), the totals by key
                or values; None if they are unknown. A row that has no total there has 0.
            row: the key or the values of the row.
        """
        totals = [None if each is None else each.get(row, 0) for each in further]
        if self.query.against_previous:
            yield totals.pop(0)
        if self.query.also:
            yield totals

    def _by_dimensions(self) -> Iterator[Row]:
        snapshot, query, wanted, view = self.snapshot, self.query, self.wanted, self.view
        assert view is not None
        if query.unique:
            grouped = unions.by_group(snapshot, wanted, view.values)
            for values, visitors in _largest(query, self.limits, grouped):
                yield *values, *astuple(visitors)
            return
        limit = self._limit if view.one_key_each else None
        found = view.projected(sums.by_key(snapshot, wanted, limit=limit))
        # Of all keys: the values found may have had other keys in the other ranges.
        earlier = [self._previous(sums.by_key, wanted)] if query.against_previous else []
        for start, end in query.also:
            covered = view.since_if_after(snapshot, start) is None
            earlier.append(self._within(sums.by_key, wanted, start, end) if covered else None)
        further = [None if each is None else dict(view.projected(each)) for each in earlier]
        for values, total in _largest(query, self.limits, found):
            yield *values, total, *self._other_totals(further, values)

    def _previous(self, question: Question[T], wanted: Selection) -> T | None:
        """Return the answer to a question (a function such as ``sums.total``) for the previous
        window. Return None if ``before`` is None, or if the counter's buckets do not add up to it.
        """
        window = self.before
        return None if window is None else self._within(question, wanted, window.start, window.end)

    def _within(self, question: Question[T], wanted: Selection, start: date, end: date) -> T | None:
        """Return the answer to a question for ``wanted`` with another range, from ``start`` to
        ``end``; None if the counter's buckets do not add up to it.
        """
        try:
            return question(self.snapshot, replace(wanted, start=start, end=end))
        except (RolledUp, InexactZone):
            return None

    def _streamed(self) -> Iterator[Row]:
        snapshot, query, wanted, view = self.snapshot, self.query, self.wanted, self.view
        counted = snapshot.selected(wanted)
        if query.by == "key":
            yield from keyed(snapshot, Scope.of(counted, wanted.start, wanted.end), wanted.keys)
        elif view is not None:
            amounts = keyed(snapshot, Scope.of(counted, wanted.start, wanted.end), wanted.keys)
            projected: Iterable[tuple[tuple[str, ...], int]]
            if view.one_key_each:
                projected = ((view.values(key), total) for key, total in amounts)
            else:
                projected = sorted(
                    view.projected(list(amounts)), key=lambda row: [*map(text_bytes, row[0])]
                )
            for values, total in projected:
                yield *values, total
        elif query.by == "key-day":
            part, begins = answerable(counted, wanted, "day", strict=query.strict)
            self._note_told_from(begins)
            if part is not None:
                scope = Scope.of(counted, part.start, part.end)
                labels = sorted(by_label(snapshot, scope, None))
                days = sorted(set(map(counted.day, labels)))
                yield from self._by_place(counted, scope, labels, [(day, day) for day in days])
        else:
            scope = Scope.of(counted, wanted.start, wanted.end)
            labels = sorted(by_label(snapshot, scope, None))
            months = sorted({month_of(counted.day(label)) for label in labels})
            places = [(month, month_ends(month)) for month in months]
            yield from self._by_place(counted, scope, labels, places)

    def _by_place(
        self, view: View, total: Scope, labels: list[int], places: Sequence[tuple[date, date]]
    ) -> Iterator[Row]:
        """Yield (first day, key, total) for each range of days in ``places`` and each key that has
        rows in it. Days that are not in ``total`` are left out of the sums.

        Args:
            view: the counter's buckets.
            total: the buckets of the question's range.
            labels: labels of the buckets of ``total`` that have rows.
            places: (first day, last day) of each range, in order.

        Raises:
            InexactZone, RolledUp: a range, or the day after it, begins within a bucket. (The first
                range may begin there, because no earlier days have counts.)
        """
        latest = max(map(view.last_day, labels), default=None)
        following = [last + ONE_DAY for _, last in places if latest and last < latest]
        view.require_series(sorted({first for first, _ in places}.union(following)))
        for first, last in places:
            scope = Scope(view.counter, intersected(view.ranges(first, last), total.ranges))
            for key, amount in keyed(self.snapshot, scope, self.wanted.keys):
                yield first, key, amount


def _largest(query: Query, limits: Answer, ordered: list[T]) -> list[T]:
    """Return the first rows of an ordered list: at most ``top``, or at most ``most`` if ``top`` is
    None, or all if both are. If ``most`` leaves out rows, set ``truncated`` in ``limits``.
    """
    if query.top is not None:
        return ordered[: query.top]
    if query.most is not None and len(ordered) > query.most:
        limits.truncated = True
        return ordered[: query.most]
    return ordered

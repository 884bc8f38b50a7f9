"""``Reads`` for programs: totals of one MySQL snapshot, with or without what is in the queue; how
often it is read again when counters change meanwhile, and the error after that."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from typing import Any, Final, Generic, TypeVar, Unpack

import redis

from countersink.reads.errors import CatalogChanged
from countersink.reads.overview import Glance, Overview, Standing, overview, standing, today
from countersink.reads.pending import (
    UNBOUNDED,
    Bounds,
    Cell,
    Folding,
    Pending,
    Question,
    Queue,
    by_key,
    counters,
    daily,
    hourly,
    look,
    many,
    minutely,
    monthly,
    names,
    read_queue,
    settle,
    total,
)
from countersink.store import Store
from countersink.store.connection import Session
from countersink.store.counters.breakdowns import is_breakdown
from countersink.store.counters.catalog import Catalog, load
from countersink.store.errors import Conflict
from countersink.store.totals.many_counters import grouped
from countersink.store.totals.selection import (
    ANY,
    DayRange,
    KeyMatch,
    Keys,
    Selection,
    TotalsQuestion,
    picked,
    selection_of,
)
from countersink.store.totals.series import Hours, Unit, told_from
from countersink.store.totals.shapes import BreakdownView, rolled_up_to, view_of
from countersink.store.totals.windows import lacking, settled
from countersink.stream.errors import StreamError

T = TypeVar("T")

_ATTEMPTS: Final = 10
"""Reads of the queue, each because somebody changed a counter during the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Generic[T]):
    """An answer, and how fresh it is.

    Attributes:
        value: the answer.
        complete_up_to: everything that reached Redis before this time (UTC) is in it; None when
            Redis was not asked, or did not answer.
        pending: entries that the answer includes and MySQL does not yet; 0 unless they were asked
            for.
        rolled_up_to: the first day of which everything can still be told, those before it are in
            months; of several counters the latest such day; None where nothing is in months.
        unknown_because: why ``complete_up_to`` is None although there is a Redis to ask.
        since: the time from which on the breakdown that answers holds the events, where the range
            begins before it.
        told_from: the time from which on there are single hours or minutes, where an ``unrolled``
            series begins there because those before it are rolled up to wider buckets.
    """

    value: T
    complete_up_to: datetime | None = None
    pending: int = 0
    rolled_up_to: date | None = None
    unknown_because: StreamError | None = None
    since: datetime | None = None
    told_from: datetime | None = None


class ReadQuestion(TotalsQuestion, total=False):
    """The same, and whether to add what is still in the queue."""

    include_pending: bool


class Reads:
    """Totals together with what is still in the queue. Thread-safe as far as its two parts are.

    Every method takes ``include_pending``. Without it the answer is MySQL's, and ``complete_up_to``
    is the time at which the oldest entry still in a stream arrived; when Redis does not answer, the
    time is unknown and the answer comes all the same. With it the streams are read first and MySQL
    after them, in one snapshot: what has no guard row there is pending and added, but for rows that
    the worker will not count: bad ones, those of tracked tables' counters, in strict mode of
    unknown ones, and those sent before their bucket was reconciled. A key that is new stands under
    its own name, though the worker may find no room for it (``max_keys``): the sum over keys is the
    same. ``complete_up_to`` is then Redis's time before the read. That costs time and memory in
    proportion to the queue, up to ``bounds``.

    Ranges, windows, ``time_zone`` and what is rolled up are as for
    :class:`countersink.store.totals.Totals`. With ``include_pending`` a counter that is only
    pending is known.

    Raises (every method):
        UnknownDimension: no breakdown of the counter answers a question by dimensions.
        UnknownCounter: the counter was neither made nor ever counted; not for :meth:`counters`
            and :meth:`names`.
        InexactZone, RolledUp: as for Totals.
        StoreError: MySQL did not do its part.
        StreamError: nor did Redis, and pending entries were asked for.
        QueueTooLong, QueueReadStopped: as ``bounds`` have it.
        ValueError: a range that ends before it begins; no such time zone; ``include_pending``
            without a Redis.

    Args:
        store: where the totals are.
        redis_client: where the streams are, from :func:`countersink.stream.connection.connect`;
            None where there is no queue to ask.
        bounds: how much of the queue is read for pending entries.
    """

    def __init__(
        self, store: Store, redis_client: redis.Redis | None, bounds: Bounds = UNBOUNDED
    ) -> None:
        self._store = store
        self._client = redis_client
        self._bounds = bounds
        self._catalog: Catalog | None = None
        self._snapshot: Snapshot | None = None

    def ask(
        self, question: Question[T], selection: Selection, *, include_pending: bool = False
    ) -> Read[T]:
        """The answer to any question on a selection; the other methods are shorthands of this."""
        if selection.where:
            return self.viewed(
                selection,
                (),
                lambda reads, view: reads._ask_view(question, view, include_pending),
                include_pending=include_pending,
            )
        return self._within(
            selection,
            include_pending,
            lambda snapshot: snapshot.ask(question, selection, include_pending),
        )

    def viewed(
        self,
        selection: Selection,
        by: Sequence[str],
        work: Callable[["Reads", BreakdownView], T],
        *,
        include_pending: bool,
    ) -> T:
        """What ``work`` finds with the breakdown that answers a question by dimensions, of one
        moment, as :meth:`together`: it asks for what it wants of the view's ``selection``.

        Args:
            selection: of one counter.
            by: the dimensions that the rows are by.
            work: asks, ``include_pending`` or not.
            include_pending: False: it never asks for that, and the queue is not read.

        Raises:
            UnknownCounter, UnknownDimension: as
                :func:`countersink.store.totals.shapes.view_of`.
            Conflict: breakdowns were declared while the queue was read: ask again.
        """

        def view_in(session: Session) -> BreakdownView:
            return view_of(session, selection, by)

        def of(snapshot: Snapshot, expected: BreakdownView | None = None) -> T:
            view = view_in(snapshot.session)
            if expected not in (None, view):
                raise Conflict("breakdowns were declared while the queue was read: ask again")
            with view.named():
                return work(self._at(snapshot), view)

        if self._snapshot is not None or not include_pending:
            return self._within(selection, False, of)
        view = self._store.snapshot(view_in)
        wanted = Selection(view.selection.counter, keys=view.selection.keys)
        return self._with_pending(wanted, partial(of, expected=view))

    def _ask_view(
        self, question: Question[T], view: BreakdownView, include_pending: bool
    ) -> Read[T]:
        assert self._snapshot is not None
        read = self._snapshot.ask(question, view.selection, include_pending)
        return replace(read, since=lacking(self._snapshot.session, view))

    def by(
        self,
        counter: str,
        dimensions: Sequence[str],
        *,
        where: Mapping[str, str] | None = None,
        n: int | None = None,
        include_pending: bool = False,
        **days: Unpack[DayRange],
    ) -> Read[list[tuple[tuple[str, ...], int]]]:
        """(values of these dimensions, total) for every combination of them, largest first; as
        :meth:`countersink.store.totals.Totals.by`.
        """

        def of(reads: Reads, view: BreakdownView) -> Read[list[tuple[tuple[str, ...], int]]]:
            limited = partial(by_key, limit=n if view.whole else None)

            def question(
                session: Session, wanted: Selection, pending: Pending
            ) -> list[tuple[tuple[str, ...], int]]:
                return view.projected(limited(session, wanted, pending))[:n]

            return reads._ask_view(question, view, include_pending)

        wanted = selection_of(counter, where=where, **days)
        return self.viewed(wanted, dimensions, of, include_pending=include_pending)

    def _picked(
        self,
        question: Question[T],
        counter: str,
        *,
        include_pending: bool = False,
        unrolled: bool = False,
        **asked: Unpack[TotalsQuestion],
    ) -> Read[T]:
        wanted = picked(counter, unrolled=unrolled, **asked)
        return self.ask(question, wanted, include_pending=include_pending)

    def total(self, counter: str, **asked: Unpack[ReadQuestion]) -> Read[int]:
        """The sum over all keys, over one, over several, or over those that match."""
        return self._picked(total, counter, **asked)

    def daily(
        self, counter: str, *, unrolled: bool = False, **asked: Unpack[ReadQuestion]
    ) -> Read[list[tuple[date, int]]]:
        """(day, total) for each day in order, days without counts as 0.

        Where retention has rolled up days to months, it takes a ``start``, else it is a RolledUp
        error; or, with ``unrolled``, the series begins behind them.
        """
        return self._picked(daily, counter, unrolled=unrolled, **asked)

    def hourly(
        self, counter: str, *, unrolled: bool = False, **asked: Unpack[ReadQuestion]
    ) -> Read[Hours]:
        """(begin of the hour, total) for each hour in order, hours without counts as 0; the rest as
        :meth:`daily`.
        """
        return self._by_time(hourly, "hour", counter, unrolled=unrolled, **asked)

    def minutely(
        self, counter: str, *, unrolled: bool = False, **asked: Unpack[ReadQuestion]
    ) -> Read[Hours]:
        """(begin of the minute, total) for each minute in order, as :meth:`hourly`."""
        return self._by_time(minutely, "minute", counter, unrolled=unrolled, **asked)

    def _by_time(
        self, series: Question[Hours], unit: Unit, counter: str, **asked: Any
    ) -> Read[Hours]:
        told: datetime | None = None

        def question(session: Session, wanted: Selection, pending: Pending) -> Hours:
            nonlocal told
            if wanted.unrolled and wanted.start is None:
                told = told_from(session, replace(wanted, known=True), unit)
            return series(session, wanted, pending)

        read = self._picked(question, counter, **asked)
        return replace(read, told_from=told)

    def monthly(self, counter: str, **asked: Unpack[ReadQuestion]) -> Read[list[tuple[date, int]]]:
        """(first day of the month, total) for each month in order, those without counts as 0."""
        return self._picked(monthly, counter, **asked)

    def many(
        self,
        counter: str,
        keys: Iterable[str],
        *,
        include_pending: bool = False,
        **days: Unpack[DayRange],
    ) -> Read[dict[str, int]]:
        """The totals of many keys at once, in their order; 0 for those without counts."""
        wanted = selection_of(counter, list(keys), **days)
        return self.ask(many, wanted, include_pending=include_pending)

    def top(
        self,
        counter: str,
        *,
        n: int = 10,
        match: KeyMatch = ANY,
        include_pending: bool = False,
        **days: Unpack[DayRange],
    ) -> Read[list[tuple[str, int]]]:
        """The ``n`` keys with the largest totals, of those that match: (key, total), largest first,
        then by key.
        """
        wanted = picked(counter, match=match, **days)
        return self.ask(partial(by_key, limit=n), wanted, include_pending=include_pending)

    def by_key(
        self,
        counter: str,
        *,
        match: KeyMatch = ANY,
        include_pending: bool = False,
        **days: Unpack[DayRange],
    ) -> Read[list[tuple[str, int]]]:
        """(key, total) for every key of the range that matches, largest first, then by key."""
        wanted = picked(counter, match=match, **days)
        return self.ask(by_key, wanted, include_pending=include_pending)

    def counters(
        self,
        *,
        visible: Callable[[str], bool] = lambda name: True,
        include_pending: bool = False,
        **days: Unpack[DayRange],
    ) -> Read[dict[str, int]]:
        """The totals of all counters that are visible, by name."""
        wanted = selection_of(None, visible=visible, **days)
        return self.ask(counters, wanted, include_pending=include_pending)

    def names(
        self, *, visible: Callable[[str], bool] = lambda name: True, include_pending: bool = False
    ) -> Read[list[str]]:
        """The names of all counters that are visible, in order."""
        wanted = Selection(keys=(), visible=visible)
        return self.ask(names, wanted, include_pending=include_pending)

    def overview(self, glance: Glance, *, include_pending: bool = False) -> Read[Overview]:
        """Counters by name, with their totals and last days."""
        question = partial(overview, glance=glance)
        return self.ask(question, Selection(), include_pending=include_pending)

    def today(self, wanted: Sequence[str]) -> Read[tuple[list[str] | None, Overview]]:
        """All names, where they are not too many, and today's totals of those wanted."""
        return self.ask(partial(today, wanted=wanted), Selection())

    def standing(self, by: str, *, include_pending: bool = False) -> Read[Standing]:
        """What all counters are sorted by: ``today``, ``total`` or ``change``."""
        question = partial(standing, by=by)
        return self.ask(question, Selection(), include_pending=include_pending)

    def together(
        self,
        work: Callable[["Reads"], T],
        *,
        counter: str | None = None,
        keys: Keys = None,
        include_pending: bool = True,
    ) -> T:
        """What ``work`` finds with the Reads that it is given: all of its reads are of one moment,
        for which the queue is read once. It may be run again from the beginning.

        Args:
            work: asks, ``include_pending`` or not.
            include_pending: False: it never asks for that, and the queue is not read.
            counter: it asks for this one alone; None for any.
            keys: for these alone, or those that match; None for any.
        """

        return self._within(
            Selection(counter, keys=keys),
            include_pending,
            lambda snapshot: work(self._at(snapshot)),
        )

    def _at(self, snapshot: "Snapshot") -> "Reads":
        """The same, of one moment."""
        reads = copy(self)
        reads._snapshot = snapshot
        return reads

    def group(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """Within the block, and within :meth:`together`, these counters are read together: it takes
        a few queries for all of them.

        Args:
            names: at most :data:`countersink.store.totals.many_counters.SIZE`, in order of bytes,
                in which they are to be asked.
        """
        return nullcontext() if self._snapshot is None else grouped(self._snapshot.session, names)

    def _within(
        self, wanted: Selection, include_pending: bool, work: Callable[["Snapshot"], T]
    ) -> T:
        """What ``work`` finds in this snapshot, or in a new one, for which, with what is pending,
        the queue is read once; then it may be run again.
        """
        if self._snapshot is not None:
            return work(self._snapshot)
        return self._with_pending(wanted, work) if include_pending else self._without(work)

    def _without(self, work: Callable[["Snapshot"], T]) -> T:
        complete: datetime | None = None
        reason: StreamError | None = None
        if self._client is not None:
            # Before MySQL is asked: what was acknowledged by now is in its answer.
            try:
                complete = look(self._client).applied_up_to
            except StreamError as error:
                reason = error
        # A replica will do: the store holds it against what was committed after that look.
        return self._store.replica_snapshot(
            lambda session: work(Snapshot(session, complete, reason))
        )

    def _with_pending(self, wanted: Selection, work: Callable[["Snapshot"], T]) -> T:
        if self._client is None:
            raise ValueError("include_pending needs the queue: give Reads a Redis client")
        for _ in range(_ATTEMPTS):
            catalog = self._catalog = self._catalog or self._store.snapshot(load)
            # Streams first. The other way round, an entry applied in between would be in neither.
            found = read_queue(self._client, Folding(wanted, catalog), self._bounds)

            def once(session: Session, found: Queue = found, catalog: Catalog = catalog) -> T:
                pending = settle(session, found, catalog)
                queued = _Queued(found.asked, wanted, pending, catalog)
                return work(Snapshot(session, found.applied_up_to, None, queued))

            try:
                return self._store.snapshot(once)
            except CatalogChanged:
                self._catalog = None
        raise Conflict("counters were changed all the time while the queue was read: ask again")


@dataclass(frozen=True, slots=True)
class _Queued:
    """The queue of a moment.

    Attributes:
        asked: Redis's time before it was read.
        wanted: which rows of it were read; no read is about others.
        pending: what of them is not in the snapshot.
        catalog: by which they were put into buckets.
    """

    asked: datetime
    wanted: Selection
    pending: Pending
    catalog: Catalog


@dataclass(slots=True)
class Snapshot:
    """One moment, of which any number of questions can be asked.

    Attributes:
        session: in the snapshot.
        complete: everything that reached Redis before this time is in it.
        reason: why that is not known.
        queued: what the queue held; None: it was not read, and nothing pending is asked for.
    """

    session: Session
    complete: datetime | None
    reason: StreamError | None
    queued: _Queued | None = None
    _cells: dict[str, dict[Cell, int]] | None = None

    def ask(self, question: Question[T], wanted: Selection, include_pending: bool) -> Read[T]:
        """The answer of this moment."""
        pending, complete = Pending(), self.complete
        queued = self.queued if include_pending else None
        if include_pending and queued is None:
            raise ValueError("of this moment the queue was not read: ask for what is pending")
        of = wanted.counter
        if queued is not None and of and is_breakdown(of) and queued.wanted.counter != of:
            raise ValueError(
                "of this moment the queue was not read for breakdowns: what is pending of one is"
                " asked for by itself"
            )
        if wanted.last is not None and (wanted.counter is not None or queued is not None):
            if wanted.counter is None:
                raise ValueError(
                    "windows are of each counter's own buckets, so what is pending is added to one"
                    " counter's at a time: name it"
                )
            known = queued is not None and wanted.counter in queued.pending.counters
            wanted = settled(self.session, replace(wanted, known=wanted.known or known))
        if queued is not None:
            pending, complete = self._of(queued, wanted), queued.asked
        value = question(self.session, wanted, pending)
        return Read(
            value=value,
            complete_up_to=complete,
            pending=pending.entries,
            rolled_up_to=rolled_up_to(self.session, wanted.counter, wanted.visible),
            unknown_because=self.reason,
        )

    def _of(self, queued: _Queued, wanted: Selection) -> Pending:
        """Of what is pending that which is wanted."""
        if wanted == queued.wanted:
            return queued.pending
        counters, cells = queued.pending.counters, queued.pending.cells
        if wanted.counter is not None:
            counters = counters & {wanted.counter}
            cells = self._by_counter(queued.pending).get(wanted.counter, {})
        folding = Folding(wanted, queued.catalog)
        left = {cell: amount for cell, amount in cells.items() if folding.wants(cell)}
        return Pending(queued.pending.entries, counters, left)

    def _by_counter(self, pending: Pending) -> dict[str, dict[Cell, int]]:
        if self._cells is None:
            self._cells = {}
            for cell, amount in pending.cells.items():
                self._cells.setdefault(cell[0], {})[cell] = amount
        return self._cells

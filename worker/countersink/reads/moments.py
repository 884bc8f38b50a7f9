"""The moments that answers are of: a snapshot for each read, or one for several of them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, Generic, Protocol, TypeVar

import redis

from countersink.reads import queue
from countersink.reads.pending import Pending, PoliciesChanged, settle
from countersink.reads.queue import Bounds, Queue
from countersink.reads.wanted import Cell, Folding, Wanted
from countersink.store import Store, policies
from countersink.store.connection import Session
from countersink.store.errors import Conflict
from countersink.store.groups import grouped
from countersink.store.policies import Policies
from countersink.store.shapes import rolled_up_to
from countersink.stream.errors import StreamError

T = TypeVar("T")

_ATTEMPTS: Final = 10
"""Reads of the queue, each because somebody changed a counter's policy during the one before."""


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
    """

    value: T
    complete_up_to: datetime | None = None
    pending: int = 0
    rolled_up_to: date | None = None
    unknown_because: StreamError | None = None


class Moment(Protocol):
    """Where a read takes its snapshot from. Both methods raise as
    :class:`countersink.reads.reads.Reads`.
    """

    def read(
        self, wanted: Wanted, include_pending: bool, ask: Callable[[Session, Wanted, Pending], T]
    ) -> Read[T]:
        """What ``ask`` finds."""

    def together(self, wanted: Wanted, include_pending: bool, work: Callable[["Moment"], T]) -> T:
        """What ``work`` finds with any number of reads of one moment."""

    def group(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """Within the block these counters are read together, where reads are of one moment."""


class Each:
    """Every read is of a moment of its own. See :class:`countersink.reads.reads.Reads`."""

    def __init__(self, store: Store, client: redis.Redis | None, bounds: Bounds) -> None:
        self._store = store
        self._client = client
        self._bounds = bounds
        self._policies: Policies | None = None

    def read(
        self, wanted: Wanted, include_pending: bool, ask: Callable[[Session, Wanted, Pending], T]
    ) -> Read[T]:
        """What ``ask`` finds, in a snapshot of its own."""
        return self.together(
            wanted, include_pending, lambda moment: moment.read(wanted, include_pending, ask)
        )

    def together(self, wanted: Wanted, include_pending: bool, work: Callable[[Moment], T]) -> T:
        """What ``work`` finds with one snapshot, and, with what is pending, the queue, read once;
        it may be run again.
        """
        return self._with_pending(wanted, work) if include_pending else self._without(work)

    def group(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """Nothing: each is read by itself."""
        return nullcontext()

    def _without(self, work: Callable[[Moment], T]) -> T:
        complete: datetime | None = None
        reason: StreamError | None = None
        if self._client is not None:
            # Before MySQL is asked: what was acknowledged by now is in its answer.
            try:
                complete = queue.look(self._client).applied_up_to
            except StreamError as error:
                reason = error
        return self._store.snapshot(lambda session: work(One(session, complete, reason)))

    def _with_pending(self, wanted: Wanted, work: Callable[[Moment], T]) -> T:
        if self._client is None:
            raise ValueError("include_pending needs the queue: give Reads a Redis client")
        for _ in range(_ATTEMPTS):
            in_force = self._policies or self._store.snapshot(policies.load)
            self._policies = in_force
            # Streams first. The other way round, an entry applied in between would be in neither.
            found = queue.read(self._client, Folding(wanted, in_force), self._bounds)

            def once(session: Session, found: Queue = found, in_force: Policies = in_force) -> T:
                pending = settle(session, found, in_force)
                queued = _Queued(found, wanted, pending, in_force)
                return work(One(session, found.applied_up_to, None, queued))

            try:
                return self._store.snapshot(once)
            except PoliciesChanged:
                self._policies = None
        raise Conflict("counters were changed all the time while the queue was read: ask again")


@dataclass(frozen=True, slots=True)
class _Queued:
    """The queue of a moment.

    Attributes:
        found: what it held before the snapshot began.
        wanted: which rows of it were read; no read is about others.
        pending: what of them is not in the snapshot.
        policies: those by which they were put into buckets.
    """

    found: Queue
    wanted: Wanted
    pending: Pending
    policies: Policies


class One:
    """All reads are of the same moment.

    Args:
        session: in the snapshot.
        complete: everything that reached Redis before this time is in it.
        reason: why that is not known.
        queued: what the queue held; None: it was not read, and nothing pending is asked for.
    """

    def __init__(
        self,
        session: Session,
        complete: datetime | None,
        reason: StreamError | None,
        queued: _Queued | None = None,
    ) -> None:
        self._session = session
        self._complete = complete
        self._reason = reason
        self._queued = queued
        self._cells: dict[str, dict[Cell, int]] | None = None

    def read(
        self, wanted: Wanted, include_pending: bool, ask: Callable[[Session, Wanted, Pending], T]
    ) -> Read[T]:
        """What ``ask`` finds, in this snapshot."""
        pending, complete = Pending(), self._complete
        if include_pending:
            if self._queued is None:
                raise ValueError("of this moment the queue was not read: ask for what is pending")
            pending, complete = self._of(self._queued, wanted), self._queued.found.asked
        value = ask(self._session, wanted, pending)
        return Read(
            value=value,
            complete_up_to=complete,
            pending=pending.entries,
            rolled_up_to=rolled_up_to(self._session, wanted.counter, wanted.visible),
            unknown_because=self._reason,
        )

    def together(self, wanted: Wanted, include_pending: bool, work: Callable[[Moment], T]) -> T:
        """What ``work`` finds, in this snapshot."""
        return work(self)

    def group(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """Within the block these counters are read together."""
        return grouped(self._session, names)

    def _of(self, queued: _Queued, wanted: Wanted) -> Pending:
        """Of what is pending that which is wanted."""
        if wanted == queued.wanted:
            return queued.pending
        counters, cells = queued.pending.counters, queued.pending.cells
        if wanted.counter is not None:
            counters = counters & {wanted.counter}
            cells = self._by_counter(queued.pending).get(wanted.counter, {})
        folding = Folding(wanted, queued.policies)
        left = {cell: amount for cell, amount in cells.items() if folding.wants(cell)}
        return Pending(queued.pending.entries, counters, left)

    def _by_counter(self, pending: Pending) -> dict[str, dict[Cell, int]]:
        if self._cells is None:
            self._cells = {}
            for cell, amount in pending.cells.items():
                self._cells.setdefault(cell[0], {})[cell] = amount
        return self._cells

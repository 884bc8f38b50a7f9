"""Totals that say how fresh they are, and can include what is still in the queue, exactly."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Generic, TypeVar

import redis

from countersink.reads import merge, queue
from countersink.reads.pending import Pending, settle
from countersink.reads.queue import Wanted
from countersink.store import Store
from countersink.store.connection import Session
from countersink.store.totals_sql import chosen_keys
from countersink.stream.errors import StreamError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Generic[T]):
    """An answer, and how fresh it is.

    Attributes:
        value: the answer.
        complete_up_to: everything that reached Redis before this time (UTC) is in it; None when
            Redis was not asked, or did not answer.
        pending: entries that the answer includes and MySQL does not yet; 0 unless they were asked
            for.
        unknown_because: why ``complete_up_to`` is None although there is a Redis to ask.
    """

    value: T
    complete_up_to: datetime | None = None
    pending: int = 0
    unknown_because: StreamError | None = None


class Reads:
    """Totals together with what is still in the queue. Thread-safe as far as its two parts are.

    Every method takes ``include_pending``. Without it the answer is MySQL's, and ``complete_up_to``
    is the time at which the oldest entry still in a stream arrived; when Redis does not answer, the
    time is unknown and the answer comes all the same. With it the streams are read first and MySQL
    after them, in one snapshot: what has no guard row there is pending and added, bad rows left out
    as the worker will; ``complete_up_to`` is then Redis's time before the read. That costs time and
    memory in proportion to the queue.

    Days are UTC and ranges include both ends, as for :class:`countersink.store.totals.Totals`. With
    ``include_pending`` a counter that is only pending is known.

    Raises (every method):
        UnknownCounter: nothing was ever counted under the name; not for :meth:`counters`.
        StoreError: MySQL did not do its part.
        StreamError: nor did Redis, and pending entries were asked for.
        ValueError: a range that ends before it begins; ``include_pending`` without a Redis.

    Args:
        store: where the totals are.
        redis_client: where the streams are, from :func:`countersink.stream.connection.connect`;
            None where there is no queue to ask.
    """

    def __init__(self, store: Store, redis_client: redis.Redis | None) -> None:
        self._store = store
        self._client = redis_client

    def total(
        self,
        counter: str,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        start: date | None = None,
        end: date | None = None,
        include_pending: bool = False,
    ) -> Read[int]:
        """The sum over all keys, over one, or over several."""
        chosen = chosen_keys(key, keys)
        return self._read(
            Wanted(counter=counter, keys=chosen, start=start, end=end),
            include_pending,
            lambda session, pending: merge.total(session, counter, pending, chosen, start, end),
        )

    def daily(
        self,
        counter: str,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        start: date | None = None,
        end: date | None = None,
        include_pending: bool = False,
    ) -> Read[list[tuple[date, int]]]:
        """(day, total) for each day in order, days without counts as 0."""
        chosen = chosen_keys(key, keys)
        return self._read(
            Wanted(counter=counter, keys=chosen, start=start, end=end),
            include_pending,
            lambda session, pending: merge.daily(session, counter, pending, chosen, start, end),
        )

    def many(
        self,
        counter: str,
        keys: Iterable[str],
        *,
        start: date | None = None,
        end: date | None = None,
        include_pending: bool = False,
    ) -> Read[dict[str, int]]:
        """The totals of many keys at once, in their order; 0 for those without counts."""
        chosen = list(keys)
        return self._read(
            Wanted(counter=counter, keys=chosen, start=start, end=end),
            include_pending,
            lambda session, pending: merge.many(session, counter, pending, chosen, start, end),
        )

    def top(
        self,
        counter: str,
        *,
        start: date | None = None,
        end: date | None = None,
        n: int = 10,
        include_pending: bool = False,
    ) -> Read[list[tuple[str, int]]]:
        """The ``n`` keys with the largest totals: (key, total), largest first, then by key."""
        return self._read(
            Wanted(counter=counter, start=start, end=end),
            include_pending,
            lambda session, pending: merge.by_key(session, counter, pending, start, end, n),
        )

    def by_key(
        self,
        counter: str,
        *,
        start: date | None = None,
        end: date | None = None,
        include_pending: bool = False,
    ) -> Read[list[tuple[str, int]]]:
        """(key, total) for every key of the range, largest first, then by key."""
        return self._read(
            Wanted(counter=counter, start=start, end=end),
            include_pending,
            lambda session, pending: merge.by_key(session, counter, pending, start, end),
        )

    def counters(
        self,
        *,
        start: date | None = None,
        end: date | None = None,
        include_pending: bool = False,
    ) -> Read[dict[str, int]]:
        """The totals of all counters, by name."""
        return self._read(
            Wanted(start=start, end=end),
            include_pending,
            lambda session, pending: merge.counters(session, pending, start, end),
        )

    def _read(
        self, wanted: Wanted, include_pending: bool, ask: Callable[[Session, Pending], T]
    ) -> Read[T]:
        if include_pending:
            return self._with_pending(wanted, ask)
        complete: datetime | None = None
        reason: StreamError | None = None
        if self._client is not None:
            # Before MySQL is asked: what was acknowledged by now is in its answer.
            try:
                complete = queue.look(self._client).applied_up_to
            except StreamError as error:
                reason = error
        value = self._store.snapshot(lambda session: ask(session, Pending()))
        return Read(value=value, complete_up_to=complete, unknown_because=reason)

    def _with_pending(self, wanted: Wanted, ask: Callable[[Session, Pending], T]) -> Read[T]:
        if self._client is None:
            raise ValueError("include_pending needs the queue: give Reads a Redis client")
        # Streams first. The other way round, an entry applied in between would be in neither.
        found = queue.read(self._client, wanted)

        def work(session: Session) -> tuple[T, int]:
            pending = settle(session, found)
            return ask(session, pending), pending.entries

        value, entries = self._store.snapshot(work)
        return Read(value=value, complete_up_to=found.asked, pending=entries)

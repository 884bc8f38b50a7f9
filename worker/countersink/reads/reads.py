"""Totals that say how fresh they are, and can include what is still in the queue, exactly."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, Generic, TypeVar

import redis

from countersink.reads import merge, queue
from countersink.reads.overview import Glance, Overview, overview
from countersink.reads.pending import Pending, PoliciesChanged, settle
from countersink.reads.queue import Queue
from countersink.reads.wanted import Folding, Wanted
from countersink.store import Store, policies
from countersink.store.connection import Session
from countersink.store.errors import Conflict
from countersink.store.hours import Series
from countersink.store.key_match import ANY, KeyMatch
from countersink.store.keys import chosen_keys
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
    proportion to the queue.

    Ranges, ``time_zone`` and what is rolled up to months are as for
    :class:`countersink.store.totals.Totals`. With ``include_pending`` a counter that is only
    pending is known.

    Raises (every method):
        UnknownCounter: the counter was neither made nor ever counted; not for :meth:`counters`
            and :meth:`names`.
        InexactZone, RolledUp: as for Totals.
        StoreError: MySQL did not do its part.
        StreamError: nor did Redis, and pending entries were asked for.
        ValueError: a range that ends before it begins; no such time zone; ``include_pending``
            without a Redis.

    Args:
        store: where the totals are.
        redis_client: where the streams are, from :func:`countersink.stream.connection.connect`;
            None where there is no queue to ask.
    """

    def __init__(self, store: Store, redis_client: redis.Redis | None) -> None:
        self._store = store
        self._client = redis_client
        self._policies: Policies | None = None

    def total(
        self,
        counter: str,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
        include_pending: bool = False,
    ) -> Read[int]:
        """The sum over all keys, over one, or over several."""
        wanted = Wanted(
            counter=counter, keys=chosen_keys(key, keys), start=start, end=end, time_zone=time_zone
        )
        return self._read(wanted, include_pending, merge.total)

    def daily(
        self,
        counter: str,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
        include_pending: bool = False,
    ) -> Read[list[tuple[date, int]]]:
        """(day, total) for each day in order, days without counts as 0."""
        wanted = Wanted(
            counter=counter, keys=chosen_keys(key, keys), start=start, end=end, time_zone=time_zone
        )
        return self._read(wanted, include_pending, merge.daily)

    def hourly(
        self,
        counter: str,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
        include_pending: bool = False,
    ) -> Read[Series]:
        """(begin of the hour, total) for each hour in order, hours without counts as 0."""
        wanted = Wanted(
            counter=counter, keys=chosen_keys(key, keys), start=start, end=end, time_zone=time_zone
        )
        return self._read(wanted, include_pending, merge.hourly)

    def monthly(
        self,
        counter: str,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
        include_pending: bool = False,
    ) -> Read[list[tuple[date, int]]]:
        """(first day of the month, total) for each month in order, those without counts as 0."""
        wanted = Wanted(
            counter=counter, keys=chosen_keys(key, keys), start=start, end=end, time_zone=time_zone
        )
        return self._read(wanted, include_pending, merge.monthly)

    def many(
        self,
        counter: str,
        keys: Iterable[str],
        *,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
        include_pending: bool = False,
    ) -> Read[dict[str, int]]:
        """The totals of many keys at once, in their order; 0 for those without counts."""
        chosen = list(keys)
        wanted = Wanted(counter=counter, keys=chosen, start=start, end=end, time_zone=time_zone)
        return self._read(
            wanted,
            include_pending,
            lambda session, wanted, pending: merge.many(session, wanted, pending, chosen),
        )

    def top(
        self,
        counter: str,
        *,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
        n: int = 10,
        match: KeyMatch = ANY,
        include_pending: bool = False,
    ) -> Read[list[tuple[str, int]]]:
        """The ``n`` keys with the largest totals, of those that match: (key, total), largest first,
        then by key.
        """
        wanted = Wanted(counter=counter, start=start, end=end, time_zone=time_zone)
        return self._read(
            wanted,
            include_pending,
            lambda session, wanted, pending: merge.by_key(session, wanted, pending, n, match),
        )

    def by_key(
        self,
        counter: str,
        *,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
        match: KeyMatch = ANY,
        include_pending: bool = False,
    ) -> Read[list[tuple[str, int]]]:
        """(key, total) for every key of the range that matches, largest first, then by key."""
        wanted = Wanted(counter=counter, start=start, end=end, time_zone=time_zone)
        return self._read(
            wanted,
            include_pending,
            lambda session, wanted, pending: merge.by_key(session, wanted, pending, match=match),
        )

    def counters(
        self,
        *,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
        include_pending: bool = False,
    ) -> Read[dict[str, int]]:
        """The totals of all counters, by name."""
        wanted = Wanted(start=start, end=end, time_zone=time_zone)
        return self._read(wanted, include_pending, merge.counters)

    def names(self, *, include_pending: bool = False) -> Read[list[str]]:
        """The names of all counters, in order."""
        return self._read(Wanted(keys=()), include_pending, merge.names)

    def overview(self, glance: Glance, *, include_pending: bool = False) -> Read[Overview]:
        """Counters by name, with their totals and last days."""
        return self._read(
            Wanted(),
            include_pending,
            lambda session, _, pending: overview(session, pending, glance),
        )

    def _read(
        self, wanted: Wanted, include_pending: bool, ask: Callable[[Session, Wanted, Pending], T]
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

        def work(session: Session) -> tuple[T, date | None]:
            value = ask(session, wanted, Pending())
            return value, rolled_up_to(session, wanted.counter)

        value, rolled = self._store.snapshot(work)
        return Read(
            value=value, complete_up_to=complete, rolled_up_to=rolled, unknown_because=reason
        )

    def _with_pending(
        self, wanted: Wanted, ask: Callable[[Session, Wanted, Pending], T]
    ) -> Read[T]:
        if self._client is None:
            raise ValueError("include_pending needs the queue: give Reads a Redis client")
        for _ in range(_ATTEMPTS):
            in_force = self._policies or self._store.snapshot(policies.load)
            self._policies = in_force
            # Streams first. The other way round, an entry applied in between would be in neither.
            found = queue.read(self._client, Folding(wanted, in_force))

            def work(
                session: Session, found: Queue = found, in_force: Policies = in_force
            ) -> tuple[T, int, date | None]:
                pending = settle(session, found, in_force)
                value = ask(session, wanted, pending)
                return value, pending.entries, rolled_up_to(session, wanted.counter)

            try:
                value, entries, rolled = self._store.snapshot(work)
            except PoliciesChanged:
                self._policies = None
                continue
            return Read(
                value=value, complete_up_to=found.asked, pending=entries, rolled_up_to=rolled
            )
        raise Conflict("counters were changed all the time while the queue was read: ask again")

"""Totals that say how fresh they are, and can include what is still in the queue, exactly."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from datetime import date
from typing import TypeVar

import redis

from countersink.reads import merge
from countersink.reads.moments import Each, Moment, Read
from countersink.reads.overview import Glance, Overview, overview
from countersink.reads.pending import Pending
from countersink.reads.queue import UNBOUNDED, Bounds
from countersink.reads.wanted import Wanted
from countersink.store import Store
from countersink.store.connection import Session
from countersink.store.hours import Series
from countersink.store.key_match import ANY, KeyMatch
from countersink.store.keys import chosen_keys

T = TypeVar("T")


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

    Ranges, ``time_zone`` and what is rolled up to months are as for
    :class:`countersink.store.totals.Totals`. With ``include_pending`` a counter that is only
    pending is known.

    Raises (every method):
        UnknownCounter: the counter was neither made nor ever counted; not for :meth:`counters`
            and :meth:`names`.
        InexactZone, RolledUp: as for Totals.
        StoreError: MySQL did not do its part.
        StreamError: nor did Redis, and pending entries were asked for.
        QueueTooLong, Stopped: as ``bounds`` have it (:mod:`countersink.reads.queue`).
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
        self._moment: Moment = Each(store, redis_client, bounds)

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
        visible: Callable[[str], bool] = lambda name: True,
        include_pending: bool = False,
    ) -> Read[dict[str, int]]:
        """The totals of all counters that are visible, by name."""
        wanted = Wanted(start=start, end=end, time_zone=time_zone, visible=visible)
        return self._read(wanted, include_pending, merge.counters)

    def names(
        self,
        *,
        visible: Callable[[str], bool] = lambda name: True,
        include_pending: bool = False,
    ) -> Read[list[str]]:
        """The names of all counters that are visible, in order."""
        return self._read(Wanted(keys=(), visible=visible), include_pending, merge.names)

    def overview(self, glance: Glance, *, include_pending: bool = False) -> Read[Overview]:
        """Counters by name, with their totals and last days."""
        return self._read(
            Wanted(),
            include_pending,
            lambda session, _, pending: overview(session, pending, glance),
        )

    def together(
        self,
        work: Callable[["Reads"], T],
        *,
        counter: str | None = None,
        keys: Sequence[str] | None = None,
        include_pending: bool = True,
    ) -> T:
        """What ``work`` finds with the Reads that it is given: all of its reads are of one moment,
        for which the queue is read once. It may be run again from the beginning.

        Args:
            work: asks, ``include_pending`` or not.
            include_pending: False: it never asks for that, and the queue is not read.
            counter: it asks for this one alone; None for any.
            keys: for these alone; None for any.
        """

        def of(moment: Moment) -> T:
            reads = copy(self)
            reads._moment = moment
            return work(reads)

        return self._moment.together(Wanted(counter=counter, keys=keys), include_pending, of)

    def group(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """Within the block, and within :meth:`together`, these counters are read together: it takes
        a few queries for all of them.

        Args:
            names: at most :data:`countersink.store.groups.SIZE`, in order of bytes, in which they
                are to be asked.
        """
        return self._moment.group(names)

    def _read(
        self, wanted: Wanted, include_pending: bool, ask: Callable[[Session, Wanted, Pending], T]
    ) -> Read[T]:
        return self._moment.read(wanted, include_pending, ask)

"""Totals together with what is still in the queue, and how fresh they are (``Reads``): of one MySQL
snapshot; how often the queue is read again when counters change meanwhile, and the error after
that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

import redis

from countersink.reads.errors import CatalogChanged
from countersink.reads.pending import UNBOUNDED, Bounds, Folding, Queue, look, read_queue, settle
from countersink.store import Store
from countersink.store.connection import Session
from countersink.store.counters.catalog import Catalog, load
from countersink.store.errors import Conflict
from countersink.store.totals.answer import answer
from countersink.store.totals.query import Answer, Query
from countersink.store.totals.selection import Selection
from countersink.store.totals.snapshot import Snapshot
from countersink.stream.errors import StreamError

T = TypeVar("T")

ANYTHING: Final = Query(Selection(), by="counter")
"""Any question that no breakdown answers."""
_ATTEMPTS: Final = 10
"""Reads of the queue, each because somebody changed a counter during the one before."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment, of which any number of questions can be asked.

    Attributes:
        snapshot: of MySQL, with what is pending if that was asked for.
        complete_up_to: everything that reached Redis before this time (UTC) is in it; None when
            Redis was not asked, or did not answer.
        unknown_because: why that is not known although there is a Redis to ask.
    """

    snapshot: Snapshot
    complete_up_to: datetime | None = None
    unknown_because: StreamError | None = None

    def ask(self, query: Query) -> Answer:
        """The answer of this moment; ``include_pending`` has no say in it.

        Raises:
            StoreError, ValueError: as :func:`countersink.store.totals.answer.answer`.
        """
        found = answer(self.snapshot, query)
        found.complete_up_to = self.complete_up_to
        found.unknown_because = self.unknown_because
        return found


class Reads:
    """Totals together with what is still in the queue. Thread-safe as far as its two parts are.

    Without ``include_pending`` an answer is MySQL's, and ``complete_up_to`` is the time at which
    the oldest entry still in a stream arrived; when Redis does not answer, the time is unknown and
    the answer comes all the same. With it the streams are read first and MySQL after them, in one
    snapshot: what has no guard row there is pending and added, but for rows that the worker will
    not count: bad ones, those of tracked tables' counters, in strict mode of unknown ones, and
    those sent before their bucket was reconciled. A key that is new stands under its own name,
    though the worker may find no room for it (``max_keys``): the sum over keys is the same.
    ``complete_up_to`` is then Redis's time before the read. That costs time and memory in
    proportion to the queue, up to ``bounds``.

    Raises (every method):
        StoreError, ValueError: as :func:`countersink.store.totals.answer.answer`.
        StreamError: Redis did not do its part, and pending entries were asked for.
        QueueTooLong, QueueReadStopped: as ``bounds`` have it.
        Conflict: counters were changed all the time while the queue was read.
        ValueError: ``include_pending`` without a Redis.

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

    def ask(self, query: Query) -> Answer:
        """The answer to a question, of one moment."""
        return self.read(lambda moment: moment.ask(query), query)

    def read(self, work: Callable[[Moment], T], query: Query = ANYTHING) -> T:
        """What ``work`` finds at one moment, for which the queue is read at most once. It may be
        run again from the beginning.

        Args:
            work: asks questions.
            query: whether it asks for what is pending, of which counter and keys.
        """
        if query.include_pending:
            return self._with_pending(work, query)
        complete, reason = self.applied_up_to()
        # A replica will do: the store holds it against what was committed after that look.
        return self._store.replica_snapshot(
            lambda session: work(Moment(Snapshot(session), complete, reason))
        )

    def applied_up_to(self) -> tuple[datetime | None, StreamError | None]:
        """The time before which everything that reached Redis is in MySQL from now on, if it is
        known; and why it is not, although there is a Redis.
        """
        if self._client is None:
            return None, None
        try:
            return look(self._client).applied_up_to, None
        except StreamError as error:
            return None, error

    def _with_pending(self, work: Callable[[Moment], T], query: Query) -> T:
        if self._client is None:
            raise ValueError("include_pending needs the queue: give Reads a Redis client")
        for _ in range(_ATTEMPTS):
            catalog = self._catalog = self._catalog or self._store.snapshot(load)
            # Streams first. The other way round, an entry applied in between would be in neither.
            found = read_queue(self._client, Folding(query, catalog), self._bounds)

            def once(session: Session, found: Queue = found, catalog: Catalog = catalog) -> T:
                pending = settle(session, found, catalog)
                return work(Moment(Snapshot(session, pending), found.asked))

            try:
                return self._store.snapshot(once)
            except CatalogChanged:
                self._catalog = None
        raise Conflict("counters were changed all the time while the queue was read: ask again")

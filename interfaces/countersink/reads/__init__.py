"""``Reads`` answers queries for totals from one MySQL snapshot, and on request adds the rows that
are still in the queue. Each answer has the time up to which it is complete, if Redis answers.

The streams are read before the MySQL snapshot begins. If a worker applies an entry in between, the
snapshot has the entry's guard, so the entry is counted once. If the queue is read, a counter with
rows only there exists too. ``max_pending_entries`` in ``web/options.py`` is the limit over HTTP.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar

import redis

from countersink.counting.apply import guards
from countersink.counting.apply.guards import read_control
from countersink.counting.counters.all_counters import known_names
from countersink.counting.counters.catalog import Catalog, accepted, load
from countersink.counting.errors import CatalogChanged
from countersink.counting.totals.answer import answer
from countersink.counting.totals.query import Answer, Query
from countersink.counting.totals.selection import KeyMatch, Selection
from countersink.counting.totals.snapshot import Pending, Snapshot
from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.runtime.dimensions import RowKey
from countersink.runtime.limits import stored_form
from countersink.store import Store
from countersink.stream.connection import command, earliest_us, ends
from countersink.stream.decode import MAX_AT, Decoded, decode
from countersink.stream.entry import pages
from countersink.stream.errors import QueueReadStopped, QueueTooLong, StreamError
from countersink.stream.names import stream_keys

__all__ = ["ANYTHING", "Moment", "Reads"]


T = TypeVar("T")

ANYTHING: Final = Query(Selection(), by="counter")
"""A query for all counters and keys, without dimensions and without the queue."""
_ATTEMPTS: Final = 10
"""Maximum number of reads of the queue. A read is repeated if the catalog changed during it."""
_PAGE: Final = 100
"""Entries that one command reads. Our own producers write at most 1,000 rows into an entry."""
Cell = tuple[str, int, str]
"""A cell: counter, bucket (by its label, a number) and key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of one read of the queue.

    Attributes:
        entries: maximum number of entries in all streams together; None for no limit.
        rows: maximum number of rows in these entries; None for no limit.
        stop: is called for each page of entries; True ends the read with QueueReadStopped.
    """

    entries: int | None = None
    rows: int | None = None
    stop: Callable[[], bool] = lambda: False

    def check(self, entries: int, rows: int = 0) -> None:
        """Compare numbers of entries and rows in the queue with the limits.

        Raises:
            QueueTooLong: a limit is exceeded.
        """
        if self.entries is not None and entries > self.entries:
            raise QueueTooLong(f"the queue has more than {self.entries:,} entries")
        if self.rows is not None and rows > self.rows:
            raise QueueTooLong(f"the queue has more than {self.rows:,} rows")


UNBOUNDED: Final = Bounds()


@dataclass(frozen=True, slots=True)
class Queued:
    """Sums by cell of the rows of one entry that the query of :class:`EntrySums` selects. Faulty
    rows, rows with undeclared dimensions, and rows that a reconcile has included are left out.

    Attributes:
        sent_ms: Unix ms at which the producer first tried to send the entry.
        counters: the selected counters (by dimensions, their breakdowns, too) that the entry has
            rows of, even if none of these rows has a selected key.
        cells: the sum of the selected rows of each cell.
    """

    sent_ms: int
    counters: frozenset[str]
    cells: dict[Cell, int]


@dataclass(slots=True)
class Queue:
    """The entries of all streams, and the time at which they were read.

    Attributes:
        read_at: Redis's time before the first stream was read; on a cluster, the earliest clock's.
        oldest: time at which the oldest entry still in a stream arrived; None if all were empty.
        entries: the sums of each entry, by entry id (16 bytes).
    """

    read_at: datetime
    oldest: datetime | None = None
    entries: dict[bytes, Queued] = field(default_factory=dict)

    @property
    def applied_up_to(self) -> datetime:
        """The time before which every entry that reached Redis is in MySQL."""
        return self.read_at if self.oldest is None else min(self.oldest, self.read_at)


class EntrySums:
    """Adds up the selected rows of entries by cell. The buckets are those of the catalog.

    Args:
        query: selects rows by counter and keys. If it asks for dimensions, rows are added up for
            the counter's breakdowns as well.
        catalog: tells in which bucket a row is counted.
    """

    def __init__(self, query: Query, catalog: Catalog) -> None:
        self.catalog = catalog
        self._counter = query.selection.counter
        self._broken_down = query.dimensional
        keys = query.selection.keys
        self._keys: frozenset[str] | KeyMatch | None
        if keys is None or isinstance(keys, KeyMatch):
            self._keys = keys
        else:
            self._keys = frozenset(map(stored_form, keys))
        self._labels: dict[tuple[str, int], int] = {}
        # Most entries have cells of earlier entries: equal cells share one object.
        self._cells: dict[Cell, Cell] = {}
        self._counters: dict[frozenset[str], frozenset[str]] = {}

    def add(self, entry: Decoded) -> Queued:
        """Return the selected rows of an entry, added up by cell."""
        counters: set[str] = set()
        cells: dict[Cell, int] = {}
        before = self.catalog.marked_before
        when = accepted(bytes.fromhex(entry.id), entry.at) if before else 0
        for _, counter, key, minute, amount in entry.rows:
            if self._counter is not None and counter != self._counter:
                continue
            if when < before and self.catalog.mark(counter, minute, when) is not None:
                continue
            for name, counted_key in self._counter_keys(counter, key, minute):
                counters.add(name)
                if self._keys is not None and counted_key not in self._keys:
                    continue
                if (name, minute) not in self._labels:
                    self._labels[name, minute] = self.catalog.bucket(name, minute)
                cell: Cell = name, self._labels[name, minute], counted_key
                cell = self._cells.setdefault(cell, cell)
                cells[cell] = cells.get(cell, 0) + amount
        named = frozenset(counters)
        return Queued(entry.at, self._counters.setdefault(named, named), cells)

    def _counter_keys(self, counter: str, key: RowKey, minute: int) -> Iterator[tuple[str, str]]:
        """Yield the (counter, key) pairs under which a row is counted: its counter, and the
        counter's breakdowns if the query has dimensions. A row with an undeclared dimension has no
        pairs."""
        dimensioned = self.catalog.dimensioned.get(counter)
        if isinstance(key, str):
            yield counter, key
        elif dimensioned is None or any(name not in dimensioned.dimensions for name, _ in key):
            return
        else:
            yield counter, ""
        if self._broken_down and dimensioned is not None:
            for breakdown, composed in dimensioned.cells(key, minute):
                yield breakdown.name, composed


def read_oldest(client: redis.Redis) -> Queue:
    """Return a queue without its entries: with ``read_at`` and ``oldest`` only. This takes one
    small read per stream.

    Raises:
        StreamError: Redis did not answer as expected.
    """
    queue = Queue(_redis_time(client))
    for stream in stream_keys(client):
        if found := ends(client, stream):
            _note_arrival(queue, found[0])
    return queue


def read_queue(client: redis.Redis, sums: EntrySums, bounds: Bounds = UNBOUNDED) -> Queue:
    """Return all entries of all streams; of each, the rows that ``sums`` selects, added up by cell.

    Entries that arrive during the read may be missing. Memory grows with the number of cells.

    Raises:
        QueueTooLong: ``bounds`` allows fewer entries or rows.
        QueueReadStopped: ``bounds.stop`` returned True.
        StreamError: Redis did not answer as expected.
    """
    queue = Queue(_redis_time(client))
    streams = stream_keys(client)
    bounds.check(sum(command(client, "XLEN", stream) for stream in streams))
    entries = rows = 0
    for stream in streams:
        # Up to the last entry of now: a fast producer would otherwise keep this reading for ever.
        found = ends(client, stream)
        if found is None:
            continue
        for page in pages(client, stream, end=found[1], size=_PAGE):
            if bounds.stop():
                raise QueueReadStopped("the queue was not read to its end")
            entries += len(page)
            for delivery in page:
                _note_arrival(queue, delivery.stream_id)
                entry = decode(delivery)
                rows += len(entry.rows)
                bounds.check(entries, rows)
                name = bytes.fromhex(entry.id)
                if name not in queue.entries:
                    queue.entries[name] = sums.add(entry)
    return queue


def select_pending(session: Session, queue: Queue, catalog: Catalog) -> Pending:
    """Return the pending cells of ``queue``: those of entries that are not applied in the snapshot.

    The queue was read before the snapshot began. If an entry was applied before the snapshot, the
    snapshot has both its guard and its sums; if it was applied later, neither. So each entry counts
    once. Rows that no worker will count are left out: rows of entries older than the pruning
    watermark (their guards may be deleted), rows of tracked tables' counters, and in strict mode
    rows of unknown counters. (:class:`EntrySums` left out rows that a reconcile has included.)

    Args:
        session: reads in the snapshot.
        queue: the entries, which were read before the snapshot began.
        catalog: the catalog that gave each row of the queue its bucket.

    Raises:
        CatalogChanged: the snapshot has another version of the catalog.
        StoreError: a query failed.
    """
    control = read_control(session, lock="")
    if control.catalog_version != catalog.version:
        raise CatalogChanged
    watermark = control.watermark
    young = {id: entry for id, entry in queue.entries.items() if entry.sent_ms >= watermark}
    applied = guards.known(session, list(young))
    pending = [entry for id, entry in young.items() if id not in applied]
    counters = {counter for entry in pending for counter in entry.counters} - catalog.tracked
    if control.strict:
        counters = known_names(session, counters)
    cells: dict[str, dict[tuple[int, str], int]] = {name: {} for name in counters}
    for entry in pending:
        for (counter, label, key), amount in entry.cells.items():
            if counter in cells:
                sums = cells[counter]
                sums[label, key] = sums.get((label, key), 0) + amount
    return Pending(len(pending), cells)


def _note_arrival(queue: Queue, stream_id: str) -> None:
    # XADD accepts any id of its caller, far in the future too.
    milliseconds = min(int(stream_id.partition("-")[0]), MAX_AT)
    arrived = datetime.fromtimestamp(milliseconds / 1000, UTC)
    if queue.oldest is None or arrived < queue.oldest:
        queue.oldest = arrived


def _redis_time(client: redis.Redis) -> datetime:
    seconds, microseconds = divmod(earliest_us(client), 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)


@dataclass(frozen=True, slots=True)
class Moment:
    """A MySQL snapshot, with pending cells on request, that answers any number of queries.

    Attributes:
        snapshot: the MySQL snapshot; it includes the pending cells if the queue was read.
        complete_up_to: everything that reached Redis before this time (UTC) is included; None if
            there is no Redis client, or Redis did not answer.
        unknown_because: the error if Redis did not answer; else None.
        read_for: the query for which the queue was read; None if it was not read.
    """

    snapshot: Snapshot
    complete_up_to: datetime | None = None
    unknown_because: StreamError | None = None
    read_for: Query | None = None

    def ask(self, query: Query) -> Answer:
        """Return the answer to a query; it includes the pending rows if the queue was read.

        Raises:
            ValueError: the queue was not read for all rows that the query needs.
            StoreError, ValueError: as :func:`countersink.counting.totals.answer.answer`.
        """
        if not self._covers(query):
            raise ValueError("the queue was not read for the rows of this query")
        found = answer(self.snapshot, query)
        found.complete_up_to = self.complete_up_to
        found.unknown_because = self.unknown_because
        return found

    def _covers(self, query: Query) -> bool:
        """Return whether the rows that were read from the queue suffice to answer a query."""
        read, asked = self.read_for, query.selection
        if read is None:
            return not query.include_pending
        return (
            (read.dimensional or not query.dimensional)
            and read.selection.counter in (None, asked.counter)
            and (read.selection.keys is None or read.selection.keys == asked.keys)
        )


class Reads:
    """Answers queries for totals, with the pending rows of the queue on request. Thread-safe if the
    store and the Redis client are.

    Without ``include_pending``, an answer has the totals in MySQL, or a replica that has them all.
    Its ``complete_up_to`` is the time at which the oldest entry still in a stream arrived; Redis's
    time if there is no entry; None if Redis does not answer or there is no Redis client.

    With ``include_pending``, entries without a guard are added, see :func:`select_pending`, and
    ``complete_up_to`` is Redis's time before the read. A new key has its own total, even if the
    counter has too many keys and the worker will count it as ``__overflow__``: the sum over keys is
    the same. The read takes time and memory in proportion to the queue, up to ``bounds``.

    Raises (``ask`` and ``read``):
        StoreError, ValueError: as :func:`countersink.counting.totals.answer.answer`.
        StreamError: Redis did not answer as expected, with ``include_pending``.
        QueueTooLong, QueueReadStopped: ``bounds`` ended the read of the queue.
        Conflict: the catalog changed during each attempt to read the queue.
        ValueError: ``include_pending`` is set, and there is no Redis client.

    Args:
        store: the store with the totals.
        redis_client: from :func:`countersink.stream.connection.connect`; None without a queue.
        bounds: limits of a read of the queue.
    """

    def __init__(
        self, store: Store, redis_client: redis.Redis | None, bounds: Bounds = UNBOUNDED
    ) -> None:
        self._store = store
        self._client = redis_client
        self._bounds = bounds
        self._catalog: Catalog | None = None

    def ask(self, query: Query) -> Answer:
        """Return the answer to a query, with all its numbers from one snapshot."""
        return self.read(lambda moment: moment.ask(query), query)

    def read(self, work: Callable[[Moment], T], query: Query = ANYTHING) -> T:
        """Call ``work`` with a :class:`Moment`, and return its result.

        Args:
            work: asks queries. After a lost connection it may be called again with a new Moment.
            query: if it has ``include_pending``, the queue is read, for the rows that it selects.
        """
        if query.include_pending:
            return self._with_pending(work, query)
        complete, reason = self.applied_up_to()
        # A replica may answer: the store checks that it has all commits up to that read of Redis.
        return self._store.replica_snapshot(
            lambda session: work(Moment(Snapshot(session), complete, reason))
        )

    def applied_up_to(self) -> tuple[datetime | None, StreamError | None]:
        """Return the time before which everything that reached Redis is in MySQL, and None. If
        Redis did not answer, return None and the error; without a Redis client, None twice."""
        if self._client is None:
            return None, None
        try:
            return read_oldest(self._client).applied_up_to, None
        except StreamError as error:
            return None, error

    def _with_pending(self, work: Callable[[Moment], T], query: Query) -> T:
        if self._client is None:
            raise ValueError("include_pending needs the queue: give Reads a Redis client")
        for _ in range(_ATTEMPTS):
            catalog = self._catalog = self._catalog or self._store.snapshot(load)
            # Streams first: else an entry applied between the two reads would be in neither.
            queue = read_queue(self._client, EntrySums(query, catalog), self._bounds)

            def attempt(session: Session, queue: Queue = queue, catalog: Catalog = catalog) -> T:
                pending = select_pending(session, queue, catalog)
                return work(Moment(Snapshot(session, pending), queue.read_at, read_for=query))

            try:
                return self._store.snapshot(attempt)
            except CatalogChanged:
                self._catalog = None
        raise Conflict(f"counters changed during {_ATTEMPTS} reads of the queue: try again")

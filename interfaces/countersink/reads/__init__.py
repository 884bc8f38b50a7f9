"""Totals together with what is still in the queue, and how fresh they are. Totals together with
what is still in the queue, and how fresh they are (``Reads``): of one MySQL snapshot; how often the
queue is read again when counters change meanwhile (``_ATTEMPTS``), and the error if the queue is
longer than is read at once (over HTTP: ``max_pending_entries`` in ``web/options.py``).

The streams are read before MySQL is asked, so that nothing falls between the two; what of them is
pending is decided in the snapshot in which the totals are read. A counter that is only pending is
known.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar

import redis

from countersink.counting.apply import guards
from countersink.counting.apply.control import read_control
from countersink.counting.counters.all_counters import known_names
from countersink.counting.counters.catalog import Catalog, accepted, load
from countersink.counting.totals.answer import answer
from countersink.counting.totals.query import Answer, Query
from countersink.counting.totals.selection import KeyMatch, Selection
from countersink.counting.totals.snapshot import Pending, Snapshot
from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.reads.errors import CatalogChanged, QueueReadStopped, QueueTooLong
from countersink.runtime.dimensions import RowKey
from countersink.runtime.limits import stored_form
from countersink.store import Store
from countersink.stream.connection import command, earliest_us
from countersink.stream.decode import MAX_AT, Decoded, decode
from countersink.stream.entry import ends, pages
from countersink.stream.errors import StreamError
from countersink.stream.names import stream_keys

__all__ = ["ANYTHING", "Moment", "Reads"]


T = TypeVar("T")

ANYTHING: Final = Query(Selection(), by="counter")
"""Any question that no breakdown answers."""
_ATTEMPTS: Final = 10
"""Reads of the queue, each because somebody changed a counter during the one before."""
_PAGE: Final = 100
"""Entries per page; of at most 1,000 rows each where our own producers wrote them."""
Cell = tuple[str, int, str]
"""(counter, label of the bucket, key): what a total is kept for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of the queue is read at once.

    Attributes:
        entries: in all streams; None for any number.
        rows: of these entries; None for any number.
        stop: asked between pages: true once reading is to end.
    """

    entries: int | None = None
    rows: int | None = None
    stop: Callable[[], bool] = lambda: False

    def check(self, entries: int, rows: int = 0) -> None:
        """Refuse what is too much.

        Raises:
            QueueTooLong: it is.
        """
        if self.entries is not None and entries > self.entries:
            raise QueueTooLong(f"the queue has more than {self.entries:,} entries")
        if self.rows is not None and rows > self.rows:
            raise QueueTooLong(f"the queue has more than {self.rows:,} rows")


UNBOUNDED: Final = Bounds()


@dataclass(frozen=True, slots=True)
class Queued:
    """One entry that was in a stream, without what the worker will not count either: bad rows, and
    those that are in what their bucket was set to.

    Attributes:
        at: Unix ms of the first attempt to send.
        counters: the wanted counters it has rows of, whatever the keys and days.
        cells: its wanted rows, added up.
    """

    at: int
    counters: frozenset[str]
    cells: dict[Cell, int]


@dataclass(slots=True)
class Queue:
    """The entries that the streams held, and when they were read.

    Attributes:
        asked: Redis's time before the first stream was read.
        oldest: when the oldest entry still in a stream got there; None when all were empty.
        entries: by entry id (16 bytes), each id once.
    """

    asked: datetime
    oldest: datetime | None = None
    entries: dict[bytes, Queued] = field(default_factory=dict)

    @property
    def applied_up_to(self) -> datetime:
        """Every entry that reached Redis before this time is in MySQL."""
        return self.asked if self.oldest is None else min(self.oldest, self.asked)


class Folding:
    """Adds up the wanted rows of entries in the buckets that workers would count them in.

    Args:
        query: which rows: of its counter and keys, or, where a breakdown answers, of all of the
            counter's.
        catalog: which buckets.
    """

    def __init__(self, query: Query, catalog: Catalog) -> None:
        self.catalog = catalog
        self._of = query.selection.counter
        self._broken_down = query.dimensional
        keys = query.selection.keys
        self._keys: frozenset[str] | KeyMatch | None
        if keys is None or isinstance(keys, KeyMatch):
            self._keys = keys
        else:
            self._keys = frozenset(map(stored_form, keys))
        self._labels: dict[tuple[str, int], int] = {}
        # Most entries have the cells of those before them: one object for all of these.
        self._cells: dict[Cell, Cell] = {}
        self._counters: dict[frozenset[str], frozenset[str]] = {}

    def fold(self, entry: Decoded) -> Queued:
        """The wanted rows of an entry, added up by cell."""
        counters: set[str] = set()
        cells: dict[Cell, int] = {}
        before = self.catalog.marked_before
        when = accepted(bytes.fromhex(entry.id), entry.at) if before else 0
        for _, counter, key, minute, amount in entry.rows:
            if self._of is not None and counter != self._of:
                continue
            if when < before and self.catalog.mark(counter, minute, when) is not None:
                continue
            for name, own in self._counted(counter, key, minute):
                counters.add(name)
                if self._keys is not None and own not in self._keys:
                    continue
                if (name, minute) not in self._labels:
                    self._labels[name, minute] = self.catalog.bucket(name, minute)
                cell: Cell = name, self._labels[name, minute], own
                cell = self._cells.setdefault(cell, cell)
                cells[cell] = cells.get(cell, 0) + amount
        named = frozenset(counters)
        return Queued(entry.at, self._counters.setdefault(named, named), cells)

    def _counted(self, counter: str, key: RowKey, minute: int) -> Iterator[tuple[str, str]]:
        """(counter, key) of what a row is counted under: in its counter, and in the breakdowns, if
        one of these answers; nothing of a row with an undeclared dimension.
        """
        own = self.catalog.dimensioned.get(counter)
        if isinstance(key, str):
            yield counter, key
        elif own is None or any(name not in own.dimensions for name, _ in key):
            return
        else:
            yield counter, ""
        if self._broken_down and own is not None:
            for breakdown, composed in own.cells(key, minute):
                yield breakdown.name, composed


def look(client: redis.Redis) -> Queue:
    """How far the workers have come, without the entries: one small read per stream.

    Raises:
        StreamError: Redis did not do its part.
    """
    queue = Queue(_now(client))
    for stream in stream_keys(client):
        if found := ends(client, stream):
            _note(queue, found[0])
    return queue


def read_queue(client: redis.Redis, folding: Folding, bounds: Bounds = UNBOUNDED) -> Queue:
    """All entries of all streams, folded to what is wanted.

    Entries that arrive while this reads are left out or in, as they come. Memory grows with the
    wanted cells.

    Raises:
        QueueTooLong, QueueReadStopped: as ``bounds`` have it.
        StreamError: Redis did not do its part.
    """
    queue = Queue(_now(client))
    streams = stream_keys(client)
    bounds.check(sum(command(client, "XLEN", stream) for stream in streams))
    entries = rows = 0
    for stream in streams:
        # Up to what is there now: a fast producer would otherwise keep this reading for ever.
        found = ends(client, stream)
        if found is None:
            continue
        for page in pages(client, stream, end=found[1], size=_PAGE):
            if bounds.stop():
                raise QueueReadStopped("the queue was not read to its end")
            entries += len(page)
            for delivery in page:
                _note(queue, delivery.stream_id)
                entry = decode(delivery)
                rows += len(entry.rows)
                bounds.check(entries, rows)
                name = bytes.fromhex(entry.id)
                if name not in queue.entries:
                    queue.entries[name] = folding.fold(entry)
    return queue


def settle(session: Session, queue: Queue, catalog: Catalog) -> Pending:
    """What of ``queue`` has not been applied in this session's snapshot.

    The queue was read before the snapshot began. An entry that was applied before it has its guard
    in it, and its sums too; one applied later has neither. So each is counted once, wherever the
    workers are. An entry older than the watermark may have lost its guard: the worker will not
    count it, nor is it counted here. Nor are rows of the counters of tracked tables, nor, in strict
    mode, of unknown ones, nor those that are in what their bucket was set to: these the queue was
    read without.

    Args:
        session: in the snapshot.
        queue: what was read.
        catalog: by which its rows were put into buckets.

    Raises:
        CatalogChanged: it is not that of the snapshot.
        StoreError: as any query.
    """
    control = read_control(session, lock="")
    if control.catalog_version != catalog.version:
        raise CatalogChanged
    young = {name: entry for name, entry in queue.entries.items() if entry.at >= control.watermark}
    applied = guards.known(session, list(young))
    left = [entry for name, entry in young.items() if name not in applied]
    counters = {counter for entry in left for counter in entry.counters} - catalog.tracked
    if control.strict:
        counters = known_names(session, counters)
    cells: dict[str, dict[tuple[int, str], int]] = {name: {} for name in counters}
    for entry in left:
        for (counter, label, key), amount in entry.cells.items():
            if counter in cells:
                own = cells[counter]
                own[label, key] = own.get((label, key), 0) + amount
    return Pending(len(left), cells)


def _note(queue: Queue, stream_id: str) -> None:
    # Anybody may XADD with an id of their own, far in the future too.
    milliseconds = min(int(stream_id.partition("-")[0]), MAX_AT)
    arrived = datetime.fromtimestamp(milliseconds / 1000, UTC)
    if queue.oldest is None or arrived < queue.oldest:
        queue.oldest = arrived


def _now(client: redis.Redis) -> datetime:
    seconds, microseconds = divmod(earliest_us(client), 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment, of which any number of questions can be asked.

    Attributes:
        snapshot: of MySQL, with what is pending if that was asked for.
        complete_up_to: everything that reached Redis before this time (UTC) is in it; None when
            Redis was not asked, or did not answer.
        unknown_because: why that is not known although there is a Redis to ask.
        folded: what the queue was read for; None: it was not read.
    """

    snapshot: Snapshot
    complete_up_to: datetime | None = None
    unknown_because: StreamError | None = None
    folded: Query | None = None

    def ask(self, query: Query) -> Answer:
        """The answer of this moment, with what is pending if the queue was read.

        Raises:
            ValueError: the queue was read for less, or was not read, but is asked for.
            StoreError, ValueError: as :func:`countersink.counting.totals.answer.answer`.
        """
        if not self._was_read_for(query):
            raise ValueError("of this moment the queue was not read for what is asked")
        found = answer(self.snapshot, query)
        found.complete_up_to = self.complete_up_to
        found.unknown_because = self.unknown_because
        return found

    def _was_read_for(self, query: Query) -> bool:
        """Whether the answer has what is pending, or none of it, as the moment has."""
        read, asked = self.folded, query.selection
        if read is None:
            return not query.include_pending
        return (
            (read.dimensional or not query.dimensional)
            and read.selection.counter in (None, asked.counter)
            and (read.selection.keys is None or read.selection.keys == asked.keys)
        )


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
        StoreError, ValueError: as :func:`countersink.counting.totals.answer.answer`.
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
                return work(Moment(Snapshot(session, pending), found.asked, folded=query))

            try:
                return self._store.snapshot(once)
            except CatalogChanged:
                self._catalog = None
        raise Conflict("counters were changed all the time while the queue was read: ask again")

"""Adds increments still in the queue to totals, up to which time an answer is complete, and the
error if the queue is longer than is read at once (over HTTP: ``max_pending_entries`` in
``web/options.py``).

The streams are read before MySQL is asked, so that nothing falls between the two; what of them is
pending is decided in the snapshot in which the totals are read. The questions, from :func:`total`
on, ask :mod:`countersink.store.totals` and add. A counter that is only pending is known.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Final, TypeVar

import redis

from countersink.reads.errors import CatalogChanged, QueueReadStopped, QueueTooLong
from countersink.runtime.dimensions import RowKey
from countersink.runtime.limits import key_bytes, stored_form
from countersink.store.apply import guards, refusals
from countersink.store.apply.control import read_control
from countersink.store.connection import Session
from countersink.store.counters.breakdowns import counter_of
from countersink.store.counters.catalog import Catalog, accepted
from countersink.store.errors import StoreError
from countersink.store.totals import many_counters, series, sums
from countersink.store.totals.selection import KeyMatch, Selection
from countersink.store.totals.series import Hours
from countersink.store.totals.shapes import counter_names
from countersink.store.totals.views import Ranges, View
from countersink.stream.clock import earliest_us
from countersink.stream.connection import command
from countersink.stream.decode import MAX_AT, Decoded, decode
from countersink.stream.entry import ends, pages
from countersink.stream.names import stream_keys

Group = TypeVar("Group")
T = TypeVar("T")
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
        for number, most, what in (
            (entries, self.entries, "entries"),
            (rows, self.rows, "rows"),
        ):
            if most is not None and number > most:
                raise QueueTooLong(f"the queue has more than {most:,} {what}")


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
        wanted: which rows.
        catalog: which buckets.

    Raises:
        ValueError: the wanted time zone is none.
    """

    def __init__(self, wanted: Selection, catalog: Catalog) -> None:
        self.catalog = catalog
        self._wanted = wanted
        self._of = None if wanted.counter is None else counter_of(wanted.counter)
        keys = wanted.keys
        self._keys: frozenset[str] | KeyMatch | None
        if keys is None or isinstance(keys, KeyMatch):
            self._keys = keys
        else:
            self._keys = frozenset(map(stored_form, keys))
        self._ranges: dict[str, tuple[Ranges, dict[int, StoreError]]] = {}
        self._labels: dict[tuple[str, int], int | None] = {}
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
                label = self._label(name, minute)
                if label is not None:
                    cell: Cell = name, label, own
                    cell = self._cells.setdefault(cell, cell)
                    cells[cell] = cells.get(cell, 0) + amount
        named = frozenset(counters)
        return Queued(entry.at, self._counters.setdefault(named, named), cells)

    def _counted(self, counter: str, key: RowKey, minute: int) -> Iterator[tuple[str, str]]:
        """(counter, key) of what a row is counted under and that is asked for: in its counter, or
        in the breakdown that is; nothing of a row with an undeclared dimension.
        """
        own = self.catalog.dimensioned.get(counter)
        if not isinstance(key, str) and (
            own is None or any(name not in own.dimensions for name, _ in key)
        ):
            return
        if self._wanted.counter in (None, counter):
            yield counter, key if isinstance(key, str) else ""
        elif own is not None:
            for breakdown, composed in own.cells(key, minute):
                if breakdown.name == self._wanted.counter:
                    yield breakdown.name, composed

    def wants(self, cell: Cell) -> bool:
        """Whether a cell that another read has folded is wanted."""
        counter, label, key = cell
        return (
            self._wanted.counter in (None, counter)
            and (self._keys is None or key in self._keys)
            and self._inside(counter, label)
        )

    def _label(self, counter: str, minute: int) -> int | None:
        """The label of the bucket of a minute; None where it is not wanted."""
        if (counter, minute) not in self._labels:
            label = self.catalog.bucket(counter, minute)
            self._labels[counter, minute] = label if self._inside(counter, label) else None
        return self._labels[counter, minute]

    def _inside(self, counter: str, label: int) -> bool:
        """Whether a bucket is in the range.

        Raises:
            InexactZone: the range divides it.
        """
        if counter not in self._ranges:
            wanted = self._wanted
            view = View(replace(self.catalog.of(counter), counter=counter), wanted.time_zone)
            asked = wanted.start, wanted.end
            self._ranges[counter] = view.ranges(*asked), view.cut_by(*asked)
        ranges, cut = self._ranges[counter]
        if label in cut and self._wanted.visible(counter):
            raise cut[label]
        return ranges is None or any(label in one for one in ranges)


@dataclass(slots=True)
class Pending:
    """What the workers have still to count.

    Attributes:
        entries: how many stream entries.
        counters: the counters they have rows of.
        cells: the wanted sums.
    """

    entries: int = 0
    counters: set[str] = field(default_factory=set)
    cells: dict[Cell, int] = field(default_factory=dict)

    def sums(self, group: Callable[[Cell], Group]) -> dict[Group, int]:
        """The sums by whatever ``group`` makes of a cell."""
        sums: dict[Group, int] = {}
        for cell, amount in self.cells.items():
            name = group(cell)
            sums[name] = sums.get(name, 0) + amount
        return sums

    def total(self) -> int:
        """The sum over all cells."""
        return sum(self.cells.values())

    def by_label(self) -> dict[int, int]:
        """The sums by the label of the bucket."""
        return self.sums(lambda cell: cell[1])

    def by_key(self) -> dict[str, int]:
        """The sums by key."""
        return self.sums(lambda cell: cell[2])

    def by_counter(self) -> dict[str, int]:
        """The sums by counter."""
        return self.sums(lambda cell: cell[0])


Question = Callable[[Session, Selection, Pending], T]
"""Answers from the session's snapshot, and adds what is pending."""


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
        counters = refusals.known(session, counters)
    pending = Pending(len(left), counters)
    for entry in left:
        for cell, amount in entry.cells.items():
            if cell[0] in counters:
                pending.cells[cell] = pending.cells.get(cell, 0) + amount
    return pending


def total(session: Session, wanted: Selection, pending: Pending) -> int:
    """The sum over all keys, or over those wanted."""
    return sums.total(session, _known(wanted, pending)) + pending.total()


def daily(session: Session, wanted: Selection, pending: Pending) -> list[tuple[date, int]]:
    """(day, total) for each day of the range, by default from the first with data to the last."""
    return series.daily(session, _known(wanted, pending), pending.by_label())


def hourly(session: Session, wanted: Selection, pending: Pending) -> Hours:
    """(begin of the hour, total) for each hour, by default from the first with data to the last."""
    return series.hourly(session, _known(wanted, pending), pending.by_label())


def minutely(session: Session, wanted: Selection, pending: Pending) -> Hours:
    """(begin of the minute, total) for each minute, by default from the first with data on."""
    return series.minutely(session, _known(wanted, pending), pending.by_label())


def monthly(session: Session, wanted: Selection, pending: Pending) -> list[tuple[date, int]]:
    """(first day, total) for each month, by default from the first with data to the last."""
    return series.monthly(session, _known(wanted, pending), pending.by_label())


def by_key(
    session: Session, wanted: Selection, pending: Pending, limit: int | None = None
) -> list[tuple[str, int]]:
    """(key, total) of the keys that match, largest first, then by key; all of them, or the first
    ``limit``.
    """
    if limit is not None and limit < 1:
        raise ValueError("ask for 1 key or more")
    stored = _known(wanted, pending)
    added = pending.by_key()
    # Of the keys that nothing is added to, none beyond the first `limit` can get into the result;
    # those that something is added to can come from anywhere, also from above.
    asked = None if limit is None else limit + len(added)
    totals = dict(sums.by_key(session, stored, limit=asked))
    if asked is not None and len(totals) == asked:
        beyond = [key for key in added if key not in totals]
        totals |= sums.many(session, replace(stored, keys=beyond))
    for key, amount in added.items():
        totals[key] = totals.get(key, 0) + amount
    ordered = sorted(totals.items(), key=lambda pair: (-pair[1], key_bytes(pair[0])))
    return ordered[:limit]


def many(session: Session, wanted: Selection, pending: Pending) -> dict[str, int]:
    """The totals of the keys wanted, in their order; 0 for those without counts."""
    totals = sums.many(session, _known(wanted, pending))
    added = pending.by_key()
    for key in totals:
        totals[key] += added.get(stored_form(key), 0)
    return totals


def counters(session: Session, wanted: Selection, pending: Pending) -> dict[str, int]:
    """The totals of all counters, by name."""
    totals = many_counters.counters(session, wanted, pending.counters)
    for name, amount in pending.by_counter().items():
        if name in totals:
            totals[name] += amount
    return totals


def names(session: Session, wanted: Selection, pending: Pending) -> list[str]:
    """The names of all counters, in order."""
    return sorted(filter(wanted.visible, {*counter_names(session), *pending.counters}))


def _known(wanted: Selection, pending: Pending) -> Selection:
    """With what is known of the counter because something of it is pending."""
    return replace(wanted, known=wanted.counter in pending.counters)


def _note(queue: Queue, stream_id: str) -> None:
    # Anybody may XADD with an id of their own, far in the future too.
    milliseconds = min(int(stream_id.partition("-")[0]), MAX_AT)
    arrived = datetime.fromtimestamp(milliseconds / 1000, UTC)
    if queue.oldest is None or arrived < queue.oldest:
        queue.oldest = arrived


def _now(client: redis.Redis) -> datetime:
    seconds, microseconds = divmod(earliest_us(client), 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)

"""``LogSender``, which stores the hits of ``tail``: where a run begins (``--begin``) and when that
is refused, up to which age batches are sent again to a Redis without a mark (``AGAIN_MS``), pauses
and notices while Redis is away or the stream is full, tries after a stop."""

import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Literal, TypeVar

import redis

from countersink.logs import Counts
from countersink.logs.errors import PositionError, TailError
from countersink.logs.formats.reader import without_visitor
from countersink.logs.position import LogBatch, LogMark, Outcome, Position, PositionFile
from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import MAX_HASHES, Salt, member_hash, no_salt, salt_of
from countersink.runtime.process import Stop
from countersink.runtime.retry import Backoff
from countersink.stream.clock import RedisClock
from countersink.stream.connection import mapped
from countersink.stream.entry import Row, Sealed, encoded, new_entry_id
from countersink.stream.errors import StreamUnavailable
from countersink.stream.names import PartitionRoute, note_use, read_salts

Begin = Literal["start", "end"]
BEGINS: Final[tuple[Begin, ...]] = ("start", "end")
AGAIN_MS: Final = 2 * 24 * 3600 * 1000
"""Age of the oldest batch that is sent again where Redis has no mark at all: guards, by which
workers know what they applied, are kept for three days."""
_SENT_AGAIN: Final = (
    "Redis has not all that was read of this log (a tail was killed, or Redis was emptied or"
    " restored): what it has not is sent again, as it was, and counts once"
)
_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 5.0
_REMIND_EVERY: Final = 60.0
"""Seconds between two notices about the same trouble."""
_LAST_ATTEMPTS: Final = 5.0
"""Seconds that storing may still take once a stop was asked for."""

T = TypeVar("T")


@dataclass(slots=True)
class LogSender:
    """Stores batches, waiting as long as Redis is away or the stream is full.

    Attributes:
        client: from :func:`countersink.stream.connection.connect`.
        counter: what is counted.
        full: entries in the stream from which on to wait for the workers.
        notice: told, in sentences, what is being waited for.
        stop: when set, storing is given up after 5 s.
        entries: how many were stored.
    """

    client: redis.Redis
    _: KW_ONLY
    counter: str
    full: int
    notice: Callable[[str], None]
    stop: Stop
    entries: int = 0
    _clock: RedisClock = field(default_factory=RedisClock)
    _stream: str | None = None
    """Of which Redis's clock is asked: the masters of a cluster have one each."""
    _route: PartitionRoute | None = None
    """Of a source without a place of its own."""

    def resume(self, file: PositionFile, mark: LogMark, begin: Begin | None) -> Position:
        """The position to go on from; one without a device for a log that is to be counted from its
        start (or end). What Redis has not of the position file's batches is sent again.

        Raises:
            PositionError: there is no position, or an older one, of a log that was read before, and
                ``begin`` does not say where to go on.
            TailError: a stop came while Redis was away.
            StreamError: Redis refuses for good.
        """
        self._stream = mark.stream
        known = self.patiently(mark.read)
        position = file.position
        if begin or (position is None and not known):
            return Position.first()
        if position is None or not (known == position.mark or file.knows(known)):
            what = "is not there" if position is None else "is older, or of another reader"
            raise PositionError(
                f"Redis says that this log was read before, up to the mark {known!r}, but the"
                f" position file {file.path} {what}: was it lost or put back, or does another"
                " machine or user read this log? --begin start counts the whole log (again),"
                " --begin end what comes from now on"
            )
        if known != position.mark:
            self.notice(_SENT_AGAIN)
            self._catch_up(file, mark)
        return position

    def store(self, file: PositionFile, mark: LogMark, position: Position, counts: Counts) -> None:
        """Store the hits before a position of a log, and the position.

        Raises:
            PositionError: the position file cannot be written; nothing was sent.
            TailError: another reader has set the mark, or a stop came while Redis was away; the
                next run sends what the file has.
            StreamError: Redis refuses for good.
        """
        at = self.now()
        batch = LogBatch(position, at, self._seal(counts, at))
        file.append(batch, mark.known)
        if not self._sent(file, mark, batch):
            self.notice(_SENT_AGAIN)
            self._catch_up(file, mark)

    def _sent(self, file: PositionFile, mark: LogMark, batch: LogBatch) -> bool:
        """Send a batch; False: Redis has lost one before it."""
        if self.patiently(lambda: mark.store(batch, self.full)) == "other":
            if file.knows(mark.known):
                return False
            raise TailError(
                "another countersink tail reads this log for this counter; stop one of them. "
                "Nothing was counted twice"
            )
        self.entries += len(batch.entries)
        return True

    def _catch_up(self, file: PositionFile, mark: LogMark) -> None:
        """Send the batches of the file that are behind the mark, as they stand there."""
        oldest = 0 if mark.known else self.now() - AGAIN_MS
        for batch in file.batches():
            if batch.at < oldest or batch.position.is_reached(mark.known):
                continue
            if not self._sent(file, mark, batch):
                self._catch_up(file, mark)  # from the beginning: it was emptied meanwhile
                return

    def add(self, counts: Counts) -> None:
        """Store hits that have no place to go back to; of a cluster on a master that serves.

        Raises:
            TailError: a stop came while Redis was away.
            StreamError: Redis refuses for good.
        """
        if self._route is None:
            self._route = self.patiently(self._found)
        self._route.return_home(self.client)
        entries = self._seal(counts, self.now())
        self.patiently(lambda: self._reach(lambda stream: self._append(stream, entries)))
        self.entries += len(entries)

    def _found(self) -> PartitionRoute:
        route = PartitionRoute()
        route.find(self.client)
        note_use(self.client, route.partition)
        return route

    def _append(self, stream: str, entries: Sequence[Sealed]) -> Outcome:
        with mapped():
            if self.client.xlen(stream) >= self.full:
                return "full"
            pipe = self.client.pipeline(transaction=False)
            for entry in entries:
                pipe.xadd(stream, entry.fields())
            pipe.execute()
        return "stored"

    def _seal(self, counts: Counts, at: int) -> list[Sealed]:
        return [
            Sealed(id=new_entry_id(at), at=at, rows=raw, increments=sum(row[3] for row in part))
            for part, raw in encoded(self._rows(counts))
        ]

    def _rows(self, counts: Counts) -> list[Row]:
        """The rows of hits; visitors are hashed.

        Raises:
            TailError: the counter does not count different visitors.
            StreamError: Redis refuses for good.
        """
        rows: list[Row] = []
        sightings: dict[tuple[RowKey, int], dict[str, int]] = {}
        for (counted, minute), amount in counts.items():
            key, visitor = without_visitor(counted)
            if visitor is None:
                rows.append((self.counter, key, minute, amount))
            else:
                sightings.setdefault((key, minute), {})[visitor] = amount
        salts: list[Salt] = []
        if sightings:
            latest = min(self.now() // 60_000, max(minute for _, minute in sightings))
            salts = self.patiently(lambda: self._salts(latest))
        for (key, minute), visitors in sightings.items():
            salt = salt_of(salts, minute)
            amount = sum(visitors.values())
            if salt is None:
                self.notice(
                    f"{amount:,} hits were counted without their visitors: the salt of their time"
                    " was forgotten, or is not made yet"
                )
                rows.append((self.counter, key, minute, amount))
                continue
            hashes = list({member_hash(each.encode(), salt.salt) for each in visitors})
            for at in range(0, len(hashes), MAX_HASHES):
                part = b"".join(hashes[at : at + MAX_HASHES])
                rows.append((self.counter, key, minute, 0 if at else amount, salt.number, part))
        return rows

    def _salts(self, minute: int) -> list[Salt]:
        salts = self._reach(lambda stream: read_salts(self.client, stream, self.counter, minute))
        if not salts:
            raise TailError(no_salt(self.counter))
        return salts

    def now(self) -> int:
        """Unix ms on Redis's clock."""
        if self._clock.stale():
            self.patiently(
                lambda: self._reach(lambda stream: self._clock.learn(self.client, stream))
            )
        return self._clock.now_ms()

    def _reach(self, work: Callable[[str], T]) -> T:
        """The result of ``work`` on the stream of the route, or of the mark."""
        if (route := self._route) is not None:
            return route.reach(self.client, lambda: work(route.stream))
        assert self._stream is not None
        return work(self._stream)

    def patiently(self, call: Callable[[], T]) -> T:
        """The result of ``call``, called again for as long as Redis is away or the stream is full.

        Raises:
            TailError: a stop came, and Redis was still away 5 s later.
            StreamError: Redis refuses for good.
        """
        backoff = Backoff(_FIRST_WAIT, _LONGEST_WAIT)
        said = stopped = 0.0
        while True:
            try:
                result = call()
                if result != "full":
                    if said:
                        self.notice("the queue takes entries again")
                    return result
                why = f"the queue holds {self.full} entries or more: waiting for the workers"
            except StreamUnavailable as error:
                self._clock = RedisClock()  # it may come back as another machine
                why = f"waiting for Redis ({error})"
            now = time.monotonic()
            if not said or now - said >= _REMIND_EVERY:
                self.notice(why)
                said = now
            if not self.stop.requested:
                self.stop.wait(backoff.pause_s())
                continue
            stopped = stopped or now
            if now - stopped >= _LAST_ATTEMPTS:
                raise TailError(
                    f"stopped while {why}: what was read last is not stored; if it was read from a"
                    " file, the next run stores it"
                )
            time.sleep(_FIRST_WAIT)

"""``LogSender``, which stores the hits of ``tail`` in Redis. (A hit is a counted line.) It decides
where a run begins (``--begin``), or raises an error if a run cannot begin safely. While Redis is
away or the stream is full, it waits and says so by notices. About 5 s after a stop it gives up.

Redis has a mark of each log: the position up to which the log's entries are in Redis. Entries in
the position file that come after the mark are missing in Redis, and are sent again. If Redis has no
mark, only those of the last two days (``RESEND_MS``) are. ``position.py`` describes the mark and
the position file.
"""

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
from countersink.runtime.texts import plural
from countersink.stream.connection import mapped
from countersink.stream.entry import RedisClock, Row, Sealed, encoded, new_entry_id
from countersink.stream.errors import StreamUnavailable
from countersink.stream.names import PartitionRoute, note_use, read_salts

Begin = Literal["start", "end"]
BEGINS: Final[tuple[Begin, ...]] = ("start", "end")
RESEND_MS: Final = 2 * 24 * 3600 * 1000
"""Greatest age in ms of entries that are sent again to a Redis that has no mark of the log. It is
less than the three days for which guards are kept, so that workers recognize applied entries.
"""
_RESENT: Final = (
    "some batches of this log are missing in Redis (a tail was killed, or Redis was emptied or"
    " restored): they are sent again with the same ids, and count once"
)
_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 5.0
_REMIND_EVERY: Final = 60.0
"""Seconds between two notices while the same wait lasts."""
_LAST_ATTEMPTS: Final = 5.0
"""Seconds for which storing is still tried after a stop was requested."""

T = TypeVar("T")


@dataclass(slots=True)
class LogSender:
    """Sender of the hits of ``tail`` to Redis. It waits while Redis is away or the stream is full.

    Attributes:
        client: the client that :func:`countersink.stream.connection.connect` returns.
        counter: the name of the counter.
        full: the number of entries in the stream at which the sender waits for the workers.
        notice: a function to call with a sentence for people, for example when a wait begins or
            ends.
        stop: the request to stop; 5 s after it, the sender gives up waiting.
        entries: number of entries stored so far.
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
    """The stream whose Redis is asked for the time: each master of a cluster has its own clock."""
    _route: PartitionRoute | None = None
    """The partition for the hits of a pipe. Those of a log go to the partition of its mark."""

    def resume(self, file: PositionFile, mark: LogMark, begin: Begin | None) -> Position:
        """Return the position from which a run goes on. With ``begin``, and for a log that was
        never read before, that is a new position at the log's beginning (for the ``begin``
        ``"end"``, the caller then skips the lines). Otherwise it is the newest position in
        ``file``; entries in ``file`` that Redis has lost are sent again first.

        Raises:
            PositionError: Redis has a mark of the log, but the position in ``file`` is missing,
                older or another reader's, and ``begin`` is None; or ``file`` is damaged.
            TailError: another tail sets the mark; or a stop came, and 5 s later Redis was still
                away or the stream full.
            StreamError: Redis answered with an error that does not pass by itself.
        """
        self._stream = mark.stream
        known = self.retried(mark.read)
        position = file.position
        if begin or (position is None and not known):
            return Position.first()
        if position is None or not (known == position.mark or file.can_resend_from(known)):
            state = "does not exist" if position is None else "is older, or another reader's"
            raise PositionError(
                f"Redis says that this log was read before, up to the mark {known!r}, but the"
                f" position file {file.path} {state}: it was lost or restored from a copy, or"
                " another machine or user reads this log. --begin start counts the whole log"
                " (again), --begin end only new lines"
            )
        if known != position.mark:
            self.notice(_RESENT)
            self._catch_up(file, mark)
        return position

    def store(self, file: PositionFile, mark: LogMark, position: Position, counts: Counts) -> None:
        """Store hits (counted lines) and ``position``, the position after these lines: first in the
        position file, then in Redis. If Redis has lost entries that are still in the position
        file, they are sent again.

        Raises:
            PositionError: the position file cannot be written (nothing was sent), or is damaged.
            TailError: another reader has set the mark; or the lines have visitors, and the counter
                does not count them; or a stop came while Redis was away or the stream was full. The
                next run sends entries that are in the position file.
            StreamError: Redis answered with an error that does not pass by itself.
        """
        at = self.now()
        batch = LogBatch(position, at, self._seal(counts, at))
        file.append(batch, mark.known)
        if not self._sent(file, mark, batch):
            self.notice(_RESENT)
            self._catch_up(file, mark)

    def _sent(self, file: PositionFile, mark: LogMark, batch: LogBatch) -> bool:
        """Send the entries of ``batch``, set the mark to its position, and return True. If Redis
        has lost earlier entries that are still in the position file, send nothing and return False.

        Raises:
            TailError: another tail has set the mark; or a stop came, and 5 s later Redis was still
                away or the stream full.
            StreamError: Redis answered with an error that does not pass by itself.
        """
        if self.retried(lambda: mark.store(batch, self.full)) == "other":
            if file.can_resend_from(mark.known):
                return False
            raise TailError(
                "another countersink tail reads this log for this counter; stop one of them. "
                "Nothing was counted twice"
            )
        self.entries += len(batch.entries)
        return True

    def _catch_up(self, file: PositionFile, mark: LogMark) -> None:
        """Send once more, with their ids, the entries in the position file that come after the mark
        in Redis. If Redis has no mark, leave out entries older than :data:`RESEND_MS`.

        Raises:
            TailError: another tail has set the mark; or a stop came, and 5 s later Redis was still
                away or the stream full.
            StreamError: Redis answered with an error that does not pass by itself.
            PositionError: the position file is damaged.
        """
        oldest = 0 if mark.known else self.now() - RESEND_MS
        for batch in file.batches():
            if batch.at < oldest or batch.position.is_covered_by(mark.known):
                continue
            if not self._sent(file, mark, batch):
                self._catch_up(file, mark)  # from the beginning: Redis was emptied meanwhile
                return

    def add(self, counts: Counts) -> None:
        """Store hits (counted lines) of a pipe, which has no position. On a Redis Cluster, they go
        to a master that answers.

        Raises:
            TailError: the lines have visitors, and the counter does not count them; or a stop came
                while Redis was away or the stream was full.
            StreamError: Redis answered with an error that does not pass by itself.
        """
        if self._route is None:
            self._route = self.retried(self._find_route)
        self._route.return_home(self.client)
        entries = self._seal(counts, self.now())
        self.retried(lambda: self._call(lambda stream: self._append(stream, entries)))
        self.entries += len(entries)

    def _find_route(self) -> PartitionRoute:
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
        """Return the rows of hits (counted lines). They contain the hashes of visitors, not their
        texts. Hits for whose time there is no salt are counted without visitors; a notice says so.

        Raises:
            TailError: hits have visitors, and the counter does not count different ones; or a stop
                came, and 5 s later Redis was still away.
            StreamError: Redis answered with an error that does not pass by itself.
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
            salts = self.retried(lambda: self._salts(latest))
        for (key, minute), visitors in sightings.items():
            salt = salt_of(salts, minute)
            amount = sum(visitors.values())
            if salt is None:
                self.notice(
                    f"{plural(amount, 'hit')} counted without visitors: the salt of that time was"
                    " forgotten, or is not made yet"
                )
                rows.append((self.counter, key, minute, amount))
                continue
            hashes = list({member_hash(each.encode(), salt.salt) for each in visitors})
            for at in range(0, len(hashes), MAX_HASHES):
                part = b"".join(hashes[at : at + MAX_HASHES])
                rows.append((self.counter, key, minute, 0 if at else amount, salt.number, part))
        return rows

    def _salts(self, minute: int) -> list[Salt]:
        salts = self._call(lambda stream: read_salts(self.client, stream, self.counter, minute))
        if not salts:
            raise TailError(no_salt(self.counter))
        return salts

    def now(self) -> int:
        """Return the time on Redis's clock, in Unix ms. If no recent time of Redis is known, ask
        Redis, and wait while it is away.

        Raises:
            TailError: a stop came, and 5 s later Redis was still away.
            StreamError: Redis answered with an error that does not pass by itself.
        """
        if self._clock.stale():
            self.retried(lambda: self._call(lambda stream: self._clock.learn(self.client, stream)))
        return self._clock.now_ms()

    def _call(self, work: Callable[[str], T]) -> T:
        """Call ``work`` with the name of the stream to use, and return its result. Does not wait
        for a Redis that is away, but raises StreamError.
        The hits of a log file always go to the stream with its mark. Those of a pipe go to any
        partition: on a cluster, ``work`` is called again for another one if a master is away.
        """
        if (route := self._route) is not None:
            return route.reach(self.client, lambda: work(route.stream))
        assert self._stream is not None
        return work(self._stream)

    def retried(self, call: Callable[[], T]) -> T:
        """Call ``call`` until Redis answers and the stream is not full, and return the result. A
        result ``full`` means that the stream is full. Notices say what is waited for.

        Raises:
            TailError: a stop came, and 5 s later Redis was still away or the stream full.
            StreamError: Redis answered with an error that does not pass by itself.
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
                why = f"the queue has {self.full:,} entries or more: waiting for the workers"
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
                    f"stopped while {why}: the lines read last are not stored; if they are from"
                    " a file, the next run stores them"
                )
            time.sleep(_FIRST_WAIT)

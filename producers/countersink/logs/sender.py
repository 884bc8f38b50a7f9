"""How ``tail`` stores entries and position together: pauses and notices while Redis is away or the
stream is full, tries after a stop, and the error if another ``tail`` reads the same log."""

import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final, TypeVar

import redis

from countersink.logs import Counts
from countersink.logs.errors import TailError
from countersink.logs.formats.reader import without_visitor
from countersink.logs.position import Ledger, Outcome, Position
from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import MAX_HASHES, Salt, member_hash, no_salt, salt_of
from countersink.runtime.process import Stop
from countersink.runtime.retry import Backoff
from countersink.stream.clock import offset_ms
from countersink.stream.connection import mapped
from countersink.stream.entry import Row, Sealed, encoded, id_for, new_entry_id
from countersink.stream.errors import StreamUnavailable
from countersink.stream.names import PartitionRoute, note_use, read_salts

_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 5.0
_REMIND_EVERY: Final = 60.0
"""Seconds between two notices about the same trouble."""
_LAST_ATTEMPTS: Final = 5.0
"""Seconds that storing may still take once a stop was asked for."""
_CLOCK_EVERY: Final = 60.0
"""Seconds between two looks at Redis's clock: clocks drift."""

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
    _offset: int | None = None
    _ask_again: float = 0.0
    _stream: str | None = None
    """Of which Redis's clock is asked: the masters of a cluster have one each."""
    _route: PartitionRoute | None = None
    """Of a source without a place of its own."""

    def move(
        self,
        ledger: Ledger,
        old: Position,
        new: Position,
        counts: Counts,
        *,
        again: bool = False,
    ) -> Position:
        """Store the hits between two positions of a file, and the second of them, which is returned
        with its time.

        The entries' ids follow from where in the file the batch begins and ends. Should Redis lose
        its last second, a reader that cuts the same batches again sends the same ids, and nothing
        counts twice. A batch that had ended at the end of a growing file is cut differently once
        the file has grown; its lines then count twice if a worker had applied them already, unless
        a position file says how they were cut: ``again`` sends them with the time of ``new``.

        Raises:
            TailError: another reader moved the position, Redis lost it, or a stop came while Redis
                was away.
            StreamError: Redis refuses for good.
        """
        span = f"{old.offset}+{old.unterminated:d}..{new.offset}+{new.unterminated:d}"
        place = f"{new.series}:{new.file}:{span}"
        self._stream = ledger.stream
        if not again:
            new = replace(new, at=self.now())
        entries = self._seal(
            counts, new.at, lambda n: id_for(f"tail:{ledger.source}", self.counter, f"{place}:{n}")
        )
        if not self._insist(lambda: ledger.move(old.token, new, entries, self.full)):
            now = self.patiently(ledger.read)
            if now is None or (now.series == new.series and now.at < old.at):
                raise TailError(
                    "Redis has lost the position of this log: it was emptied or restored, or is "
                    "another one. What was read last is not stored; run it again"
                )
            raise TailError(
                "another countersink tail reads this log for this counter; stop one of them. "
                "Nothing was counted twice"
            )
        self.entries += len(entries)
        return new

    def add(self, counts: Counts) -> None:
        """Store hits that have no place to go back to; of a cluster on a master that serves.

        Raises:
            TailError: a stop came while Redis was away.
            StreamError: Redis refuses for good.
        """
        if self._route is None:
            self._route = self.patiently(self._found)
        route = self._route
        route.return_home(self.client)
        entries = self._seal(counts, self.now(), lambda n: new_entry_id(self.now()))
        self._insist(lambda: route.reach(self.client, lambda: self._append(route.stream, entries)))
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
            pipe = self.client.pipeline(transaction=True)
            for entry in entries:
                pipe.xadd(stream, entry.fields())
            pipe.execute()
        return "stored"

    def _seal(self, counts: Counts, at: int, name: Callable[[int], str]) -> list[Sealed]:
        rows = self._rows(counts)
        return [
            Sealed(
                id=name(n),
                at=at,
                rows=raw,
                increments=sum(row[3] for row in part),
            )
            for n, (part, raw) in enumerate(encoded(rows))
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
            # In an order: a batch that is sent again is cut into the same rows.
            hashes = sorted({member_hash(each.encode(), salt.salt) for each in visitors})
            for at in range(0, len(hashes), MAX_HASHES):
                part = b"".join(hashes[at : at + MAX_HASHES])
                rows.append((self.counter, key, minute, 0 if at else amount, salt.number, part))
        return rows

    def _salts(self, minute: int) -> list[Salt]:
        if (route := self._route) is None:
            assert self._stream is not None
            salts = read_salts(self.client, self._stream, self.counter, minute)
        else:
            salts = route.reach(
                self.client, lambda: read_salts(self.client, route.stream, self.counter, minute)
            )
        if not salts:
            raise TailError(no_salt(self.counter))
        return salts

    def now(self) -> int:
        """Unix ms on Redis's clock."""
        clock = time.monotonic()
        if self._offset is None or clock >= self._ask_again:
            self._offset = self.patiently(self._ask_offset)
            self._ask_again = clock + _CLOCK_EVERY
        return time.time_ns() // 1_000_000 + self._offset

    def _ask_offset(self) -> int:
        if (route := self._route) is None:
            return offset_ms(self.client, self._stream)
        return route.reach(self.client, lambda: offset_ms(self.client, route.stream))

    def patiently(self, call: Callable[[], T]) -> T:
        """What ``call`` returns, called again for as long as Redis is away.

        Raises:
            TailError: a stop came, and Redis was still away 5 s later.
            StreamError: Redis refuses for good.
        """
        trouble = _Trouble(self.notice, self.stop)
        while True:
            try:
                result = call()
            except StreamUnavailable as error:
                self._offset = None  # Redis may come back as another machine
                trouble.wait(f"waiting for Redis ({error})", error)
            else:
                trouble.over("Redis is back")
                return result

    def _insist(self, move: Callable[[], Outcome]) -> bool:
        """Whether it was stored; False when somebody else moved the position."""
        trouble = _Trouble(self.notice, self.stop)
        while (outcome := self.patiently(move)) == "full":
            trouble.wait(
                f"the queue holds {self.full} entries or more: waiting for the workers", None
            )
        trouble.over("the queue has room again")
        return outcome == "stored"


@dataclass(slots=True)
class _Trouble:
    """Waits longer each time, says why now and then, and gives up some time after a stop."""

    notice: Callable[[str], None]
    stop: Stop
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_WAIT, _LONGEST_WAIT))
    said: float | None = None
    stopped: float | None = None

    def wait(self, why: str, cause: Exception | None) -> None:
        now = time.monotonic()
        if self.said is None or now - self.said >= _REMIND_EVERY:
            self.notice(why)
            self.said = now
        if self.stop.requested:
            self.stopped = self.stopped or now
            if now - self.stopped >= _LAST_ATTEMPTS:
                raise TailError(
                    f"stopped while {why}: what was read last is not stored, "
                    "and the next run reads it again"
                ) from cause
            time.sleep(_FIRST_WAIT)
        else:
            self.stop.wait(self.backoff.pause_s())

    def over(self, news: str) -> None:
        if self.said is not None:
            self.notice(news)

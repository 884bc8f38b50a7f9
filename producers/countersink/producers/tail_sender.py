"""Storing what was read of a log: entries and position together, however long it takes."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import redis

from countersink.producers.access_log import Counts
from countersink.producers.log_position import Ledger, Outcome, Position
from countersink.producers.stop import Stop
from countersink.stream.clock import offset_ms
from countersink.stream.connection import mapped
from countersink.stream.entry import (
    ROWS_PER_ENTRY,
    Sealed,
    encode_rows,
    id_for,
    new_entry_id,
)
from countersink.stream.errors import StreamUnavailable
from countersink.stream.names import stream_key
from countersink.stream.partitions import note_use, partitions

_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 5.0
_REMIND_EVERY: Final = 60.0
"""Seconds between two notices about the same trouble."""
_LAST_ATTEMPTS: Final = 5.0
"""Seconds that storing may still take once a stop was asked for."""
_CLOCK_EVERY: Final = 60.0
"""Seconds between two looks at Redis's clock: clocks drift."""

T = TypeVar("T")


class TailError(Exception):
    """Reading cannot go on; the message says what to do. What was stored stays stored."""


class Sender:
    """Stores batches, waiting as long as Redis is away or the stream is full.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        counter: what is counted.
        full: entries in the stream from which on to wait for the workers.
        notice: told, in sentences, what is being waited for.
        stop: when set, storing is given up after 5 s.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        counter: str,
        full: int,
        notice: Callable[[str], None],
        stop: Stop,
    ) -> None:
        self.client = client
        self._counter = counter
        self._full = full
        self._notice = notice
        self._stop = stop
        self._offset: int | None = None
        self._ask_again = 0.0
        self.entries = 0

    def move(
        self, ledger: Ledger, source: str, old: Position, new: Position, counts: Counts
    ) -> None:
        """Store the hits between two positions of a file, and the second of them.

        The entries' ids follow from where in the file the batch begins and ends. Should Redis lose
        its last second, a reader that cuts the same batches again sends the same ids, and nothing
        counts twice. A batch that had ended at the end of a growing file is cut differently once
        the file has grown; its lines then count twice if a worker had applied them already.

        Raises:
            TailError: another reader moved the position, or a stop came while Redis was away.
            StreamError: Redis refuses for good.
        """
        span = f"{old.offset}+{old.unterminated:d}..{new.offset}+{new.unterminated:d}"
        place = f"{new.series}:{new.file}:{span}"
        entries = self._seal(
            counts, lambda n: id_for(f"tail:{source}", self._counter, f"{place}:{n}")
        )
        at = self._now()
        self._insist(lambda: ledger.move(old.token, new, entries, at, self._full))
        self.entries += len(entries)

    def add(self, partition: int, counts: Counts) -> None:
        """Store hits that have no place to go back to.

        Raises:
            TailError: a stop came while Redis was away.
            StreamError: Redis refuses for good.
        """
        entries = self._seal(counts, lambda n: new_entry_id(self._now()))
        self._insist(lambda: self._append(stream_key(partition), entries))
        self.entries += len(entries)

    def partition(self) -> int:
        """A partition for a source without a place of its own."""
        partition = self.patiently(lambda: os.getpid() % partitions(self.client))
        self.patiently(lambda: note_use(self.client, partition))
        return partition

    def _append(self, stream: str, entries: Sequence[Sealed]) -> Outcome:
        with mapped():
            if self.client.xlen(stream) >= self._full:
                return "full"
            pipe = self.client.pipeline(transaction=True)
            for entry in entries:
                pipe.xadd(stream, entry.fields())
            pipe.execute()
        return "stored"

    def _seal(self, counts: Counts, name: Callable[[int], str]) -> list[Sealed]:
        rows = [(self._counter, key, minute, amount) for (key, minute), amount in counts.items()]
        at = self._now()
        return [
            Sealed(
                id=name(n),
                at=at,
                rows=encode_rows(part),
                increments=sum(row[3] for row in part),
            )
            for n, part in enumerate(
                rows[i : i + ROWS_PER_ENTRY] for i in range(0, len(rows), ROWS_PER_ENTRY)
            )
        ]

    def _now(self) -> int:
        """Unix ms on Redis's clock."""
        clock = time.monotonic()
        if self._offset is None or clock >= self._ask_again:
            self._offset = self.patiently(lambda: offset_ms(self.client))
            self._ask_again = clock + _CLOCK_EVERY
        return time.time_ns() // 1_000_000 + self._offset

    def patiently(self, call: Callable[[], T]) -> T:
        """What ``call`` returns, called again for as long as Redis is away.

        Raises:
            TailError: a stop came, and Redis was still away 5 s later.
            StreamError: Redis refuses for good.
        """
        trouble = _Trouble(self._notice, self._stop)
        while True:
            try:
                result = call()
            except StreamUnavailable as error:
                self._offset = None  # Redis may come back as another machine
                trouble.wait(f"waiting for Redis ({error})", error)
            else:
                trouble.over("Redis is back")
                return result

    def _insist(self, move: Callable[[], Outcome]) -> None:
        trouble = _Trouble(self._notice, self._stop)
        while True:
            outcome = self.patiently(move)
            if outcome == "stored":
                trouble.over("the queue has room again")
                return
            if outcome == "moved":
                raise TailError(
                    "another countersink tail reads this log for this counter; stop one of them. "
                    "Nothing was counted twice"
                )
            trouble.wait(
                f"the queue holds {self._full} entries or more: waiting for the workers", None
            )


class _Trouble:
    """Waits longer each time, says why now and then, and gives up some time after a stop."""

    def __init__(self, notice: Callable[[str], None], stop: Stop) -> None:
        self._notice = notice
        self._stop = stop
        self._pause = _FIRST_WAIT
        self._said: float | None = None
        self._stopped: float | None = None

    def wait(self, why: str, cause: Exception | None) -> None:
        now = time.monotonic()
        if self._said is None or now - self._said >= _REMIND_EVERY:
            self._notice(why)
            self._said = now
        if self._stop.is_set():
            self._stopped = self._stopped or now
            if now - self._stopped >= _LAST_ATTEMPTS:
                raise TailError(
                    f"stopped while {why}: what was read last is not stored, "
                    "and the next run reads it again"
                ) from cause
            time.sleep(_FIRST_WAIT)
        else:
            self._stop.wait(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_WAIT)

    def over(self, news: str) -> None:
        if self._said is not None:
            self._notice(news)

"""Readers of a Redis Cluster: a thread for each partition, so that a node that is away holds up its
own partitions only; log lines about partitions that are away, and how long a stop waits for them
(``LEAVE_WITHIN_S``).

One command cannot read streams of several hash slots, and a frozen node costs whoever asks it the
socket time-out, each time. So every partition has a thread with a client, a consumer group and an
:class:`~countersink.worker.intake.Intake` of its own. A thread hands a batch over to the worker's
loop, and reads on when that was applied and acknowledged: what is in memory stays bounded. The loop
makes one transaction of all batches that are ready. The threads wait for Redis nearly all the time.

An acknowledgement that a node does not take is tried until it does. If the process ends before, the
entries stay pending, come again to another worker, and their guards show that they were applied.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import redis

from countersink.runtime.errors import GivenUp
from countersink.runtime.log import Log, error_text
from countersink.runtime.process import Stop
from countersink.runtime.retry import Outage, retry
from countersink.stream.errors import (
    StreamError,
    StreamRefused,
    StreamUnavailable,
)
from countersink.stream.group import READ_BYTES, Group
from countersink.stream.names import stream_key, used_partitions
from countersink.worker.intake import PARTITIONS_EVERY_S, Intake, ReadBatch, is_empty
from countersink.worker.options import WorkerOptions
from countersink.worker.report import LOGGER, WorkerAction

LEAVE_WITHIN_S: Final = 1.0
"""Seconds that a stop waits for nodes, from the last one that answered on."""

Result = TypeVar("Result")


@dataclass(eq=False, repr=False)
class _Crew:
    """What the threads share. Fields change under ``changed`` only, which the loop waits for.

    Attributes:
        ready: partitions that have a batch for the loop, in the order in which they got it.
        away: partition → why it cannot be read.
        bug: what ended a thread; the loop ends with it.
        released: set when the loop is over.
    """

    options: WorkerOptions
    consumer: str
    stop: Stop
    connect: Callable[[], redis.Redis]
    changed: threading.Condition = field(default_factory=threading.Condition)
    ready: deque["_Reader"] = field(default_factory=deque)
    away: dict[int, str] = field(default_factory=dict)
    bug: Exception | None = None
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def ending(self) -> bool:
        """Whether nothing new is to be read."""
        return self.stop.requested or self.released.is_set()


class Readers:
    """Reads all partitions at once, a thread for each. For the loop's thread.

    Args:
        connect: makes a client; each thread has its own, closed at its end.
        client: the loop's own.
        consumer: this consumer's name.
        options: the worker's.
        stop: ends the reading.
        log: the worker's.
    """

    def __init__(
        self,
        connect: Callable[[], redis.Redis],
        client: redis.Redis,
        consumer: str,
        options: WorkerOptions,
        stop: Stop,
        log: Log,
    ) -> None:
        self._crew = _Crew(options, consumer, stop, connect)
        self._client = client
        self._log = log
        self._readers: dict[int, _Reader] = {}
        self._taken: list[_Reader] = []
        self._found: list[int] = []
        self._chore: Callable[[], object] = lambda: None
        self._chore_due = threading.Event()
        self._looking = threading.Thread(target=self._look, name="partitions", daemon=True)
        comfort = ", other partitions are read, nothing is lost"
        self._outage = Outage("Redis", log, comfort=comfort)

    @property
    def waiting(self) -> int:
        """Deliveries that were read, are not in the loop's batch, and are not acknowledged."""
        return sum(reader.in_hand for reader in self._readers.values())

    @property
    def lost(self) -> int:
        """Entries that were trimmed before anyone applied them, as far as this worker found out."""
        return sum(reader.intake.lost for reader in self._readers.values())

    @property
    def away(self) -> Mapping[int, str]:
        """The partitions that cannot be read now, each with its error."""
        with self._crew.changed:
            return dict(self._crew.away)

    def begin(self) -> int:
        """Find the partitions and read them from now on; how many there are.

        Raises:
            StreamError: no node of Redis answered.
        """
        self._found = used_partitions(self._client, on_silence=self._say_refused)
        self._follow()
        self._looking.start()
        return len(self._readers)

    def next(self, *, fresh: bool = True) -> ReadBatch:
        """What the threads have ready, up to ``batch_rows``; empty when there was nothing within
        ``batch_wait_ms``.

        Args:
            fresh: else an empty batch says that the threads have ended, or that their nodes do not
                answer.

        Raises:
            StreamError: when draining: not all nodes answered. Nothing is lost.
        """
        if self._crew.bug is not None:
            raise self._crew.bug
        if fresh:
            self._follow()
        else:
            for reader in self._readers.values():
                reader.go_on_if_empty()
        batch = self._collect(fresh)
        self._say_away()
        with self._crew.changed:
            batch.silent = 0 < len(self._readers) == len(self._crew.away)
        if fresh and self._crew.options.drain and not batch.deliveries:
            batch.drained = self._is_drained()
        return batch

    def acknowledge(self, batch: ReadBatch) -> None:
        """Let the threads acknowledge what each brought to the batch that came last."""
        for reader in self._taken:
            reader.applied()
        self._taken.clear()

    def aside(self, chore: Callable[[], object]) -> None:
        """Call ``chore`` soon, on the thread that looks for partitions: a node that hangs holds up
        that one only.
        """
        self._chore = chore
        self._chore_due.set()

    def leave(self, hasty: redis.Redis) -> None:
        """End the threads, each of which leaves the group on its stream; a batch that was not
        acknowledged to them stays pending.
        """
        self._crew.released.set()
        self._chore_due.set()
        for reader in self._readers.values():
            reader.may_go_on.set()
        with self._crew.changed:
            self._crew.changed.wait_for(self._all_ended, LEAVE_WITHIN_S)
        if self._looking.is_alive():
            self._looking.join(LEAVE_WITHIN_S)  # a chore must not outlive the worker

    def _collect(self, fresh: bool) -> ReadBatch:
        crew = self._crew
        wait_s = crew.options.batch_wait_ms / 1000
        if crew.options.drain:
            wait_s *= 2  # so that all threads whose streams are empty have found that
        if not fresh:
            wait_s += LEAVE_WITHIN_S
        over = self._all_empty if fresh else self._all_ended
        batch = ReadBatch()
        with crew.changed:
            crew.changed.wait_for(lambda: bool(crew.ready) or over(), wait_s)
            while crew.ready:
                found = crew.ready[0].batch
                if batch.deliveries and batch.rows + found.rows > crew.options.batch_rows:
                    break
                batch.merge(found)
                reader = crew.ready.popleft()
                reader.to_acknowledge = 0
                self._taken.append(reader)
        return batch

    def _all_empty(self) -> bool:
        return self._crew.options.drain and all(reader.empty for reader in self._readers.values())

    def _all_ended(self) -> bool:
        """Whether all threads have ended whose nodes answer."""
        return all(
            reader.ended
            for number, reader in self._readers.items()
            if number not in self._crew.away
        )

    def _is_drained(self) -> bool:
        """Whether every stream of every node is empty, and nothing is pending; else the threads
        look again.

        A thread whose stream is empty waits, while the others may be busy for long. So once all
        have found theirs empty, all streams are looked at together.

        Raises:
            StreamError: a node does not answer, who knows what is there.
        """
        drained = False
        try:
            if self._all_empty():
                self._found = used_partitions(self._client)
                self._follow()
                streams = [stream_key(number) for number in self._readers]
                drained = is_empty(Group(self._client, streams, self._crew.consumer))
        finally:
            for reader in self._readers.values() if not drained else ():
                reader.go_on_if_empty()
        return drained

    def _look(self) -> None:
        """Do the chore, and keep the list of partitions current, as far as nodes answer."""
        crew = self._crew
        look_at = time.monotonic() + PARTITIONS_EVERY_S
        with crew.connect() as client:
            while True:
                self._chore_due.wait(max(0.0, look_at - time.monotonic()))
                self._chore_due.clear()
                if crew.released.is_set():
                    return
                try:
                    self._chore()
                    if time.monotonic() < look_at:
                        continue
                    look_at = time.monotonic() + PARTITIONS_EVERY_S
                    self._found = used_partitions(client, on_silence=self._say_refused)
                except StreamUnavailable:
                    pass
                except StreamError as error:
                    self._say_unlisted(error_text(error), None)
                except Exception as error:
                    self._say_unlisted("an unexpected error", error)

    def _say_refused(self, node: str, error: StreamError) -> None:
        if isinstance(error, StreamRefused):  # which partitions are away is said by next()
            self._say_unlisted(f"{node}: {error_text(error)}", None)

    def _say_unlisted(self, text: str, bug: Exception | None) -> None:
        self._log.seldom(
            WorkerAction.CHORE_FAILED,
            "new partitions cannot be looked for everywhere; those known are read all the same",
            level=logging.ERROR,
            bug=bug,
            chore="follow_partitions",
            error=text,
        )

    def _follow(self) -> None:
        """Read partitions that are new. What was read once is read until this process ends."""
        new = [number for number in self._found if number not in self._readers]
        if not new:
            return
        before = len(self._readers)
        for number in new:
            self._readers[number] = _Reader(self._crew, number)
        for reader in self._readers.values():
            reader.group.max_bytes = max(1, READ_BYTES // len(self._readers))
        for number in new:
            self._readers[number].thread.start()
        if before:
            self._log(
                WorkerAction.PARTITIONS,
                "the number of streams changed",
                streams=len(self._readers),
                before=before,
            )

    def _say_away(self) -> None:
        """Log which partitions are away, and when there are none any more."""
        if away := self.away:
            first = StreamUnavailable(away[min(away)])
            self._outage.failed(first, partitions=",".join(map(str, sorted(away))))
        else:
            self._outage.over()


class _Reader:
    """Reads one partition on a thread of its own."""

    def __init__(self, crew: _Crew, partition: int) -> None:
        self._crew = crew
        self._partition = partition
        log = Log(LOGGER, consumer=crew.consumer, partition=partition)
        self._client = crew.connect()
        self.group = Group(self._client, [stream_key(partition)], crew.consumer)
        self.intake = Intake(self.group, crew.options, log, follow=False)
        self.thread = threading.Thread(target=self._run, name=f"partition {partition}", daemon=True)
        self.may_go_on = threading.Event()
        self._applied = False
        self.to_acknowledge = 0
        self.batch = ReadBatch()
        self.empty = False
        """When draining: its stream is empty and nothing is pending; it waits for a go-ahead."""
        self.ended = False

    @property
    def in_hand(self) -> int:
        """Deliveries that were read and are not acknowledged, without those that the loop has."""
        return self.intake.waiting + self.to_acknowledge

    def applied(self) -> None:
        """Its batch was applied: it acknowledges that, and reads on."""
        with self._crew.changed:
            self._applied = True
            self.to_acknowledge = len(self.batch.deliveries)
        self.may_go_on.set()

    def go_on_if_empty(self) -> None:
        """Look again whether there is something."""
        with self._crew.changed:
            if self.empty:
                self.empty = False
                self.may_go_on.set()

    def _run(self) -> None:
        try:
            self._move()
            self._patiently(self.group.delete_consumer)
        except GivenUp:
            pass
        except Exception as error:
            self._crew.bug = error  # the loop raises it
        finally:
            self._client.close()
            with self._crew.changed:
                self.ended = True
                self._crew.changed.notify()

    def _move(self) -> None:
        """Read, hand over and acknowledge until nothing new is to be read.

        Raises:
            GivenUp: what was read stays pending.
        """
        while True:
            batch = self._patiently(lambda: self.intake.next(fresh=not self._crew.ending))
            if batch.deliveries:
                self.batch, self._applied = batch, False
                self.to_acknowledge = len(batch.deliveries)
                self._wait()
                if not self._applied:
                    raise GivenUp("the loop has ended")
                self._patiently(lambda b=batch: self.intake.acknowledge(b))  # type: ignore[misc]
                self.to_acknowledge = 0
            elif self._crew.ending:
                return
            elif batch.drained:
                self._wait(empty=True)

    def _wait(self, *, empty: bool = False) -> None:
        """Wait for the loop, ``empty`` or with a batch for it."""
        crew = self._crew
        self.may_go_on.clear()
        with crew.changed:
            self.empty = empty
            if not empty:
                crew.ready.append(self)
            crew.changed.notify()
        if not crew.released.is_set():
            self.may_go_on.wait()

    def _patiently(self, work: Callable[[], Result]) -> Result:
        """The result of ``work``, which is called until the node does its part.

        Raises:
            GivenUp: the process ends, and the node still does not.
        """
        failures = 0

        def failed(error: Exception) -> None:
            nonlocal failures
            failures += 1
            if failures > 1:  # the first may be a connection that had gone stale
                with self._crew.changed:
                    self._crew.away[self._partition] = error_text(error)
                    self._crew.changed.notify()

        result = retry(
            work,
            passes=lambda error: isinstance(error, StreamError),
            stop=lambda: self._crew.ending,
            failed=failed,
            wait=self._crew.stop.wait,
        )
        if self._partition in self._crew.away:
            with self._crew.changed:
                del self._crew.away[self._partition]
        return result

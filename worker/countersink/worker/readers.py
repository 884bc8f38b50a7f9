"""The readers of a Redis Cluster (``Readers``): a thread for each partition, so that a node that is
away delays only its own partitions. Also log lines about partitions that are away.

One command cannot read streams in several hash slots, and a command to a frozen node takes the
whole socket timeout. So every partition has a thread with its own client, consumer group and
:class:`~countersink.worker.intake.Intake`. A thread passes a batch to the worker's loop. To bound
memory, it reads the next batch only after this one was applied and acknowledged. The loop applies
the batches that are ready, about ``batch_rows`` rows at most, in one transaction.

A failed acknowledgement is repeated until it succeeds. If the process ends before that, the entries
stay pending, another worker gets them, and their guards show that they were applied."""

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
from countersink.stream.errors import StreamError, StreamRefused, StreamUnavailable
from countersink.stream.group import READ_BYTES, Group
from countersink.stream.names import stream_key, used_partitions
from countersink.worker.intake import PARTITIONS_EVERY_S, Intake, ReadBatch, is_empty
from countersink.worker.options import WorkerOptions
from countersink.worker.report import LOGGER, WorkerAction

LEAVE_WITHIN_S: Final = 1.0
"""Seconds that a stop waits for further answers after the last answer of a node."""

Result = TypeVar("Result")


@dataclass(eq=False, repr=False)
class _Crew:
    """State that the reader threads and the loop share; also some arguments of :class:`Readers`.

    Attributes:
        changed: the loop waits for this condition. Its lock guards ``ready`` and ``away``.
        ready: readers with a batch for the loop; the oldest batch is first.
        away: the partitions that cannot be read now, each with its error.
        bug: the unexpected error of a thread; the loop raises it.
        released: set when the loop has ended.
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
        """True once a stop is requested or the loop has ended. Then threads read no new entries."""
        return self.stop.requested or self.released.is_set()


class Readers:
    """Reads each partition on a thread of its own. The loop's thread calls the public methods.

    Args:
        connect: makes a client; each thread has its own, and closes it.
        client: the loop's client.
        consumer: the name of this consumer.
        options: the worker's options.
        stop: the stop that ends the reading.
        log: the worker's log.
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
        self._chores = threading.Thread(target=self._do_chores, name="partitions", daemon=True)
        self._outage = Outage("Redis", log, note=", other partitions are read, nothing is lost")

    @property
    def waiting(self) -> int:
        """The number of read deliveries, without acknowledged ones and those the loop applies."""
        return sum(reader.unacknowledged for reader in self._readers.values())

    @property
    def lost(self) -> int:
        """The number of pending entries found trimmed from their streams, over all partitions."""
        return sum(reader.intake.lost for reader in self._readers.values())

    @property
    def away(self) -> Mapping[int, str]:
        """The partitions that cannot be read now, each with its error."""
        with self._crew.changed:
            return dict(self._crew.away)

    def begin(self) -> int:
        """Find the partitions, start to read them, and return their number.

        Raises:
            StreamError: no node of Redis answered."""
        self._found = used_partitions(self._client, on_silence=self._log_refused)
        self._follow()
        self._chores.start()
        return len(self._readers)

    def next(self, *, fresh: bool = True) -> ReadBatch:
        """Return the batches that threads have read, joined into one of about ``batch_rows`` rows.
        It is empty if none came within ``batch_wait_ms`` (twice this time with ``drain``).

        Args:
            fresh: False after a request to stop, when threads read no new entries and end. Then
                wait a second longer than ``batch_wait_ms``; an empty batch means that this time is
                up, or that all threads whose nodes answer have ended.

        Raises:
            StreamError: a node did not answer while draining. No entry is lost.
            Exception: the unexpected error of a thread."""
        if self._crew.bug is not None:
            raise self._crew.bug
        if fresh:
            self._follow()
        else:
            for reader in self._readers.values():
                reader.go_on_if_empty()
        batch = self._collect(fresh)
        self._log_away()
        with self._crew.changed:
            batch.silent = 0 < len(self._readers) == len(self._crew.away)
        if fresh and self._crew.options.drain and not batch.deliveries:
            batch.drained = self._is_drained()
        return batch

    def acknowledge(self, batch: ReadBatch) -> None:
        """Let the threads acknowledge ``batch``, the last one of :meth:`next`. Return at once."""
        for reader in self._taken:
            reader.applied()
        self._taken.clear()

    def run_chore(self, chore: Callable[[], object]) -> None:
        """Call ``chore`` soon on the thread for chores, in place of a chore that was not begun yet.
        A hanging node delays only that thread."""
        self._chore = chore
        self._chore_due.set()

    def leave(self, brief_client: redis.Redis) -> None:
        """End the threads; wait at most two seconds for that. Each deletes its consumer, unless its
        batch was not applied: these entries stay pending. ``brief_client`` is not used."""
        self._crew.released.set()
        self._chore_due.set()
        for reader in self._readers.values():
            reader.may_go_on.set()
        with self._crew.changed:
            self._crew.changed.wait_for(self._all_ended, LEAVE_WITHIN_S)
        if self._chores.is_alive():
            self._chores.join(LEAVE_WITHIN_S)  # a chore must not outlive the worker

    def _collect(self, fresh: bool) -> ReadBatch:
        crew = self._crew
        wait_s = crew.options.batch_wait_ms / 1000
        if crew.options.drain:
            wait_s *= 2  # time for all threads to find their streams empty
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
        """Return whether all threads whose nodes answer have ended."""
        return all(
            reader.ended
            for number, reader in self._readers.items()
            if number not in self._crew.away
        )

    def _is_drained(self) -> bool:
        """Return whether all streams are empty and nothing is pending; else let threads read again.
        If all threads found their streams empty, check these again: one may have got entries since.

        Raises:
            StreamError: a node does not answer; its streams may have entries."""
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

    def _do_chores(self) -> None:
        """Run the thread for chores: until the worker ends, run the loop's chores and, every few
        seconds, list the partitions of the nodes that answer."""
        crew = self._crew
        due = time.monotonic() + PARTITIONS_EVERY_S
        with crew.connect() as client:
            while True:
                self._chore_due.wait(max(0.0, due - time.monotonic()))
                self._chore_due.clear()
                if crew.released.is_set():
                    return
                try:
                    self._chore()
                    if time.monotonic() < due:
                        continue
                    due = time.monotonic() + PARTITIONS_EVERY_S
                    self._found = used_partitions(client, on_silence=self._log_refused)
                except StreamUnavailable:
                    pass
                except StreamError as error:
                    self._log_unlisted(error_text(error), None)
                except Exception as error:
                    self._log_unlisted("an unexpected error", error)

    def _log_refused(self, node: str, error: StreamError) -> None:
        if isinstance(error, StreamRefused):  # next() logs partitions that are away
            self._log_unlisted(f"{node}: {error_text(error)}", None)

    def _log_unlisted(self, text: str, bug: Exception | None) -> None:
        self._log.seldom(
            WorkerAction.CHORE_FAILED,
            "some nodes cannot be searched for new partitions; known partitions are still read",
            level=logging.ERROR,
            bug=bug,
            chore="follow_partitions",
            error=text,
        )

    def _follow(self) -> None:
        """Start a thread for each partition that was found and has none. It reads until a stop."""
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

    def _log_away(self) -> None:
        """Log the partitions that are away, and log when none is away any more."""
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
        """Set while draining: the stream is empty, nothing is pending, and the thread waits."""
        self.ended = False

    @property
    def unacknowledged(self) -> int:
        """The number of read deliveries, without acknowledged ones and those the loop applies."""
        return self.intake.waiting + self.to_acknowledge

    def applied(self) -> None:
        """Record that the thread's batch was applied; let it acknowledge the batch and read on."""
        with self._crew.changed:
            self._applied = True
            self.to_acknowledge = len(self.batch.deliveries)
        self.may_go_on.set()

    def go_on_if_empty(self) -> None:
        """Let the thread read again if it waits because it found its stream empty (``drain``)."""
        with self._crew.changed:
            if self.empty:
                self.empty = False
                self.may_go_on.set()

    def _run(self) -> None:
        try:
            self._read_batches()
            self._retried(self.group.delete_consumer)
        except GivenUp:
            pass
        except Exception as error:
            self._crew.bug = error  # the loop raises it
        finally:
            self._client.close()
            with self._crew.changed:
                self.ended = True
                self._crew.changed.notify()

    def _read_batches(self) -> None:
        """Read batches, pass them to the loop and acknowledge them, until :attr:`_Crew.ending`.
        Raises GivenUp if the loop ends without applying the batch, or as :meth:`_retried`."""
        while True:
            batch = self._retried(lambda: self.intake.next(fresh=not self._crew.ending))
            if batch.deliveries:
                self.batch, self._applied = batch, False
                self.to_acknowledge = len(batch.deliveries)
                self._wait()
                if not self._applied:
                    raise GivenUp("the loop has ended")
                self._retried(lambda b=batch: self.intake.acknowledge(b))  # type: ignore[misc]
                self.to_acknowledge = 0
            elif self._crew.ending:
                return
            elif batch.drained:
                self._wait(empty=True)

    def _wait(self, *, empty: bool = False) -> None:
        """Pass the batch to the loop, or with ``empty`` only the news that the stream is empty.
        Then wait until the loop lets the thread go on, or ends."""
        crew = self._crew
        self.may_go_on.clear()
        with crew.changed:
            self.empty = empty
            if not empty:
                crew.ready.append(self)
            crew.changed.notify()
        if not crew.released.is_set():
            self.may_go_on.wait()

    def _retried(self, work: Callable[[], Result]) -> Result:
        """Call ``work``, again after each StreamError, and return its result. From the second error
        until the success, the partition is away. Raises GivenUp if errors go on after a stop."""
        failures = 0

        def failed(error: Exception) -> None:
            nonlocal failures
            failures += 1
            if failures > 1:  # the first failure may be a stale connection's
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

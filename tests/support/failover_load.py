"""All that counts going on at once over one URL of the database, whatever dies behind it: a
producer and two workers, compaction, a backfill, a sequence, an application's own transactions and
a tracked table; how long nothing was counted meanwhile, and whether all of it is exact."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import redis

from countersink.database.connection import connect
from countersink.database.errors import StoreError
from countersink.producers import Producer
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables
from countersink.store import SequenceUncertain, Store
from countersink.store.verify import open_session, verify
from tests.support.processes import Child, Children
from tests.support.traffic import STREAM, backlog
from tests.support.waiting import eventually

WORKER: Final = {
    "batch_entries": 20,
    "batch_wait_ms": 20,
    "claim_idle_ms": 2000,
    "claim_every_s": 0.5,
    "stop_within_s": 40.0,
}
LINES: Final = 40_000
"""Rows of the file that is backfilled."""
APPLIED_S: Final = 90.0
_BURST: Final = 20


@dataclass
class Seen:
    """What was noticed while it went on.

    Attributes:
        idle_s: the longest time in which no entry was acknowledged, though there were some.
        slowest_s: the longest that a call of ``increment()`` took.
        values: of the sequence, in the order in which they came.
        orders: transactions of the application whose COMMIT was answered.
        passes: of compaction, to their end.
    """

    idle_s: float = 0.0
    slowest_s: float = 0.0
    counted: int = 0
    values: list[int] = field(default_factory=list)
    orders: int = 0
    passes: int = 0


class Load:
    """A context manager, within which all goes on.

    Args:
        children: of the test.
        client: the queue, and ``redis_url``, its URL.
        url: the database, migrated, with all hosts.
        directory: for the file that is backfilled.
    """

    per_second = 2000
    """Increments of the producer."""

    def __init__(
        self,
        children: Children,
        client: redis.Redis,
        redis_url: str,
        url: str,
        directory: Path,
    ) -> None:
        self.seen = Seen()
        self.lost: list[str] = []
        """Increments that the queue itself has lost."""
        self.url = url
        self._client = client
        self._redis_url = redis_url
        self._children = children
        self._directory = directory
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        self._backfill_done = threading.Event()
        self.workers: list[Child] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        with Store(self.url) as store:
            with connect(self.url) as session:
                session.execute(
                    "CREATE TABLE orders (id INT AUTO_INCREMENT PRIMARY KEY) ENGINE = InnoDB"
                )
            store.tracked.track("orders")
        self._write_file()
        self.workers = [
            self._children.worker(self._redis_url, self.process_url(), **WORKER) for _ in range(2)
        ]
        for work in self.works():
            self._start(work)
        self.wait_for_more()
        self._start(self._look)  # not before: how long the workers took to start is no fault
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(APPLIED_S)

    def works(self) -> list[Callable[[], None]]:
        """What goes on in threads."""
        return [self._produce, self._compact, self._backfill, self._take_numbers, self._sell]

    def process_url(self) -> str:
        """The URL that another process, or pass of compaction, is given."""
        return self.url

    def wait_for_more(self) -> None:
        """Until each of them has got on."""
        acknowledged, values, orders = self._acknowledged(), len(self.seen.values), self.seen.orders

        def more() -> bool:
            self._check_errors()
            return (
                self._acknowledged() > acknowledged + 5
                and len(self.seen.values) > values
                and self.seen.orders > orders
            )

        eventually(more, APPLIED_S, message=self.said)

    def finish(self) -> Seen:
        """Let all come to its end, and hold the tables against what was done."""
        eventually(self._has_backfilled, APPLIED_S, message=self.said)
        self._stopping.set()
        for thread in self._threads:
            thread.join(APPLIED_S)
            assert not thread.is_alive(), f"{thread.name} hangs\n{self.said()}"
        self._check_errors()
        eventually(self.is_drained, APPLIED_S, message=self.said)
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            assert worker.wait() == 0, worker.output()
        self.check()
        return self.seen

    def check(self) -> None:
        """Nothing is missing, nothing counted twice."""
        with Store(self.url) as store:
            self.check_app(store)
            assert store.totals.total("filed") == LINES
            values = self.seen.values
            assert len(set(values)) == len(values), "the sequence has repeated a value"
            assert values == sorted(values)
            sold = store.row_count("orders")
            assert sold >= self.seen.orders
            assert store.totals.total("sold") == sold
        with open_session(self.url) as session:
            assert session.query("SELECT COUNT(*) FROM orders") == [(sold,)]
            assert verify(session).differences == []

    def check_app(self, store: Store) -> None:
        """Of what the producer has counted."""
        assert store.totals.total("app") == self.seen.counted

    def key(self, number: int) -> str:
        """The key of the producer's increment number ``number``."""
        return f"key {number // _BURST * _BURST % 50} {number % _BURST}"

    def is_drained(self) -> bool:
        """Whether nothing waits in the queue."""
        return backlog(self._client) == 0

    def said(self) -> str:
        """What the workers have logged last."""
        return "\n".join(worker.output()[-1500:] for worker in self.workers)

    def _has_backfilled(self) -> bool:
        self._check_errors()
        return self._backfill_done.is_set()

    # -- what goes on --------------------------------------------------------------------------

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._run, args=(work,), name=str(work))
        thread.start()
        self._threads.append(thread)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)

    def _check_errors(self) -> None:
        if self._errors:
            raise RuntimeError(self.said()) from self._errors[0]

    def _produce(self) -> None:
        with Producer(self._redis_url, flush_interval=0.02) as producer:
            while not self._stopping.wait(_BURST / self.per_second):
                for number in range(_BURST):
                    began = time.perf_counter()
                    producer.increment("app", self.key(self.seen.counted + number))
                    took = time.perf_counter() - began
                    self.seen.slowest_s = max(self.seen.slowest_s, took)
                self.seen.counted += _BURST
            assert producer.flush(timeout=60.0)

    def _compact(self) -> None:
        everything = CompactOptions(before=date.max, rows=200, share=0.5)
        while not self._stopping.wait(0.1):
            try:
                opened = partial(open_tables, self.process_url())
                compact(opened, everything, stop=self._stopping.is_set)
                self.seen.passes += 1
            except StoreError:
                self._stopping.wait(0.2)

    def _backfill(self) -> None:
        while True:
            child = self._children.countersink(
                *("backfill", str(self._directory / "filed.csv"), "--counter", "filed"),
                *("--input-format", "csv", "--key-column", "key", "--time-column", "time"),
                environment={
                    "COUNTERSINK_MYSQL_URL": self.process_url(),
                    "COUNTERSINK_REDIS_URL": self._redis_url,
                    "XDG_STATE_HOME": str(self._directory),
                },
            )
            status = child.wait(300.0)
            if status == 0:
                self._backfill_done.set()
                return
            assert status == 1, child.output()  # away for too long: once more, which is safe
            if self._stopping.wait(0.2):
                return

    def _take_numbers(self) -> None:
        with Store(self.url) as store:
            while not self._stopping.wait(0.01):
                try:
                    self.seen.values.append(store.sequences.next("invoice"))
                except SequenceUncertain:
                    pass
                except StoreError:
                    self._stopping.wait(0.1)

    def _sell(self) -> None:
        with Store(self.url) as store:
            while not self._stopping.wait(0.01):
                try:
                    self._sell_on(store)
                except StoreError:
                    self._stopping.wait(0.1)

    def _sell_on(self, store: Store) -> None:
        """Transactions on one connection, until it is lost."""
        with connect(self.url) as session:
            application: Any = session._connection
            while not self._stopping.wait(0.01):
                try:
                    with session.transaction():
                        session.execute("INSERT INTO orders () VALUES ()")
                        with session._translated():  # its errors are the session's
                            store.increment(application, "sold", "paid")
                except StoreError:
                    if session.closed:
                        raise
                    continue  # another transaction was in the way
                self.seen.orders += 1

    def _look(self) -> None:
        """How long no entry is acknowledged."""
        known, since = self._acknowledged(), time.monotonic()
        while not self._stopping.wait(0.02):
            number, now = self._acknowledged(), time.monotonic()
            self.seen.idle_s = max(self.seen.idle_s, now - since)
            if number > known:
                known, since = number, now

    def _acknowledged(self) -> int:
        """Entries that were applied and are gone, or anything that grows with them."""
        if not self._client.exists(STREAM):
            return 0
        found: Any = self._client.xinfo_stream(STREAM)
        return int(found["entries-added"]) - int(found["length"])

    def _write_file(self) -> None:
        lines = (f"2026-11-{1 + n % 20:02d}T10:00:00Z,key {n % 997}" for n in range(LINES))
        (self._directory / "filed.csv").write_text("time,key\n" + "\n".join(lines) + "\n")

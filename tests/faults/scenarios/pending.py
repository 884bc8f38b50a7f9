"""Readers that ask for what is still in the queue, too, while the workers that empty it are killed.

Each reader sends increments, flushes, and reads: by Reads or by HTTP. A key that it alone counts
must then have what it sent, not one less and not one more; a key that all count must have at least
what it sent itself, and at most what all have begun to send.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from random import Random

import requests

from countersink.producers import Producer
from countersink.store import Store
from countersink.stream.connection import connect
from tests.faults.scenarios.worker_deaths import POINTS
from tests.faults.stage import Stage
from tests.support.asking import Asking
from tests.support.proxies import Deed
from tests.support.traffic import FIRST_MINUTE
from tests.support.waiting import eventually
from tests.web.serving import serving

READERS = 8
COUNTER = "seen"
SHARED = "/shared"
AT_MOST = 5
"""Increments between two reads."""
AT = datetime.fromtimestamp(FIRST_MINUTE * 60, UTC)
PAUSE = 0.1
"""Seconds between a reader's rounds."""
READ_WITHIN = 60.0
"""Seconds, on a busy machine."""

Ask = Callable[[str], int]
"""The total of a key of the counter, with what is pending."""


class Reader:
    """Sends and reads on a thread, again and again.

    Attributes:
        own: the key that it alone counts.
        begun: increments of :data:`SHARED` that it has begun to send.
        reads: how often it has read.
    """

    def __init__(self, number: int, redis_url: str, ask: Ask, begun_by_all: Callable[[], int]):
        self.own = f"/reader/{number}"
        self.begun = 0
        self.reads = 0
        self.error: BaseException | None = None
        self._random = Random(number)
        self._ask = ask
        self._begun_by_all = begun_by_all
        self._producer = Producer(redis_url, flush_interval=0.01, handle_sigterm=False)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reader {number}")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; raises what it found wrong."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(READ_WITHIN)
            assert not self._thread.is_alive(), f"{self.own} hangs"
        self._producer.close()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            # Not without a pause: the workers and the proxies before them are to get on, too.
            while not self._stopping.wait(PAUSE):
                self._round()
        except BaseException as error:  # raised by stop()
            self.error = error

    def _round(self) -> None:
        for _ in range(self._random.randint(1, AT_MOST)):
            self.begun += 1
            self._producer.increment(COUNTER, self.own, at=AT)
            self._producer.increment(COUNTER, SHARED, at=AT)
        assert self._producer.flush(timeout=READ_WITHIN)
        own = self._ask(self.own)
        assert own == self.begun, f"{self.own}: read {own} after sending {self.begun}"
        shared = self._ask(SHARED)
        most = self._begun_by_all()
        assert self.begun <= shared <= most, f"{self.begun} <= {shared} <= {most}"
        self.reads += 1


def read_beside_killed_workers(stage: Stage, kills: int = 2, rounds: int = 3) -> None:
    """Eight readers, four of them by HTTP; workers are killed in between.

    Args:
        stage: where.
        kills: of workers, at points drawn at random.
        rounds: that every reader has made at least.
    """
    url = stage.redis_server.url
    with ExitStack() as stack:
        web = stack.enter_context(
            serving(url, stage.mysql_url, rate_per_address=1e6, rate_per_key=1e6)
        )
        store = stack.enter_context(Store(stage.mysql_url))
        client = stack.enter_context(connect(url))
        asks = (*_by_reads(Asking(store, client)), *_by_http(web.url))
        readers: list[Reader] = []

        def begun() -> int:
            return sum(reader.begun for reader in readers)

        readers += [Reader(number, url, asks[number], begun) for number in range(READERS)]
        try:
            for reader in readers:
                reader.start()
            _kill(stage, kills)
            _wait_for_rounds(stage, readers, rounds)
        finally:
            errors = [error for reader in readers if (error := _stopped(reader)) is not None]
        if errors:
            raise errors[0]
        _book(stage, readers)
        print(f"{kills} kills, {sum(reader.reads for reader in readers)} reads of {begun()}")
    stage.finish("read with what was pending")


def _kill(stage: Stage, kills: int) -> None:
    for point in stage.random.choices(POINTS, k=kills):
        child, rule = stage.victim_at(point.kind, point.phase, Deed.CUT, "kill")
        stage.wait_for(rule.done, point.name, child)
        child.wait()


def _wait_for_rounds(stage: Stage, readers: list[Reader], rounds: int) -> None:
    """With a worker that nobody kills, so that the queue is short at times."""
    worker = stage.worker(proxied=False)
    eventually(lambda: "ready" in worker.output(), READ_WITHIN, message=worker.output)
    aims = {reader.own: reader.reads + rounds for reader in readers}
    while all(reader.error is None for reader in readers):
        if all(reader.reads >= aims[reader.own] for reader in readers):
            stage.end(worker)
            return
        time.sleep(0.01)


def _stopped(reader: Reader) -> BaseException | None:
    try:
        reader.stop()
    except BaseException as error:
        return error
    return None


def _book(stage: Stage, readers: list[Reader]) -> None:
    for reader in readers:
        rows = [(COUNTER, key, FIRST_MINUTE, 1) for key in (reader.own, SHARED)]
        for _ in range(reader.begun):
            stage.traffic.count(rows)


def _by_reads(reads: Asking) -> list[Ask]:
    def total(key: str) -> int:
        return int(reads.total(COUNTER, key=key, include_pending=True).value)

    def days(key: str) -> int:
        return sum(n for _, n in reads.daily(COUNTER, key=key, include_pending=True).value)

    def keys(key: str) -> int:
        return int(dict(reads.by_key(COUNTER, include_pending=True).value)[key])

    def many(key: str) -> int:
        return int(reads.many(COUNTER, [key], include_pending=True).value[key])

    return [total, days, keys, many]


def _by_http(url: str) -> list[Ask]:
    def rows(path: str, **parameters: str | int) -> list[dict[str, int | str]]:
        answer = requests.get(
            f"{url}/v1/counters/{COUNTER}/{path}",
            params={"include_pending": "true", **parameters},
            timeout=READ_WITHIN,
        )
        assert answer.status_code == 200, answer.text
        found: list[dict[str, int | str]] = answer.json()["rows"]
        return found

    def total(key: str) -> int:
        return int(rows("totals", by="total", key=key)[0]["total"])

    def days(key: str) -> int:
        return sum(int(row["total"]) for row in rows("daily", key=key))

    def top(key: str) -> int:
        return int(next(row["total"] for row in rows("top", n=READERS + 1) if row["key"] == key))

    def search(key: str) -> int:
        return int(rows("top", search=key)[0]["total"])

    return [total, days, top, search]

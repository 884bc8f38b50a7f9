"""Readers that ask for what is still in the queue, too, while the workers that empty it are killed.

Each reader sends increments, flushes, and reads: by Reads or by HTTP. A key that it alone counts
must then have what it sent, not one less and not one more; a key that all count must have at least
what it sent itself, and at most what all have begun to send.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from random import Random

import requests

from countersink.producers import Producer
from countersink.store import Store
from countersink.stream.connection import connect
from tests.faults.scenarios.worker_deaths import POINTS, killed_at
from tests.faults.stage import Stage
from tests.support.asking import Asking
from tests.support.entries import again_and_again
from tests.support.traffic import FIRST_MINUTE
from tests.support.waiting import eventually
from tests.web.serving import serving

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
    """Sends and reads, round after round.

    Attributes:
        own: the key that it alone counts.
        begun: increments of :data:`SHARED` that it has begun to send.
        reads: how often it has read.
    """

    def __init__(self, number: int, producer: Producer, ask: Ask, readers: list[Reader]) -> None:
        self.own = f"/reader/{number}"
        self.begun = 0
        self.reads = 0
        self._random = Random(number)
        self._ask = ask
        self._readers = readers
        self._producer = producer

    def round(self) -> None:
        """Send some, and read."""
        # Not without a pause: the workers and the proxies before them are to get on, too.
        time.sleep(PAUSE)
        for _ in range(self._random.randint(1, AT_MOST)):
            self.begun += 1
            self._producer.increment(COUNTER, self.own, at=AT)
            self._producer.increment(COUNTER, SHARED, at=AT)
        assert self._producer.flush(timeout=READ_WITHIN)
        own = self._ask(self.own)
        assert own == self.begun, f"{self.own}: read {own} after sending {self.begun}"
        shared = self._ask(SHARED)
        most = sum(reader.begun for reader in self._readers)
        assert self.begun <= shared <= most, f"{self.begun} <= {shared} <= {most}"
        self.reads += 1


def read_beside_killed_workers(stage: Stage, kills: int = 2, rounds: int = 3) -> None:
    """Six readers, three of them by HTTP; workers are killed in between.

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
        for number, ask in enumerate(asks):
            producer = Producer(url, flush_interval=0.01, handle_sigterm=False)
            stack.enter_context(producer)
            readers.append(Reader(number, producer, ask, readers))
        with again_and_again(*(reader.round for reader in readers)) as going:
            killed_at(stage, stage.random.choices(POINTS, k=kills), lambda: None)
            # Then a worker that nobody kills, so that the queue is short at times.
            worker = stage.worker(proxied=False)
            eventually(lambda: "ready" in worker.output(), READ_WITHIN, message=worker.output)
            aims = [reader.reads + rounds for reader in readers]
            while going() and any(
                reader.reads < aim for reader, aim in zip(readers, aims, strict=True)
            ):
                time.sleep(0.01)
            stage.end(worker)
        for reader in readers:
            rows = [(COUNTER, key, FIRST_MINUTE, 1) for key in (reader.own, SHARED)]
            for _ in range(reader.begun):
                stage.traffic.count(rows)
        print(f"{kills} kills, {sum(reader.reads for reader in readers)} reads")
    stage.finish("read with what was pending")


def _by_reads(reads: Asking) -> list[Ask]:
    return [
        lambda key: int(reads.total(COUNTER, key=key, include_pending=True).value),
        lambda key: int(dict(reads.by_key(COUNTER, include_pending=True).value)[key]),
        lambda key: int(reads.many(COUNTER, [key], include_pending=True).value[key]),
    ]


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

    return [
        lambda key: int(rows("totals", by="total", key=key)[0]["total"]),
        lambda key: sum(int(row["total"]) for row in rows("daily", key=key)),
        lambda key: int(rows("top", search=key)[0]["total"]),
    ]

"""Readers beside producers and workers: never less than was stored before, never more than was
sent.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from countersink.store import Store
from countersink.stream.connection import connect as connect_redis
from countersink.stream.names import PARTITIONS_KEY
from tests.reads.support import queue
from tests.support.asking import Asking
from tests.support.examples import MANY
from tests.worker.running import Running, drain

ROUNDS = 400 if MANY else 150
PARTITIONS = 3


class Producer:
    """Sends 1 to a counter again and again, on a thread, and knows how many it has begun and
    ended.
    """

    def __init__(self, redis_url: str) -> None:
        self.begun = 0
        self.stored = 0
        self._client = connect_redis(redis_url)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for number in range(ROUNDS):
            self.begun += 1
            queue(self._client, ("views", f"/{number % 7}", number % 4, 1), partition=number % 3)
            self.stored += 1

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._client.close()


@pytest.mark.random
def test_a_reader_sees_all_that_was_stored_and_no_more_than_was_sent(
    redis_url: str, redis_client: redis.Redis, mysql_url: str, store: Store
) -> None:
    redis_client.set(PARTITIONS_KEY, PARTITIONS)
    queue(redis_client, ("views", "/0", 0, 0))
    reads = Asking(store, redis_client)
    # Workers that take entries from each other, so that many come twice.
    options: dict[str, Any] = {
        "claim_idle_ms": 1,
        "claim_every_s": 0.01,
        "batch_wait_ms": 10,
        "batch_entries": 6,
    }
    seen = looks = 0
    with (
        Running(redis_url, mysql_url, **options),
        Running(redis_url, mysql_url, **options),
        Producer(redis_url) as producer,
    ):
        while seen < ROUNDS or looks < 2:  # however fast the producer was
            stored = producer.stored
            total = reads.total("views", include_pending=True).value
            days = sum(n for _, n in reads.daily("views", include_pending=True).value)
            keys = sum(n for _, n in reads.by_key("views", include_pending=True).value)
            begun = producer.begun
            assert stored <= total <= begun
            assert total <= days <= begun
            assert days <= keys <= begun
            assert total >= seen
            seen, looks = total, looks + 1
    assert reads.total("views", include_pending=True).value == ROUNDS
    assert drain(redis_url, mysql_url, claim_idle_ms=1) == 0
    assert reads.total("views").value == ROUNDS


@pytest.mark.random
def test_complete_up_to_holds_for_what_arrived_before_it(
    redis_url: str, redis_client: redis.Redis, mysql_url: str, store: Store
) -> None:
    queue(redis_client, ("views", "/", 0, 0))
    reads = Asking(store, redis_client)
    arrivals: list[int] = []
    with Running(redis_url, mysql_url, batch_wait_ms=10, batch_entries=3):
        while "views" not in reads.counters().value:
            pass
        for _ in range(ROUNDS // 3):
            stream_id = queue(redis_client, ("views", "/", 0, 1))
            arrivals.append(int(stream_id.partition("-")[0]))
            found = reads.total("views")
            assert found.complete_up_to is not None
            complete = found.complete_up_to.timestamp() * 1000
            assert found.value >= sum(arrived < complete for arrived in arrivals)

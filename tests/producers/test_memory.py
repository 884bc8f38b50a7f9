"""What fits into memory, in bytes: bursts of new keys, and what is said of what did not fit."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from countersink.producers import Producer, engine
from countersink.stream.connection import connect
from tests.producers.helpers import Queue, run_script, said, total
from tests.support.factories import RedisFactory
from tests.support.processes import Children
from tests.support.waiting import eventually

AWAY = "redis://127.0.0.1:1/0"
AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

FILL = """
import ctypes, json, sys
from datetime import datetime, timedelta, timezone
from countersink.producers import Producer, engine

engine.DRAINING_SECONDS = 0.1
shape, size = sys.argv[1], int(sys.argv[2])
ways = {
    "keys": lambda producer, n: producer.increment("hits", f"/page/article-{n:07d}"),
    "long keys": lambda producer, n: producer.increment("hits", f"{n:0255d}"),
    "wide keys": lambda producer, n: producer.increment("hits", f"{n:0251d}\\U0001f600"),
    "amounts": lambda producer, n: producer.increment("hits", f"{n}", 10**9 + n),
    "counters": lambda producer, n: producer.increment(f"counter-{n}"),
    "ids": lambda producer, n: producer.increment("hits", id=f"order-{n}"),
    "minutes": lambda producer, n: producer.increment("hits", at=at + timedelta(minutes=n)),
    "batches": lambda producer, n: producer.increment_batch(
        [("hits", f"{n}-{item}", 1, None, None) for item in range(9)]
    ),
    "dimensions": lambda producer, n: producer.increment(
        "hits", {"page": f"/page/{n:07}", "user": f"u{n}", "device": "mobile"}
    ),
}
at = datetime(2000, 1, 1, tzinfo=timezone.utc)
way = ways[shape]

def rss():
    with open("/proc/self/status") as status:
        (line,) = [line for line in status if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024

producer = Producer("redis://127.0.0.1:1/0", max_bytes_in_memory=size)
producer.increment("warm")
producer.stats()
ctypes.CDLL(None).malloc_trim(0)  # what compiling the modules has left would be filled first
before = rss()
full, number = False, 0
while not full:
    for number in range(number, number + 200):
        full = way(producer, number) is False
    full = full or producer.stats().dropped > 0
print(json.dumps({"took": rss() - before, "rows": producer.stats().pending_rows}), flush=True)
"""


@pytest.mark.parametrize(
    "shape",
    [
        *("keys", "long keys", "wide keys", "amounts", "counters", "ids", "minutes", "batches"),
        "dimensions",
    ],
)
def test_what_waits_takes_no_more_memory_than_it_may(shape: str, children: Children) -> None:
    size = 12 << 20
    child = run_script(children, FILL, shape, str(size))
    (figures,) = eventually(lambda: said(child), timeout=60)
    assert figures["rows"] * (2_000 if shape == "dimensions" else 1_400) > size, "it was full"
    if shape == "dimensions":
        assert figures["took"] < size * 1.25 + (8 << 20)  # and what the producer knows
    else:
        assert size // 6 < figures["took"] <= size


@pytest.mark.parametrize("bound", [{"max_rows_in_memory": 1000}, {"max_bytes_in_memory": 300_000}])
def test_increment_many_is_all_or_none(bound: dict[str, int]) -> None:
    with Producer(AWAY, **bound) as producer:  # type: ignore[arg-type]
        first = {f"{number}": 2 for number in range(800)}
        producer.increment_many("hits", first, at=AT)
        stats = producer.stats()
        assert (stats.accepted, stats.dropped) == (800, 0)
        more = {f"{number}": 1 for number in range(600, 1400)}
        producer.increment_many("hits", more, at=AT)
        stats = producer.stats()
        assert (stats.accepted, stats.dropped, stats.pending_rows) == (800, 800, 800)
        producer.increment_many("hits", first, at=AT)  # needs no new row
        stats = producer.stats()
        assert (stats.accepted, stats.dropped, stats.pending_rows) == (1600, 800, 800)
        producer.close(timeout=0.05)


@pytest.mark.parametrize("amount", [1, 2])
def test_a_flush_is_over_when_calls_of_increment_many_that_waited_for_room_are_stored(
    queue: Queue, amount: int
) -> None:
    with Producer(queue.url, max_bytes_in_memory=2 << 20, flush_interval=3600) as producer:
        for call in range(8):  # 1.2 MB each
            producer.increment_many("hits", {f"{call}/{key:010d}": amount for key in range(4_000)})
            if call % 4 == 3:
                assert producer.flush(60)
                assert producer.stats().stored == 4_000 * (call + 1)
    assert total(queue.client) == 32_000 * amount


def test_a_flush_makes_room_for_the_call_of_increment_many_that_waits_for_it(
    redis_url: str,
) -> None:
    options = {"max_bytes_in_memory": 2 << 20, "flush_interval": 3600, "max_rows": 1 << 20}
    with Producer(redis_url, **options) as producer:  # type: ignore[arg-type]
        producer.increment("hits")
        assert producer.flush(60)  # the next one is an hour away
        producer.increment_many("hits", {f"a/{key:010d}": 1 for key in range(4_000)})  # 1.2 MB
        assert producer.stats().accepted == 4_001
        producer.increment_many("hits", {f"b/{key:010d}": 1 for key in range(4_000)})
        assert producer.flush(60)
        assert producer.stats().stored == 8_001


def test_a_call_of_increment_many_that_never_finds_room_is_not_waited_for(queue: Queue) -> None:
    with Producer(queue.url, max_bytes_in_memory=2 << 20) as producer:
        producer.increment("hits")
        assert producer.flush(60)
        producer.increment_many("hits", {f"{key:010d}": 1 for key in range(16_000)})
        assert not producer.flush(60)
        assert producer.stats().dropped == 16_000
    assert total(queue.client) == 1


@pytest.mark.parametrize("spool", [False, True])
def test_a_burst_of_many_times_what_memory_holds_loses_nothing(
    redis_url: str, tmp_path: Path, spool: bool
) -> None:
    producer = Producer(redis_url, max_bytes_in_memory=2 << 20, spool=tmp_path if spool else None)
    with producer:
        producer.increment("hits")
        assert producer.flush(60)
        for number in range(20_000):
            producer.increment(f"hits-{number % 1_600}", f"{number:0200d}")
        assert producer.flush(60), producer.stats()


def test_flush_and_close_tell_that_something_was_dropped_since_the_last_one(
    own_redis_server: RedisFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "DRAINING_SECONDS", 0.1)
    server = own_redis_server()
    producer = Producer(server.url, max_rows_in_memory=10)

    def overflow() -> None:
        for number in range(20):
            producer.increment("hits", f"{number}", at=AT)
        assert producer.stats().dropped

    server.freeze()
    overflow()
    server.thaw()
    assert not producer.flush(60), "stored, but not all of it"
    assert producer.stats().pending_rows == 0
    assert producer.flush(60), "it was told"
    server.freeze()
    overflow()
    server.thaw()
    assert not producer.close(60)
    assert not producer.close()
    assert producer.stats().dropped == 20
    with connect(server.url) as client:
        assert total(client) == 20

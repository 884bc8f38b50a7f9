"""The event time of increments whose caller gives none: now, on Redis's clock, whatever this
machine's says, as soon as Redis has answered.
"""

import json
import shutil
import sys
import textwrap
import time
from pathlib import Path

import pytest
import redis

from countersink.producers import Producer
from countersink.stream.connection import command, connect
from countersink.stream.entry import RedisClock
from tests.producers.helpers import Queue, entries
from tests.support.factories import RedisFactory
from tests.support.processes import Child, Children

SHORT = """
import sys
from countersink.producers import Increment, Producer

with Producer("redis://127.0.0.1:1/0", spool=sys.argv[2]) as producer:
    producer.increment("hits", "spooled")
with Producer(sys.argv[1]) as producer:
    producer.increment("hits", "before Redis answered")
    assert producer.flush(20)
    producer.increment("hits", "one")
    producer.increment("hits", "two", 2)
    producer.increment("hits", "id", id="order-1")
    producer.increment_many("hits", {"many": 1, "more": 2})
    producer.increment_batch([Increment("hits", "batch")], id="batch-1")
    producer.increment_batch([Increment("hits", "plain")])
"""


def shifted(children: Children, script: str, *arguments: str) -> Child:
    """A process whose wall clock is 26 hours and 20 seconds ahead."""
    faketime = shutil.which("faketime")
    if faketime is None:
        pytest.skip("faketime is not installed: apt-get install faketime")
    ahead = [faketime, "--exclude-monotonic", "-m", "-f", "+93620s"]
    python = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return children.start([*ahead, *python])


def redis_minute(client: redis.Redis) -> int:
    """Now, on its clock."""
    return int(command(client, "TIME")[0]) // 60


def minutes(client: redis.Redis) -> dict[str, int]:
    """Key → the minute it was counted in."""
    return {key: minute for entry in entries(client) for _, key, minute, _ in entry.rows}


def test_on_a_host_with_a_wrong_clock_counts_go_into_the_right_minute_once_redis_answered(
    queue: Queue, children: Children, tmp_path: Path
) -> None:
    """What was counted or spooled before has that machine's time."""
    begin = redis_minute(queue.client)
    child = shifted(children, SHORT, queue.url, str(tmp_path))
    assert child.wait(60) == 0, child.output()
    found = minutes(queue.client)
    assert abs(found.pop("before Redis answered") - (time.time() + 93_620) / 60) < 5
    assert set(found) == {"one", "two", "id", "many", "more", "batch", "plain"}
    assert all(begin <= minute <= redis_minute(queue.client) for minute in found.values()), found
    (segment,) = tmp_path.glob("*.spool")
    content = segment.read_bytes()
    (row,) = json.loads(content[content.index(b"[[") :])
    assert abs(row[2] - (time.time() + 93_620) / 60) < 5


def test_what_was_counted_before_redis_answered_keeps_its_minute(
    own_redis_server: RedisFactory,
) -> None:
    """By this machine's clock."""
    server = own_redis_server()
    server.freeze()
    with Producer(server.url, flush_interval=0.05, socket_timeout=1) as producer:
        before = int(time.time()) // 60
        producer.increment("hits", "early")
        producer.stats()
        after = int(time.time()) // 60
        server.thaw()
        assert producer.close(60)
    with connect(server.url) as client:
        found = minutes(client)
    assert before <= found["early"] <= after


def test_a_wall_clock_that_is_set_does_not_matter(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = RedisClock()
    clock.learn(redis_client)
    before = clock.now_ms()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    assert abs(clock.now_ms() - before) < 3_600_000
    assert clock.stale()

"""The event time of increments whose caller gives none: now, on Redis's clock, whatever this
machine's says, also before Redis has ever answered.
"""

import json
import shutil
import sys
import textwrap
import time
from pathlib import Path

import pytest
import redis

from countersink.stream import clock as module
from countersink.stream.clock import RedisClock
from countersink.stream.connection import command, connect
from tests.producers.helpers import entries, said
from tests.support.factories import RedisFactory
from tests.support.processes import Child, Children
from tests.support.waiting import eventually

SHORT = """
import sys
from countersink.producers import Increment, Producer

with Producer("redis://127.0.0.1:1/0", spool=sys.argv[2]) as producer:
    producer.increment("hits", "spooled")
with Producer(sys.argv[1]) as producer:
    producer.increment("hits", "one")
    producer.increment("hits", "two", 2)
    producer.increment("hits", "id", id="order-1")
    producer.increment_many("hits", {"many": 1, "more": 2})
    producer.increment_batch([Increment("hits", "batch")], id="batch-1")
    producer.increment_batch([Increment("hits", "plain")])
"""
EARLY = """
import json, sys
from countersink.producers import Producer

producer = Producer(sys.argv[1], flush_interval=0.05, socket_timeout=1)
for line in sys.stdin:
    if line.strip() == "end":
        break
    producer.increment("hits", line.strip())
    producer.stats()
    print(json.dumps([line.strip()]), flush=True)
print(json.dumps([producer.close(60)]), flush=True)
"""


def shifted(children: Children, script: str, *arguments: str, lines_in: bool = False) -> Child:
    """A process whose wall clock is 26 hours and 20 seconds ahead."""
    faketime = shutil.which("faketime")
    if faketime is None:
        pytest.skip("faketime is not installed: apt-get install faketime")
    ahead = [faketime, "-m", "--exclude-monotonic", "-f", "+93620s"]
    python = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return children.start([*ahead, *python], lines_in=lines_in)


def redis_minute(client: redis.Redis) -> int:
    """Now, on its clock."""
    return int(command(client, "TIME")[0]) // 60


def minutes(client: redis.Redis) -> dict[str, int]:
    """Key → the minute it was counted in."""
    return {key: minute for entry in entries(client) for _, key, minute, _ in entry.rows}


def test_on_a_host_with_a_wrong_clock_a_short_script_counts_into_the_right_minute(
    redis_url: str, redis_client: redis.Redis, children: Children, tmp_path: Path
) -> None:
    """And what is spooled before Redis has ever answered has that machine's time."""
    begin = redis_minute(redis_client)
    child = shifted(children, SHORT, redis_url, str(tmp_path))
    assert child.wait(60) == 0
    found = minutes(redis_client)
    assert set(found) == {"one", "two", "id", "many", "more", "batch", "plain"}
    assert all(begin <= minute <= redis_minute(redis_client) for minute in found.values()), found
    (segment,) = tmp_path.glob("*.spool")
    content = segment.read_bytes()
    (row,) = json.loads(content[content.index(b"[[") :])
    assert abs(row[2] - (time.time() + 93_620) / 60) < 5


def test_what_was_counted_before_redis_answered_keeps_its_minute(
    own_redis_server: RedisFactory, children: Children
) -> None:
    """To the minute: by the time that passed since, and not by either wall clock."""
    server = own_redis_server()
    server.freeze()
    child = shifted(children, EARLY, server.url, lines_in=True)

    child.say("first")
    eventually(lambda: ["first"] in said(child))
    # Not at a minute's border, which a row that waits is told apart from by a part of a second.
    eventually(lambda: 3 < time.time() % 60 < 57)
    before = int(time.time()) // 60
    child.say("early")
    eventually(lambda: ["early"] in said(child))
    after = int(time.time()) // 60
    server.thaw()
    child.say("end")
    assert child.wait(60) == 0
    assert said(child)[-1] == [True]
    with connect(server.url) as client:
        found = minutes(client)
    assert before <= found["early"] <= after


def test_a_relative_minute_becomes_the_one_it_was(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    born = steady = 1000.0
    monkeypatch.setattr(module, "_steady", lambda: steady)
    clock = RedisClock()
    marks = []
    for step in (*[0.003] * 800, *[0.5] * 7200):  # an outage of an hour
        steady += step
        minute = clock.minute()
        assert minute < 0
        marks.append((steady, minute))
    # As many as memory can bear for that: a tenth of the time waited is one.
    assert 10 <= len({minute for _, minute in marks[:800]}) <= 30
    assert len({minute for _, minute in marks}) <= 130
    clock.learn(redis_client)
    known = time.time()
    for at, minute in marks:
        then, exact = known - (steady - at), 0.3 + (at - born) / 10
        first, last = int(then - exact) // 60, int(then + exact) // 60
        assert first <= clock.absolute(minute) <= last
    assert clock.minute() in {int(known - 0.3) // 60, int(known + 0.3) // 60}
    assert clock.absolute(29_000_000) == 29_000_000

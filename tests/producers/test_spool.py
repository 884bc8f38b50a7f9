"""The spool in use: outages, kills, several processes, and no increment counted twice or never."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import redis

from countersink.producers import Producer
from countersink.producers.spool import list_segments, replay
from countersink.stream.connection import connect
from countersink.stream.errors import StreamUnavailable
from tests.producers.helpers import Queue, Worker, distinct, entries, play, run_script, said, total
from tests.support.factories import RedisFactory
from tests.support.processes import Child, Children
from tests.support.proxies import Deed, Phase, RedisProxy, Rule
from tests.support.waiting import eventually

AWAY = "redis://127.0.0.1:1/0"

APP = """
import json, sys, time
from countersink.producers import Producer
url, options, distinct = sys.argv[1], json.loads(sys.argv[2]), len(sys.argv) > 3
producer = Producer(url, **options)
asked = 0
while True:
    for number in range(200):
        producer.increment("hits", f"{asked + number if distinct else number % 50}")
    asked += 200
    if producer.flush(10):
        print(json.dumps({"stored": asked}), flush=True)
"""
REPLAY = """
import json, sys
from countersink.producers.spool import replay
from countersink.stream.connection import connect
done = replay(sys.argv[2], connect(sys.argv[1]))
print(json.dumps({"segments": done.segments, "increments": done.increments}))
"""


def spooled_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*")) if directory.exists() else []


def leave_behind(directory: Path, increments: int) -> None:
    """A spool with so many increments of different keys, of a producer that is gone."""
    dead = Producer(AWAY, spool=directory)
    for number in range(increments):
        dead.increment("hits", str(number))
    assert dead.close(20)


def stored(child: Child) -> int:
    """How many increments the app was told to be stored."""
    lines = [line["stored"] for line in said(child) if "stored" in line]
    return int(lines[-1]) if lines else 0


def test_flush_spools_while_redis_is_away_and_replays_when_it_is_back(
    own_redis_server: RedisFactory, tmp_path: Path
) -> None:
    server = own_redis_server()
    server.stop()
    with Producer(server.url, spool=tmp_path / "spool", flush_interval=0.01) as producer:
        for round_number in range(3):
            for number in range(2000):
                producer.increment("hits", f"{round_number}-{number}")
            assert producer.flush(20)
        stats = producer.stats()
        assert (stats.accepted, stats.spooled, stats.stored) == (6000, 6000, 0)
        assert (stats.pending_rows, stats.dropped) == (0, 0)
        assert spooled_files(tmp_path / "spool")
        server.start()
        producer.increment("hits", "after")
        eventually(lambda: producer.stats().replayed == 6000)
        assert producer.flush(20)
        eventually(lambda: spooled_files(tmp_path / "spool") == [])
        with connect(server.url) as client:
            assert total(client) == 6001
            found = entries(client)
            assert len(distinct(found)) == len(found)
            order = [row[1] for entry in found for row in entry.rows]
            # Each flush by itself: what was on its way to Redis is spooled after what came later.
            assert [row.partition("-")[0] for row in order] == [
                *"0" * 2000,
                *"1" * 2000,
                *"2" * 2000,
                "after",
            ]
            assert set(order) == {*(f"{a}-{b}" for a in range(3) for b in range(2000)), "after"}
        assert producer.stats().stored == 1


def test_entries_in_doubt_keep_id_and_time_through_the_spool(queue: Queue, tmp_path: Path) -> None:
    with RedisProxy.to(queue.url) as proxy:
        proxy.when("XADD", Phase.AFTER, Deed.CUT, times=0)  # stored, but nobody is ever told
        with Producer(proxy.url(queue.url), spool=tmp_path, flush_interval=0.01) as producer:
            for number in range(2500):
                producer.increment("hits", str(number))
            eventually(lambda: proxy.counts["XADD"] > 0)
            assert producer.flush(20)
            assert producer.stats().spooled == 2500
            proxy.forget()
            eventually(lambda: producer.stats().replayed == 2500)
    found = entries(queue.client)
    assert len(found) > len(distinct(found)), "copies, all identical to the byte"
    assert total(queue.client) == 2500


def test_rows_beyond_memory_go_to_the_spool(own_redis_server: RedisFactory, tmp_path: Path) -> None:
    server = own_redis_server()
    server.freeze()
    options: dict[str, Any] = {"max_rows_in_memory": 5000, "flush_interval": 0.01}
    with Producer(server.url, spool=tmp_path, **options) as producer:
        asked = 0
        while producer.stats().spooled < 20_000:
            for _ in range(1000):
                producer.increment("hits", str(asked))
                asked += 1
            eventually(lambda: producer.stats().pending_rows < 4000)
        stats = producer.stats()
        assert (stats.accepted, stats.dropped) == (asked, 0)
        server.thaw()
        assert producer.flush(20)
        eventually(lambda: producer.stats().replayed == producer.stats().spooled)
        with connect(server.url) as client:
            assert total(client) == asked


def test_close_spools_what_redis_does_not_take(tmp_path: Path, redis_url: str) -> None:
    producer = Producer(AWAY, spool=tmp_path)
    producer.increment("hits", "a", 7)
    producer.increment("hits", "b", id="x")
    assert producer.close()
    stats = producer.stats()
    assert (stats.accepted, stats.spooled, stats.dropped) == (2, 2, 0)
    (info,) = list_segments(tmp_path)
    assert not info.held
    with connect(redis_url) as client:
        done = replay(tmp_path, client)
        assert (done.segments, done.entries, done.increments) == (1, 2, 2)
        assert (done.held, done.unreadable, done.damaged_bytes) == (0, 0, 0)
        assert total(client) == 8
        assert replay(tmp_path, client).entries == 0
    assert spooled_files(tmp_path) == []


def test_a_full_spool_drops_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Producer(
        AWAY, spool=tmp_path, spool_max_bytes=100_000, max_rows_in_memory=2000
    ) as producer:
        for number in range(20_000):
            producer.increment("hits", str(number))
            if number % 5000 == 0:
                producer.flush(0.1)
        stats = producer.stats()
        assert stats.accepted + stats.dropped == 20_000
        assert stats.spooled > 0
        assert stats.dropped > 0
        assert stats.pending_rows <= 2000
        assert "the spool is full" in (stats.last_error or "")
        assert sum(path.stat().st_size for path in spooled_files(tmp_path)) <= 100_000
        assert not producer.close(timeout=0.2)
    stats = producer.stats()
    assert stats.accepted == stats.spooled
    assert stats.accepted + stats.dropped == 20_000
    actions = {getattr(record, "action", "") for record in caplog.records}
    assert {"spool_failed", "left_over"} <= actions


def test_a_disk_that_refuses_keeps_rows_in_memory(
    own_redis_server: RedisFactory, tmp_path: Path
) -> None:
    server = own_redis_server()
    server.stop()
    script = """
    import json, resource, signal, sys
    from countersink.producers import Producer
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    producer = Producer(sys.argv[1], spool=sys.argv[2], flush_interval=0.01)
    for number in range(3000):
        producer.increment("hits", str(number))
    print(json.dumps({"flushed": producer.flush(0.3)}), flush=True)
    sys.stdin.readline()
    flushed = producer.flush(30)
    stats = producer.stats()
    print(json.dumps({"flushed": flushed, "stored": stats.stored + stats.spooled,
                      "dropped": stats.dropped}), flush=True)
    """
    with Children() as children:
        child = children.start(
            [sys.executable, "-c", script.replace("\n    ", "\n"), server.url, str(tmp_path)],
            lines_in=True,
        )
        eventually(lambda: said(child), message=child.output)
        assert said(child) == [{"flushed": False}]
        server.start()
        child.say("go on")
        assert child.wait() == 0, child.output()
        assert said(child)[-1] == {"flushed": True, "stored": 3000, "dropped": 0}
    with connect(server.url) as client:
        replay(tmp_path, client)
        assert total(client) == 3000


@pytest.mark.parametrize("frozen", [True, False])
def test_stored_increments_survive_a_sigkill_and_two_replays_at_once(
    own_redis_server: RedisFactory, tmp_path: Path, frozen: bool
) -> None:
    server = own_redis_server()
    options = json.dumps({"spool": str(tmp_path), "flush_interval": 0.01, "socket_timeout": 0.5})
    with Children() as children:
        apps = [run_script(children, APP, server.url, options, "distinct") for _ in range(2)]
        for app in apps:
            eventually(lambda app=app: stored(app) >= 600, message=app.output)  # type: ignore[misc]
        if frozen:
            server.freeze()
        else:
            server.stop()
        before = [stored(app) for app in apps]
        for app, there in zip(apps, before, strict=True):
            eventually(lambda app=app, there=there: stored(app) >= there + 1000)  # type: ignore[misc]
        for app in apps:
            app.kill()
        told = [stored(app) for app in apps]
        if frozen:
            server.thaw()
        else:
            server.start()
        replays = [run_script(children, REPLAY, server.url, str(tmp_path)) for _ in range(2)]
        for each in replays:
            assert each.wait() == 0, each.output()
        with connect(server.url) as client:
            replay(tmp_path, client)  # what one had locked while the other looked
            counted = total(client)
            # Every key was counted by each app at most once: nothing twice, nothing stored missing.
            keys: dict[str, int] = {}
            for entry in distinct(entries(client)):
                for _, key, _, amount in entry.rows:
                    keys[key] = keys.get(key, 0) + amount
    assert spooled_files(tmp_path) == []
    assert max(keys.values()) <= 2
    for there in told:
        assert sum(1 for key in keys if int(key) < there) == there
    assert sum(1 for key, amount in keys.items() if amount == 2) >= min(told)
    assert counted >= sum(told)


def test_a_replay_beside_a_live_writer_loses_nothing(
    own_redis_server: RedisFactory, tmp_path: Path
) -> None:
    server = own_redis_server()
    options = json.dumps({"spool": str(tmp_path), "flush_interval": 0.01})
    with Children() as children:
        app = run_script(children, APP, AWAY, options)  # for this one Redis is always away
        eventually(lambda: stored(app) >= 2_000, message=app.output)
        with connect(server.url) as client:
            for _ in range(10):
                done = replay(tmp_path, client)
                assert done.segments == 0
                assert done.held >= 1
            eventually(lambda: stored(app) >= 4_000, message=app.output)
            app.kill()
            told = stored(app)
            done = replay(tmp_path, client)
            assert done.held == 0
            assert told <= done.increments == total(client)
            assert spooled_files(tmp_path) == []


def test_a_forked_child_leaves_its_parents_segments_alone(
    own_redis_server: RedisFactory, tmp_path: Path
) -> None:
    server = own_redis_server()
    server.stop()
    script = """
    import os, sys
    from countersink.producers import Producer
    producer = Producer(sys.argv[1], spool=sys.argv[2])
    producer.increment("hits", "parent")
    assert producer.flush(20)
    pid = os.fork()
    if pid == 0:
        producer.increment("hits", "child")
        os._exit(0 if producer.close() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    producer.increment("hits", "parent")
    assert producer.close()
    assert producer.stats().spooled == 2
    """
    play(script, server.url, str(tmp_path))
    assert len(spooled_files(tmp_path)) == 2
    server.start()
    with connect(server.url) as client:
        assert replay(tmp_path, client).increments == 3
        assert total(client) == 3


def test_a_replay_that_loses_redis_raises_and_can_be_repeated(queue: Queue, tmp_path: Path) -> None:
    leave_behind(tmp_path, 24_000)
    with RedisProxy.to(queue.url) as proxy:
        proxy.when("XADD", Phase.AFTER, Deed.CUT, skip=18)
        with connect(proxy.url(queue.url)) as client, pytest.raises(StreamUnavailable):
            replay(tmp_path, client)
        assert replay(tmp_path, queue.client).entries < 24
    assert total(queue.client) == 24_000
    assert spooled_files(tmp_path) == []


@pytest.fixture
def refusing(redis_url: str) -> Iterator[tuple[str, Rule]]:
    """The URL of a Redis that has no room for the second entry it is sent, and the rule."""
    with RedisProxy.to(redis_url) as proxy:
        full = "OOM command not allowed when used memory > 'maxmemory'."
        yield (
            proxy.url(redis_url),
            proxy.when("XADD", Phase.BEFORE, Deed.ERROR, skip=1, error=full),
        )


def test_an_entry_that_redis_refuses_is_left_to_the_next_replay(
    refusing: tuple[str, Rule], redis_client: redis.Redis, tmp_path: Path
) -> None:
    url, rule = refusing
    leave_behind(tmp_path, 5000)
    with connect(url) as client, pytest.raises(StreamUnavailable, match="used memory"):
        replay(tmp_path, client)
    assert (rule.acted, total(redis_client) < 5000) == (1, True)
    replay(tmp_path, redis_client)
    assert total(redis_client) == 5000
    assert spooled_files(tmp_path) == []


def test_an_entry_that_redis_refuses_stays_in_the_spool_of_a_live_producer(
    refusing: tuple[str, Rule], redis_client: redis.Redis, tmp_path: Path
) -> None:
    url, rule = refusing
    leave_behind(tmp_path, 5000)
    with Producer(url, spool=tmp_path, flush_interval=0.01) as producer:
        producer.flush(20)  # starts it, with nothing of its own to count
        eventually(lambda: spooled_files(tmp_path) == [])
    assert (rule.acted, total(redis_client)) == (1, 5000)


def test_a_directory_that_cannot_be_made_is_logged_at_the_start(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with Producer(redis_url, spool=tmp_path / "file" / "spool") as producer:
        [record] = caplog.records
        assert str(producer.stats().last_error).endswith("Not a directory")
        assert not producer.spools
    assert record.levelname == "ERROR"
    assert record.getMessage().endswith("Not a directory: nothing can be spooled")


def test_a_spool_works_again_when_what_it_could_not_take_is_in_redis_or_it_is_mended(
    own_redis_server: RedisFactory, tmp_path: Path
) -> None:
    server = own_redis_server()
    (tmp_path / "spool").touch()
    with Producer(server.url, spool=tmp_path / "spool", spool_max_bytes=5_000) as producer:
        works = [producer.spools]
        (tmp_path / "spool").unlink()
        works += [producer.spools]
        server.kill()
        for number in range(1000):
            producer.increment("hits", f"key {number}")
        assert not producer.flush(2)
        assert [*works, producer.spools] == [False, True, False]
        server.restart()
        assert eventually(lambda: producer.flush(5), 60)
        eventually(lambda: producer.spools)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_is_tried_as_the_user_who_writes_and_again_with_each_write() -> None:
    script = """
        import json, os, sys
        from countersink.producers import Producer
        url, spool = "redis://127.0.0.1:1/0", sys.argv[1]
        Producer(url, spool=spool).close()  # imports what the other user may not read
        os.seteuid(65534)
        producer = Producer(url, spool=spool)
        usable = [producer.spools]
        os.seteuid(0)
        producer.increment("hits")
        print(json.dumps([*usable, producer.flush(20), producer.spools]))
    """
    with TemporaryDirectory() as directory:  # of root, where everybody finds it
        assert play(script, directory) == [[False, True, True]]


def test_flush_applied_waits_for_the_spool_too(
    own_redis_server: RedisFactory, tmp_path: Path
) -> None:
    server = own_redis_server()
    server.stop()
    with Producer(server.url, spool=tmp_path, flush_interval=0.01) as producer:
        producer.increment("hits")
        assert producer.flush(20)
        assert not producer.flush(0.2, applied=True)
        server.start()
        eventually(lambda: producer.stats().replayed == 1)
        assert not producer.flush(0.2, applied=True), "it is in Redis, not in MySQL"
        with connect(server.url) as client:
            Worker(client).work()
        assert producer.flush(20, applied=True)

"""`countersink info`: backlog, lag, rate, dead rows and workers."""

import re
import signal

import redis

from countersink.metrics.health import probe_servers, probes
from countersink.worker.report import WorkerFigures, heartbeat
from tests.cli.command import Servers, Start, call
from tests.cli.test_doctor import lines
from tests.support.waiting import eventually


def test_an_empty_queue_and_a_backlog_with_its_age(servers: Servers) -> None:
    document = servers.json("info")
    assert document["backlog"] == document["pending"] == document["lag_ms"] == 0
    assert document["oldest"] is None
    assert document["dead"] == 0
    assert document["workers"] == []
    shown = servers.call("info")
    assert shown.status == 0
    assert "nothing waits" in shown.out
    assert "No worker runs" in shown.out
    for _ in range(3):
        servers.call("increment", "c")
    document = servers.json("info")
    assert document["backlog"] == 3
    assert document["oldest"] <= document["at"]
    assert document["streams"][0]["stream"] == "{countersink:0}:events"
    assert "3 entries" in servers.call("info").out


def test_each_worker_is_shown_and_ends_by_a_signal_with_nothing_left_behind(
    servers: Servers, start: Start
) -> None:
    workers = [start("worker") for _ in range(2)]
    servers.call("increment", "c")

    def applied() -> bool:
        found = servers.json("info")
        return (
            len(found["workers"]) == 2
            and found["backlog"] == 0
            and sum(worker["entries"] or 0 for worker in found["workers"]) == 1
        )

    eventually(applied)
    document = servers.json("info")
    assert {worker["pid"] for worker in document["workers"]} == {w.pid for w in workers}
    assert all(1 <= worker["slot"] <= 255 for worker in document["workers"])
    assert all(worker["started"].endswith("Z") for worker in document["workers"])
    shown = servers.call("info").out
    for worker in document["workers"]:
        assert worker["worker"] in shown
    for process, number in zip(workers, (signal.SIGTERM, signal.SIGINT), strict=True):
        process.send(number)
    for process in workers:
        assert process.wait() == 0
    left = servers.json("info")
    assert (left["workers"], left["pending"]) == ([], 0)


def test_the_error_of_a_worker_has_its_time(servers: Servers, redis_client: redis.Redis) -> None:
    figures = WorkerFigures()
    figures.failed("MySQL is away")
    heartbeat(redis_client, "one", figures).publish(now=True)
    assert re.search(r"MySQL is away \(\d+ m?s ago\)", servers.call("info").out)


def test_without_mysql_the_rest_is_shown(servers: Servers) -> None:
    alone = call("info", "--format", "json", COUNTERSINK_REDIS_URL=servers.redis_url)
    assert alone.status == 0
    assert alone.json["dead"] is None
    assert alone.json["dead_unknown"] == "no MySQL URL is configured"
    away = servers.call("info", COUNTERSINK_MYSQL_URL="mysql://root:secret@127.0.0.1:1/x")
    assert away.status == 0
    assert "unknown: " in away.out
    assert "secret" not in away.out


def test_a_worker_that_was_killed_is_silent(servers: Servers, start: Start) -> None:
    worker = start("worker")
    eventually(lambda: servers.json("info")["workers"])
    worker.kill()
    with redis.Redis.from_url(servers.redis_url) as client:
        [key] = client.keys("countersink:worker:*")
        client.expire(key, 40)  # as 20 s later
    document = servers.json("info")
    assert [one["state"] for one in document["workers"]] == ["silent"]
    assert document["rows_per_second"] == 0
    said = re.search(r"no report for (\d+) s\n", servers.call("info").out)
    assert said
    assert int(said[1]) >= 20  # the machine may be slow


def test_without_redis_what_mysql_has_is_shown(servers: Servers) -> None:
    away = servers.call("info", COUNTERSINK_REDIS_URL="redis://127.0.0.1:1/0")
    assert away.status == 1
    assert away.out.startswith("dead rows  none\n")
    assert "scheduler " in away.out
    assert "127.0.0.1:1" in away.err


def test_a_full_redis_is_named(servers: Servers) -> None:
    with redis.Redis.from_url(servers.redis_url) as client:
        client.config_set("maxmemory", 1)
        try:
            shown = servers.call("info").out
            found = [
                probe_servers(probes(redis=servers.redis_url, stores=stores))
                for stores in (True, False)
            ]
        finally:
            client.config_set("maxmemory", 0)
    assert "full, it refuses increments" in shown
    assert "Workers unknown: Redis is full" in shown
    assert found == [{"redis": "is full"}, {"redis": ""}]


def test_a_verification_that_failed_is_named(servers: Servers) -> None:
    servers.execute(
        "INSERT INTO job (name, cron, time_zone) VALUES ('verify', '0 3 * * *', 'UTC')",
        "INSERT INTO job_run (job, planned_at, state, due_at, ended_at, detail) VALUES"
        " ('verify', '2026-01-01', 'failed', '2026-01-01', '2026-01-01 00:01', 'hits: differs')",
    )
    assert "verify failed at 2026-01-01T00:01:00.000Z: hits: differs" in servers.call("info").out
    found = lines(servers.call("doctor", "--format", "json"))["verify"]
    assert found["status"] == "fail"
    assert "hits: differs" in found["found"]

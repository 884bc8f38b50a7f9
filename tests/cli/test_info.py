"""`countersink info`: backlog, lag, rate, dead rows and workers."""

import signal

from tests.cli.command import Servers, Start, call
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


def test_without_mysql_the_rest_is_shown(servers: Servers) -> None:
    alone = call("info", "--format", "json", COUNTERSINK_REDIS_URL=servers.redis_url)
    assert alone.status == 0
    assert alone.json["dead"] is None
    assert alone.json["dead_unknown"] == "no MySQL URL is configured"
    away = servers.call("info", COUNTERSINK_MYSQL_URL="mysql://root:secret@127.0.0.1:1/x")
    assert away.status == 0
    assert "unknown: " in away.out
    assert "secret" not in away.out

"""The product as its users run it: producers, workers and commands, each a process."""

import json

from tests.cli.command import Servers
from tests.support.forked import ForkedChildren
from tests.support.oracle import Oracle
from tests.support.processes import countersink
from tests.support.run_app import AT, CHUNK
from tests.support.traffic import FIRST_MINUTE, Cell, day_of

CHUNKS = 30


def test_what_producers_send_and_hands_count_is_what_totals_shows(
    redis_url: str, empty_mysql_url: str
) -> None:
    servers = Servers(redis_url, empty_mysql_url)
    environment = servers.variables()
    migrated = servers.call("migrate")
    assert migrated.status == 0, migrated.err
    with ForkedChildren() as children:
        producers = [
            children.app(redis_url, counter="shared", chunks=CHUNKS, per_second=1_000_000)
            for _ in range(2)
        ]
        for producer in producers:
            assert producer.wait() == 0, producer.output()
        for arguments in (["yes"], ["yes", "--amount", "4"], ["no"]):
            added = servers.call("increment", "votes", *arguments, "--at", AT.isoformat())
            assert added.status == 0, added.err
        votes = ("totals", "votes", "--by", "key", "--format", "json")
        rows = [{"key": "yes", "total": 5}, {"key": "no", "total": 1}]
        assert servers.call(*votes, "--include-pending").json["rows"] == rows
        worker = children.countersink("worker", "--drain", environment=environment)
        assert worker.wait() == 0, worker.output()
    assert servers.call(*votes).json["rows"] == rows
    day = day_of(FIRST_MINUTE)
    shown = countersink(
        "totals", "shared", "--by", "day", "--format", "json", environment=environment
    )
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    assert document["counter"] == "shared"
    assert document["rows"] == [{"day": day.isoformat(), "total": 2 * CHUNKS * CHUNK}]
    expected: dict[Cell, int] = {
        ("shared", day, f"chunk-{number}".encode()): 2 * CHUNK for number in range(CHUNKS)
    }
    expected |= {("votes", day, b"yes"): 5, ("votes", day, b"no"): 1}
    with Oracle(empty_mysql_url) as oracle:
        oracle.check(expected)

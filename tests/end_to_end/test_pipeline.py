"""The product as its users run it: producers, workers and commands, each a process."""

import json

import pytest

from tests.support.oracle import Oracle
from tests.support.processes import Children, countersink
from tests.support.run_app import CHUNK
from tests.support.traffic import FIRST_MINUTE, Cell, day_of

CHUNKS = 100


@pytest.fixture
def environment(redis_url: str, empty_mysql_url: str) -> dict[str, str]:
    """The settings of a deployment whose database is not made yet."""
    return {"COUNTERSINK_REDIS_URL": redis_url, "COUNTERSINK_MYSQL_URL": empty_mysql_url}


def test_what_two_producers_send_is_what_totals_shows(environment: dict[str, str]) -> None:
    migrated = countersink("migrate", environment=environment)
    assert migrated.returncode == 0, migrated.stderr
    with Children() as children:
        producers = [
            children.app(
                environment["COUNTERSINK_REDIS_URL"],
                counter="shared",
                chunks=CHUNKS,
                per_second=1_000_000,
            )
            for _ in range(2)
        ]
        for producer in producers:
            assert producer.wait() == 0, producer.output()
        workers = [
            children.countersink("worker", "--drain", environment=environment) for _ in range(2)
        ]
        for worker in workers:
            assert worker.wait() == 0, worker.output()
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
    with Oracle(environment["COUNTERSINK_MYSQL_URL"]) as oracle:
        oracle.check(expected)


def test_increment_by_hand_is_counted_by_a_draining_worker(environment: dict[str, str]) -> None:
    assert countersink("migrate", environment=environment).returncode == 0
    for arguments in (["votes", "yes"], ["votes", "yes", "--amount", "4"], ["votes", "no"]):
        added = countersink("increment", *arguments, environment=environment)
        assert added.returncode == 0, added.stderr
    pending = countersink(
        "totals",
        "votes",
        "--by",
        "key",
        "--include-pending",
        "--format",
        "json",
        environment=environment,
    )
    rows = [{"key": "yes", "total": 5}, {"key": "no", "total": 1}]
    assert json.loads(pending.stdout)["rows"] == rows, pending.stderr
    drained = countersink("worker", "--drain", environment=environment)
    assert drained.returncode == 0, drained.stderr
    shown = countersink(
        "totals", "votes", "--by", "key", "--format", "json", environment=environment
    )
    assert json.loads(shown.stdout)["rows"] == rows

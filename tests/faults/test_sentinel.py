"""The master of Redis dies, or freezes, and the sentinels promote its replica: what was stored, and
what is counted meanwhile, counts once."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from countersink.counting.apply import queue_losses
from countersink.database.sessions import open_tables
from countersink.producers import Producer
from countersink.store.verify import open_session, verify
from countersink.stream.connection import command, connect
from countersink.stream.progress import samples
from tests.faults.stage import FAST_WORKER
from tests.support.examples import MANY
from tests.support.oracle import Oracle
from tests.support.processes import Children
from tests.support.sentinels import Watched
from tests.support.waiting import eventually

COUNTER = "failover"
BEFORE = 2_000
LEAST_DURING = 20_000 if MANY else 5_000
"""Increments while there is no master; more if the failover takes longer."""


@pytest.fixture
def servers(servers_directory: Path) -> Iterator[Watched]:
    """A master that takes writes only while it has a replica, that replica, three sentinels."""
    with Watched(servers_directory) as made:
        with made.client(made.master) as master:
            # Not of the replica: promoted, it has none itself, and is to take writes.
            master.config_set("min-replicas-to-write", 1)
            master.config_set("min-replicas-max-lag", 10)
        yield made


def _counted(mysql_url: str) -> int:
    with Oracle(mysql_url) as oracle:
        return sum(
            total for (counter, _, _), total in oracle.totals().items() if counter == COUNTER
        )


def _increment(producers: Sequence[Producer], times: int = BEFORE) -> None:
    """Increment so often by each, and wait until it is stored."""
    for number in range(times):
        for producer in producers:
            producer.increment(COUNTER, f"key-{number % 10}")
    for producer in producers:
        assert producer.flush(timeout=60), producer.stats()


def _increment_until(producers: Sequence[Producer], enough: Callable[[], bool]) -> int:
    """Increment by each, at least LEAST_DURING times, until it is enough; how often by each."""
    done = 0
    while done < LEAST_DURING or not enough():
        for producer in producers:
            producer.increment(COUNTER, f"key-{done % 10}")
        done += 1
        if done > LEAST_DURING:
            threading.Event().wait(0.001)  # not a million of them
    for producer in producers:
        assert producer.flush(timeout=60), producer.stats()
    return done


@pytest.mark.random
@pytest.mark.parametrize("deed", ["kill", "freeze"])
def test_the_master_goes_and_comes_back(
    servers: Watched, mysql_url: str, children: Children, tmp_path: Path, deed: str
) -> None:
    """One producer keeps what it cannot send in memory, another one in a spool."""
    old, new = servers.master, servers.replica
    workers = [children.worker(servers.url, mysql_url, **FAST_WORKER) for _ in range(2)]
    # The silent master is left long before its time-out, as soon as there is another one.
    with (
        Producer(servers.url, socket_timeout=300.0) as one,
        Producer(servers.url, spool=tmp_path / "spool") as other,
    ):
        _increment((one, other))
        # Replication is asynchronous: what had not reached the replica would be lost.
        servers.wait_replicated()
        getattr(old, deed)()
        counted = BEFORE + _increment_until((one, other), lambda: servers.is_master(new))
        eventually(lambda: _counted(mysql_url) == 2 * counted, 60, message=workers[0].output)
        old.thaw()
        old.start()
        eventually(lambda: servers.is_replica(old))
        _increment((one, other))
        assert [each.stats().dropped for each in (one, other)] == [0, 0]
    counted += BEFORE
    eventually(lambda: _counted(mysql_url) == 2 * counted, 60, message=workers[0].output)
    _ends_clean(servers, mysql_url, children)


def test_a_replica_that_was_behind_is_promoted(
    servers: Watched, mysql_url: str, children: Children
) -> None:
    """What it did not have is lost: the worker that starts then notices."""
    old, new = servers.master, servers.replica
    with Producer(servers.url) as producer, servers.client(old) as master:
        _increment((producer,), 10)
        servers.wait_replicated()
        master.config_set("min-replicas-to-write", 0)
        with servers.client(new) as replica:
            replica.config_set("masterauth", "wrong")
        command(master, "CLIENT", "KILL", "TYPE", "replica")
        for _ in range(3):
            _increment((producer,), 10)
        with open_tables(mysql_url) as session, connect(servers.url) as client:
            queue_losses.watch(session, partial(samples, client))  # as the job `alarms` does
    old.kill()
    eventually(lambda: servers.is_master(new), 60)
    worker = children.worker(servers.url, mysql_url, **FAST_WORKER)
    with Oracle(mysql_url) as oracle:
        found = eventually(
            lambda: oracle.rows("SELECT losses FROM queue_look WHERE losses <> '[]'"),
            60,
            message=worker.output,
        )
    ((_, entries, *_),) = json.loads(found[0][0])
    assert entries == 1  # the newest one: the oldest one that waited is still there
    # The worker logs a loss after its row is committed, and counts beside it.
    eventually(lambda: "entries that waited in {countersink:0}:events" in worker.output(), 60)
    eventually(lambda: _counted(mysql_url) == 10, 60)


def _ends_clean(servers: Watched, mysql_url: str, children: Children) -> None:
    """Workers end in good order, nothing is left in the queue, and the tables agree."""
    for worker in children.running():
        worker.terminate()
        assert worker.wait() == 0, worker.output()
        assert "Traceback" not in worker.output()
    drain = children.worker(servers.url, mysql_url, drain=True)
    assert drain.wait() == 0, drain.output()
    with connect(servers.url) as client:
        assert not any(client.xlen(stream) for stream in client.scan_iter("*:events"))
    with open_session(mysql_url) as session:
        assert verify(session).differences == []
        assert queue_losses.recent(session) == []

"""A replica is promoted under workers and a producer whose URL names both servers.

Replication is semi-synchronous (AFTER_SYNC): the replica has received whatever was committed, so
that not one increment may be missing or count twice.
"""

import json
import time
from pathlib import Path

import pytest
import redis

from countersink.store.connection import connect
from countersink.store.migrate import migrate
from countersink.store.verify import open_session, verify
from tests.support import group_replication
from tests.support.factories import MySQLFactory
from tests.support.failover_load import Load, report
from tests.support.processes import Child, Children
from tests.support.replication import ReplicatedPair, ask, port_of, run
from tests.support.run_app import CHUNK
from tests.support.servers import Kind
from tests.support.traffic import backlog
from tests.support.waiting import eventually

CHUNKS = 60
SUM = "SELECT CAST(COALESCE(SUM(amount), 0) AS SIGNED) FROM counts.counter_slot"
FAST = {
    "batch_entries": 5,
    "batch_wait_ms": 20,
    "claim_idle_ms": 400,
    "claim_every_s": 0.1,
    "stop_within_s": 40.0,  # longer than a frozen server is waited for
}


@pytest.fixture
def pair(own_mysql_server: MySQLFactory, server_kind: Kind) -> ReplicatedPair:
    """The primary takes writes, and has the tables."""
    made = ReplicatedPair(own_mysql_server, server_kind)
    migrate(made.url)
    return made


class Run:
    """Two workers, and a producer that has counted when this is made."""

    def __init__(self, children: Children, pair: ReplicatedPair, client: redis.Redis, url: str):
        self.pair, self.client = pair, client
        self.workers = [children.worker(url, pair.url, **FAST) for _ in range(2)]
        self.app: Child = children.app(
            url,
            chunks=CHUNKS,
            per_second=30_000,
            wait_for_word=True,
            producer={"flush_interval": 0.02},
        )
        eventually(lambda: ask(pair.primary, SUM)[0][0] >= 5 * CHUNK)

    def finish(self) -> None:
        """All was counted on the promoted server, once."""
        self.app.say("")
        assert self.app.wait() == 0, self.app.output()
        assert json.loads(self.app.output().splitlines()[-1])["flushed"]
        eventually(lambda: backlog(self.client) == 0, 60.0, message=self._said)
        for worker in self.workers:
            worker.terminate()
            assert worker.wait() == 0, worker.output()
        assert ask(self.pair.replica, SUM)[0][0] == CHUNKS * CHUNK
        with connect(self.pair.url) as session:
            assert port_of(session) == self.pair.replica.port
        with open_session(self.pair.url) as session:
            assert verify(session).differences == []

    def _said(self) -> str:
        return "\n".join(worker.output()[-2000:] for worker in self.workers)


@pytest.fixture
def running(
    children: Children, pair: ReplicatedPair, redis_client: redis.Redis, redis_url: str
) -> Run:
    """The workers apply what the producer sends, and have not done with it."""
    return Run(children, pair, redis_client, redis_url)


@pytest.mark.servers("mariadb", "mysql")
def test_the_primary_is_killed_and_comes_back_as_a_replica(
    running: Run, pair: ReplicatedPair
) -> None:
    pair.primary.kill()
    pair.promote()
    pair.primary.extra += ("--read-only=1",)
    pair.primary.start()
    running.finish()


def test_the_primary_is_made_read_only(running: Run, pair: ReplicatedPair) -> None:
    pair.read_only(pair.primary, True)
    told = f"{pair.primary.port}: read only; 127.0.0.1:{pair.replica.port}: read only"
    eventually(lambda: any(told in worker.output() for worker in running.workers))
    pair.promote()
    running.finish()
    assert ask(pair.primary, SUM)[0][0] < CHUNKS * CHUNK


@pytest.mark.clusters
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["kill", "freeze"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_all_that_counts_goes_on(
    children: Children,
    own_mysql_server: MySQLFactory,
    redis_client: redis.Redis,
    redis_url: str,
    tmp_path: Path,
    kind: Kind,
    fault: str,
) -> None:
    if kind == "mysql" and not group_replication.installed():
        pytest.skip("MySQL 9 is not there")
    pair = ReplicatedPair(own_mysql_server, kind)
    migrate(pair.url)
    for server in (pair.primary, pair.replica):
        run(server, "SET GLOBAL log_bin_trust_function_creators = 1")
    with Load(children, redis_client, redis_url, pair.url, tmp_path) as load:
        began = time.monotonic()
        getattr(pair.primary, fault)()
        pair.promote()
        promoted = time.monotonic()
        load.wait_for_more()
        print(report(f"{kind}: primary {fault}", promoted - began, load.finish()))


@pytest.mark.long("a server frozen for longer than a time-out")
def test_the_primary_is_frozen(running: Run, pair: ReplicatedPair) -> None:
    pair.primary.freeze()
    pair.promote()
    running.finish()

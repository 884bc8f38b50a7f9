"""docs/scale.md: its calculated part is that of the benchmarks, and its moves are played with
traffic going on, by the statements that stand there: not one increment is missing or counts twice.
"""

import re
import threading
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
import redis

from benchmarks import growth, scale
from countersink.database.connection import connect
from countersink.database.migrate import migrate
from countersink.producers import Producer
from countersink.store.verify import open_session, verify
from tests.docs.console import blocks
from tests.support import group_replication
from tests.support.factories import MySQLFactory, RedisFactory
from tests.support.group_replication import ReplicationGroup
from tests.support.processes import Child, Children, countersink
from tests.support.redis_cluster import RedisCluster
from tests.support.replication import ask, port_of, run
from tests.support.servers import MySQLServer, RedisServer
from tests.support.traffic import backlog
from tests.support.waiting import eventually

PAGE = "docs/scale.md"
FAST: dict[str, Any] = {
    "batch_entries": 5,
    "batch_wait_ms": 20,
    "claim_idle_ms": 400,
    "claim_every_s": 0.1,
    "stop_within_s": 40.0,
}
OLD_OPTIONS = (
    "--log-bin=log",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--log-bin-trust-function-creators=1",
    "--server-id=101",
)
SUM = "SELECT CAST(COALESCE(SUM(amount), 0) AS SIGNED) FROM countersink.counter_slot"
HAS_TABLES = (
    "SELECT 1 FROM information_schema.tables"
    " WHERE table_schema = 'countersink' AND table_name = 'counter_slot'"
)
BURST = 20


def test_the_sizes_are_those_that_the_benchmarks_give() -> None:
    assert scale.page(scale.PAGE.read_text("utf-8")) == scale.PAGE.read_text("utf-8")


def test_the_growth_is_that_which_was_measured() -> None:
    assert growth.page(scale.PAGE.read_text("utf-8")) == scale.PAGE.read_text("utf-8")


class Traffic:
    """An application that counts, from a thread, until it is told to end."""

    def __init__(self, redis_url: str) -> None:
        self.counted = 0
        self._url = redis_url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._stored = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def end(self) -> int:
        """How many increments it has made, all of which are stored."""
        self.__exit__()
        assert self._stored
        return self.counted

    def wait_for_more(self) -> None:
        """Until it has counted some more."""
        before = self.counted
        eventually(lambda: self.counted > before + 10 * BURST)

    def _run(self) -> None:
        with Producer(self._url, flush_interval=0.02) as producer:
            while not self._stopping.wait(0.01):
                for number in range(BURST):
                    producer.increment("moved", f"key {number}")
                self.counted += BURST
            self._stored = producer.flush(timeout=60.0)


def statements(server: str) -> list[list[str]]:
    """The page's blocks of SQL for a server, each a list of statements."""
    found = []
    for block in blocks(PAGE, "sql"):
        head, _, rest = block.partition("\n")
        if head == f"-- on {server}":
            found.append([each.strip() for each in rest.split(";") if each.strip()])
    return found


@pytest.fixture
def old(own_mysql_server: MySQLFactory) -> MySQLServer:
    """The one MySQL in use, whose binary log has everything, and the users of the page."""
    server = own_mysql_server(kind="mysql", extra=OLD_OPTIONS)
    run(
        server,
        "RESET BINARY LOGS AND GTIDS",
        "CREATE DATABASE countersink",
        *(
            statement
            for user in ("countersink", "countersink_worker")
            for statement in (
                f"CREATE USER {user} IDENTIFIED BY 'geheim'",
                f"GRANT ALL ON countersink.* TO {user}",
            )
        ),
    )
    migrate(f"mysql://countersink:geheim@127.0.0.1:{server.port}/countersink")
    return server


def _url(*servers: MySQLServer) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"mysql://countersink:geheim@{hosts}/countersink"


def _end(*workers: Child) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        assert worker.wait() == 0, worker.output()


def _counting(server: MySQLServer, workers: list[Child]) -> None:
    """Until the sum has grown there."""
    before = ask(server, SUM)[0][0]

    def said() -> str:
        return "\n".join(worker.output()[-2000:] for worker in workers)

    eventually(lambda: ask(server, SUM)[0][0] > before, 60.0, message=said)


@pytest.mark.clusters
@pytest.mark.timeout(300)
@pytest.mark.skipif(not group_replication.installed(), reason="MySQL 9 is not there")
def test_from_one_redis_and_one_mysql_to_a_cluster_and_a_group(
    old: MySQLServer, own_redis_server: RedisFactory, servers_directory: Path
) -> None:
    old_redis = own_redis_server(appendfsync="always")
    needed = ("--log-bin-trust-function-creators=1",)
    with (
        ReplicationGroup(servers_directory, extra=needed) as group,
        RedisCluster(servers_directory, replicas=0) as cluster,
        Children() as children,
    ):
        first = [children.worker(old_redis.url, _url(old), **FAST) for _ in range(2)]
        with Traffic(old_redis.url) as old_app:
            _counting(old, first)
            # one Redis to a cluster, steps 3 to 5: workers, producers, the rest of the old queue
            second = [children.worker(cluster.url, _url(old), **FAST) for _ in range(2)]
            with Traffic(cluster.url) as app:
                app.wait_for_more()
                before = old_app.end()
                _drain(old_redis, _url(old))
                _end(*first)
                with redis.Redis.from_url(old_redis.url) as client:
                    assert backlog(client) == 0
                _counting(old, second)
                workers = _move_database(children, cluster, old, group, second, app)
                after = app.end()
        members = group.members
        eventually(lambda: ask(members[0], SUM)[0][0] == before + after, 60.0)
        _end(*workers)
        with connect(_url(old, *members)) as session:
            assert port_of(session) == members[0].port
        with open_session(_url(old, *members)) as session:
            assert verify(session).differences == []
        assert ask(old, SUM)[0][0] < before + after
        for member in members[1:]:
            eventually(partial(_has, member, before + after))


def _drain(server: RedisServer, mysql_url: str) -> None:
    [block] = [block for block in blocks(PAGE, "console") if "--drain" in block]
    assert block.strip() == '$ countersink worker --drain --redis-url "$OLD_REDIS_URL"'
    done = countersink(
        *("worker", "--drain", "--redis-url", server.url),
        environment={"COUNTERSINK_MYSQL_URL": mysql_url},
    )
    assert done.returncode == 0, done.stderr


def _move_database(
    children: Children,
    cluster: RedisCluster,
    old: MySQLServer,
    group: ReplicationGroup,
    workers: list[Child],
    app: Traffic,
) -> list[Child]:
    """The steps of the page; the workers that go on."""
    n1 = group.members[0]
    [users], [follow, switch] = statements("old")[:1], statements("n1")
    run(old, *users)
    values = {"'old'": "'127.0.0.1'", "SOURCE_PORT = 3306": f"SOURCE_PORT = {old.port}"}
    pattern = re.compile("|".join(map(re.escape, values)))
    run(n1, *(pattern.sub(lambda found: values[found[0]], each) for each in follow))
    url = _url(old, *group.members)
    eventually(lambda: ask(n1, HAS_TABLES), 60.0)
    new = [children.worker(cluster.url, url, **FAST) for _ in range(2)]
    _end(*workers)
    _counting(old, new)
    for worker in new:
        eventually(partial(_reads, worker), 60.0)
    stop, asked = statements("old")[1]
    run(old, stop)
    gtids = str(ask(old, asked)[0][0]).replace("\n", "")
    app.wait_for_more()  # it goes on counting
    waited, *rest = switch
    assert ask(n1, waited.replace("what old has said", gtids)) == [(0,)]
    run(n1, *rest)
    _counting(n1, new)
    return new


def _reads(worker: Child) -> bool:
    return "reading" in worker.output()


def _has(server: MySQLServer, total: int) -> bool:
    return bool(ask(server, SUM)[0][0] == total)

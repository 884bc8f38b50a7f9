"""Reading on a replica: what it answers is what the server that takes writes would have answered,
and where it is not, that one is asked."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis

from countersink.database import replicas
from countersink.database.connection import connect
from countersink.database.errors import SchemaMismatch, Unavailable
from countersink.database.migrate import migrate
from countersink.database.session import Session
from countersink.database.sessions import require_schema
from countersink.store import Store
from tests.cli.command import call, one_sentence
from tests.reads.support import apply_all, queue
from tests.support import galera, group_replication
from tests.support.asking import Asking
from tests.support.entries import beside, together
from tests.support.factories import MySQLFactory
from tests.support.replication import ReplicatedPair, ask, port_of, run
from tests.support.servers import Kind, MySQLServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.servers("mariadb", "mysql")

APPLIER: dict[Kind, tuple[str, str]] = {
    "mariadb": ("STOP SLAVE SQL_THREAD", "START SLAVE SQL_THREAD"),
    "mysql": ("STOP REPLICA SQL_THREAD", "START REPLICA SQL_THREAD"),
}


@pytest.fixture(scope="module")
def made(servers_directory: Path, server_kind: Kind) -> Iterator[ReplicatedPair]:
    """A server that takes writes, its replica, and the tables."""
    with MySQLFactory(servers_directory, server_kind) as make:
        pair = ReplicatedPair(make, server_kind)
        migrate(pair.url)
        eventually(lambda: _has_tables(pair))
        yield pair


def _has_tables(pair: ReplicatedPair) -> bool:
    with connect(read_url(pair), database=False) as session:
        try:
            session.execute("USE counts")
            require_schema(session)
        except SchemaMismatch:
            return False
        return True


@pytest.fixture
def pair(made: ReplicatedPair) -> Iterator[ReplicatedPair]:
    """The same, without counts; the replica applies what it receives."""
    with connect(made.url) as session:
        session.execute("DELETE FROM counter_slot")
        session.execute("DELETE FROM counter_ledger")
    yield made
    run(made.replica, APPLIER[made.kind][1])


@pytest.fixture
def stop_applying(pair: ReplicatedPair) -> None:
    """The replica receives, and applies nothing."""
    run(pair.replica, APPLIER[pair.kind][0])


def go_on(pair: ReplicatedPair) -> None:
    run(pair.replica, APPLIER[pair.kind][1])


def read_url(pair: ReplicatedPair, *ports: int, database: str = "counts") -> str:
    listed = ",".join(f"127.0.0.1:{port}" for port in ports or (pair.replica.port,))
    return f"mysql://app:geheim@{listed}/{database}"


@pytest.fixture
def store(pair: ReplicatedPair) -> Iterator[Store]:
    with Store(pair.url, read_url=read_url(pair)) as opened:
        yield opened


Count = Callable[..., int]


@pytest.fixture
def count(pair: ReplicatedPair, redis_client: redis.Redis) -> Count:
    """Counts views of a key by way of the queue: applied and acknowledged when it returns; all that
    was counted so far."""
    total = 0

    def count(amount: int = 1) -> int:
        nonlocal total
        total += amount
        queue(redis_client, ("views", "/", 0, amount))
        apply_all(redis_client, pair.url, acknowledge=True)
        return total

    return count


def test_a_replica_answers_and_has_all_that_was_committed(
    store: Store, pair: ReplicatedPair, count: Count, redis_client: redis.Redis
) -> None:
    reads = Asking(store, redis_client)
    for _ in range(6):
        before = datetime.now(UTC)
        total = count()
        read = reads.total("views")
        assert read.value == total
        assert read.complete_up_to is not None
        assert read.complete_up_to > before
        assert store.totals.total("views") == total
        with store.reading() as session:
            assert port_of(session) == pair.replica.port
            assert session.query("SELECT SUM(amount) FROM counter_slot") == [(total,)]
    assert store.replica_snapshot(port_of) == pair.replica.port
    assert store.snapshot(port_of) == pair.primary.port


@pytest.mark.usefixtures("stop_applying")
def test_a_replica_that_does_not_apply_is_not_read_from(
    store: Store,
    pair: ReplicatedPair,
    count: Count,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(replicas, "CATCH_UP_S", 0.2)
    monkeypatch.setattr(replicas, "REST_S", 0.0)
    reads = Asking(store, redis_client)
    for _ in range(3):
        total = count()
        assert reads.total("views").value == total
        with store.reading() as session:
            assert session.query("SELECT SUM(amount) FROM counter_slot") == [(total,)]
    assert store.replica_snapshot(port_of) == pair.primary.port
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.endswith("read from: it lags more than 0.2 s behind the server that takes writes")
    go_on(pair)
    eventually(lambda: store.replica_snapshot(port_of) == pair.replica.port)
    assert reads.total("views").value == total


@pytest.mark.usefixtures("stop_applying")
def test_a_replica_that_lags_is_waited_for(
    store: Store, pair: ReplicatedPair, count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "CATCH_UP_S", 60.0)
    total = count()

    def read(session: Session) -> tuple[int, int]:
        ((amount,),) = session.query("SELECT SUM(amount) FROM counter_slot")
        return port_of(session), int(amount)

    waits = "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'SELECT %WAIT%('"
    waits = waits.replace("('", "(%'")
    with beside(lambda: store.replica_snapshot(read)) as found:
        with connect(pair.replica.url, database=False) as session:
            eventually(lambda: len(session.query(waits)) > 1)  # this query is one of them
        assert not found.done()
        go_on(pair)
    assert found.result() == (pair.replica.port, total)


@pytest.mark.usefixtures("stop_applying")
def test_what_is_pending_is_told_exactly(
    store: Store,
    pair: ReplicatedPair,
    count: Count,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its guards are read where the writes go."""
    monkeypatch.setattr(replicas, "CATCH_UP_S", 0.2)
    total = count()
    queue(redis_client, ("views", "/", 0, 5))
    apply_all(redis_client, pair.url, acknowledge=False)  # counted, and still in the queue
    queue(redis_client, ("views", "/", 0, 7))
    reads = Asking(store, redis_client)
    assert reads.total("views", include_pending=True).value == total + 5 + 7
    assert reads.total("views").value == total + 5


def test_a_frozen_replica_is_left(pair: ReplicatedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "CATCH_UP_S", 0.1)
    monkeypatch.setattr(replicas, "_ANSWER_S", 0.3)
    monkeypatch.setattr("countersink.database.connection.CONNECT_TIMEOUT", 1.0)
    with Store(pair.url, read_url=read_url(pair)) as store:
        assert store.replica_snapshot(port_of) == pair.replica.port
        pair.replica.freeze()
        try:
            assert store.replica_snapshot(port_of) == pair.primary.port
        finally:
            pair.replica.thaw()


def test_one_reader_at_a_time_finds_out_whether_a_silent_replica_is_back(
    pair: ReplicatedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("countersink.database.connection.CONNECT_TIMEOUT", 1.0)
    with Store(pair.url, read_url=read_url(pair)) as store:
        pool = store._replicas
        assert pool is not None
        (replica,) = pool._replicas
        pair.replica.freeze()
        try:
            for seconds in (5.0, 10.0, 20.0, 40.0, 60.0, 60.0):
                replica._rests_until = 0.0  # as if it were over
                together(*[lambda: store.replica_snapshot(port_of)] * 3)
                assert replica._rest_s == seconds
            monkeypatch.setattr("countersink.database.connection.CONNECT_TIMEOUT", 60.0)
            replica._rests_until = 0.0
            found: list[int] = []
            asking = threading.Thread(target=lambda: found.append(store.replica_snapshot(port_of)))
            asking.start()
            eventually(lambda: replica._rests_until > 0)
            assert store.replica_snapshot(port_of) == pair.primary.port
            assert found == []
        finally:
            pair.replica.thaw()
        asking.join(60.0)
        assert found == [pair.replica.port]
        assert replica._rest_s == 0.0
        assert store.replica_snapshot(port_of) == pair.replica.port


def test_several_replicas(pair: ReplicatedPair, count: Count) -> None:
    """The first that answers; the server that takes writes may be among them."""
    total = count()
    with Store(pair.url, read_url=read_url(pair, 1, pair.replica.port)) as store:
        assert store.replica_snapshot(port_of) == pair.replica.port
        assert store.totals.total("views") == total
    with Store(pair.url, read_url=read_url(pair, 1)) as store:
        assert store.replica_snapshot(port_of) == pair.primary.port
        assert store.totals.total("views") == total


def test_bad_read_urls(pair: ReplicatedPair, mysql_url: str, count: Count, redis_url: str) -> None:
    total = count()
    urls = {"COUNTERSINK_REDIS_URL": redis_url, "COUNTERSINK_MYSQL_URL": pair.url}

    def totals(url: str) -> tuple[int, str]:
        done = call("totals", "views", "--by", "total", "--format", "csv",
                    COUNTERSINK_MYSQL_READ_URL=url, **urls)  # fmt: skip
        return done.status, done.out.split()[-1] if done.status == 0 else one_sentence(done)

    assert totals(read_url(pair)) == (0, str(total))
    assert totals(read_url(pair, database="elsewhere")) == (0, str(total))
    for url, why in (
        (mysql_url, " leads to tables of another installation"),
        ("mysql://app@localhost", " names no database"),
        ("postgres://app@localhost/x", ": not a MySQL URL"),
    ):
        status, said = totals(url)
        assert status == 1
        assert f"COUNTERSINK_MYSQL_READ_URL{why}" in said


def test_without_gtids_the_writer_answers(
    mysql_url: str, mysql_server: MySQLServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(mysql_url, read_url=mysql_url) as store:
        assert store.replica_snapshot(port_of) == mysql_server.port
    assert "has no GTIDs" in caplog.text


def test_a_replica_of_another_server_is_not_read_from(
    store: Store, pair: ReplicatedPair, count: Count
) -> None:
    """MariaDB compares the numbers of transactions, whoever gave them out."""
    if pair.kind != "mariadb":
        pytest.skip("GTIDs of MySQL name the server")
    total = count()
    assert store.totals.total("views") == total
    run(pair.primary, "SET GLOBAL rpl_semi_sync_master_enabled = 0")
    position = "SELECT @@GLOBAL.gtid_slave_pos"
    run(pair.replica, "STOP SLAVE")
    ((before,),) = ask(pair.replica, position)
    try:
        run(pair.replica, "SET GLOBAL gtid_slave_pos = '0-77-999999999'")
        total = count()
        assert store.totals.total("views") == total
    finally:
        run(pair.replica, f"SET GLOBAL gtid_slave_pos = '{before}'", "START SLAVE")
        run(pair.primary, "SET GLOBAL rpl_semi_sync_master_enabled = 1")


def test_the_writer_is_needed(pair: ReplicatedPair) -> None:
    """A replica alone cannot tell what it lacks."""
    with (
        Store("mysql://app:geheim@127.0.0.1:1/counts", read_url=read_url(pair)) as store,
        pytest.raises(Unavailable),
    ):
        store.totals.counters()


@pytest.mark.clusters
@pytest.mark.skipif(not galera.installed(), reason="galera-4 or rsync is not installed")
def test_a_node_of_galera_that_does_not_take_writes(
    servers_directory: Path, redis_client: redis.Redis
) -> None:
    with galera.GaleraCluster(servers_directory) as cluster:
        first, second, _ = cluster.nodes
        migrate(cluster.url())
        with Store(cluster.url(first), read_url=cluster.url(second)) as store:
            for total in range(1, 30):
                queue(redis_client, ("views", "/", 0, 1))
                apply_all(redis_client, cluster.url(first), acknowledge=True)
                assert store.totals.total("views") == total
                with store.reading() as session:
                    assert session.query("SELECT SUM(amount) FROM counter_slot") == [(total,)]
            eventually(lambda: store.replica_snapshot(port_of) == second.port)
            assert store.snapshot(port_of) == first.port
            second.isolate(True)
            eventually(lambda: store.replica_snapshot(port_of) == first.port, 60.0)


@pytest.mark.clusters
@pytest.mark.skipif(not group_replication.installed(), reason="MySQL 9 is not there")
def test_a_secondary_of_a_group(servers_directory: Path, redis_client: redis.Redis) -> None:
    with group_replication.ReplicationGroup(servers_directory) as group:
        first, second, third = group.members
        migrate(group.url())
        with Store(group.url(), read_url=group.url(second, third)) as store:
            eventually(lambda: store.replica_snapshot(port_of) == second.port)
            for total in range(1, 30):
                queue(redis_client, ("views", "/", 0, 1))
                apply_all(redis_client, group.url(), acknowledge=True)
                assert store.totals.total("views") == total
            assert store.replica_snapshot(port_of) in (second.port, third.port)
            second.kill()
            assert store.replica_snapshot(port_of) == third.port
            assert store.snapshot(port_of) == first.port

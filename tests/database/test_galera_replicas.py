"""Reading elsewhere than on the writer where one of the two is a node of Galera."""

from pathlib import Path

import pytest
import redis

from countersink.database.migrate import migrate
from countersink.store import Store
from tests.reads.support import apply_all, queue
from tests.support.factories import MySQLFactory
from tests.support.galera import GaleraCluster, installed
from tests.support.replication import ask, follow, port_of, run
from tests.support.waiting import eventually

BINLOG = ("--log-bin=log", "--binlog-format=ROW")

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.skipif(not installed(), reason="galera-4 or rsync is not installed"),
]


def test_a_node_that_follows_a_server_outside_of_its_cluster_is_asked_for_that_ones_gtids(
    servers_directory: Path, redis_client: redis.Redis
) -> None:
    with (
        MySQLFactory(servers_directory, "mariadb") as make,
        GaleraCluster(servers_directory, size=1) as cluster,
    ):
        (node,) = cluster.nodes
        writer = make(extra=(*BINLOG, "--server-id=9"))
        run(writer, "RESET MASTER")
        follow(node, writer, "mariadb")
        url = writer.url_for("counts")
        migrate(url)
        with Store(url, read_url=cluster.url()) as store:
            eventually(lambda: store.replica_snapshot(port_of) == node.port, 60.0)
            run(node, "STOP SLAVE SQL_THREAD")
            queue(redis_client, ("views", "/", 0, 1))
            apply_all(redis_client, url, acknowledge=True)
            assert store.totals.total("views") == 1
            run(node, "START SLAVE SQL_THREAD")
            eventually(lambda: store.replica_snapshot(port_of) == node.port, 60.0)
            assert store.totals.total("views") == 1


def test_a_replica_of_a_node_that_numbers_its_transactions_by_itself(
    servers_directory: Path, redis_client: redis.Redis
) -> None:
    with (
        MySQLFactory(servers_directory, "mariadb") as make,
        GaleraCluster(servers_directory, 2, extra=(*BINLOG, "--log-slave-updates=1")) as cluster,
    ):
        first, second = cluster.nodes
        replica = make(extra=(*BINLOG, "--server-id=9"))
        ((position,),) = ask(second, "SELECT @@GLOBAL.gtid_binlog_pos")
        run(
            replica,
            "CREATE DATABASE counts",
            "CREATE USER app@'%' IDENTIFIED BY 'geheim'",
            "GRANT ALL ON counts.* TO app@'%'",
            "RESET MASTER",
            f"SET GLOBAL gtid_slave_pos = '{position}'",
        )
        follow(replica, second, "mariadb")
        url = cluster.url(first)
        migrate(url)
        # What only that node has, as an administrator's repair: its next numbers are larger ones.
        own = ("INSERT INTO counts.own VALUES ()",) * 99
        run(second, "SET SESSION wsrep_on = OFF", "CREATE TABLE counts.own (id INT)", *own)
        read_url = url.replace(first.address, f"127.0.0.1:{replica.port}")

        def count() -> None:
            queue(redis_client, ("views", "/", 0, 1))
            apply_all(redis_client, url, acknowledge=True)

        count()
        eventually(lambda: ask(replica, "SELECT * FROM counts.counter_slot"), 60.0)
        run(replica, "STOP SLAVE SQL_THREAD")
        with Store(url, read_url=read_url) as store:
            count()
            assert store.totals.total("views") == 2

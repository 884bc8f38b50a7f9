"""The proxies do to a conversation what their rules say, and nothing else."""

from collections.abc import Iterator

import pymysql
import pytest
import redis

from countersink.stream.connection import connect as connect_redis
from tests.store.helpers import beside
from tests.support.oracle import Oracle, connect
from tests.support.proxies import Deed, MySQLProxy, Phase, RedisProxy
from tests.support.servers import MySQLServer
from tests.support.traffic import STREAM


@pytest.fixture
def mysql(mysql_server: MySQLServer) -> Iterator[tuple[MySQLProxy, str]]:
    """A proxy, and the URL of an empty database by way of it."""
    direct = connect(mysql_server.url)
    direct.cursor().execute("CREATE DATABASE proxied")
    direct.cursor().execute(
        "CREATE TABLE proxied.counter_slot (a INT PRIMARY KEY, b LONGBLOB) ENGINE = InnoDB"
    )
    with MySQLProxy.to(mysql_server.url) as proxy:
        yield proxy, proxy.url(mysql_server.url_for("proxied"))
    direct.cursor().execute("DROP DATABASE proxied")
    direct.close()


@pytest.mark.parametrize(
    ("code", "kept"), [(1205, [(0,)]), (1213, []), (1020, [])], ids=["1205", "1213", "1020"]
)
def test_an_error_packet_leaves_the_transaction_as_the_server_would(
    mysql: tuple[MySQLProxy, str], code: int, kept: list[tuple[int]]
) -> None:
    proxy, url = mysql
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO counter_slot VALUES (0, 'kept after 1205')")
        proxy.when("slots", Phase.BEFORE, Deed.ERROR, error=code)
        with pytest.raises(pymysql.err.OperationalError) as raised:
            cursor.execute("INSERT INTO counter_slot VALUES (1, 'refused')")
        assert raised.value.args[0] == code
        cursor.execute("COMMIT")
        cursor.execute("SELECT a FROM counter_slot")
        assert list(cursor.fetchall()) == kept


@pytest.mark.parametrize(("phase", "rows"), [(Phase.BEFORE, 0), (Phase.AFTER, 1)])
def test_a_cut_before_commit_undoes_and_one_after_it_does_not(
    mysql: tuple[MySQLProxy, str], phase: Phase, rows: int
) -> None:
    proxy, url = mysql
    connection = connect(url)
    cursor = connection.cursor()
    cursor.execute("BEGIN")
    cursor.execute("INSERT INTO counter_slot VALUES (1, REPEAT('x', 100000))")
    rule = proxy.when("commit_other", phase, Deed.CUT)
    with pytest.raises(pymysql.err.OperationalError):
        cursor.execute("COMMIT")
    assert rule.acted == 1
    with Oracle(url) as again:
        assert again.rows("SELECT COUNT(*) FROM counter_slot") == [(rows,)]


def test_large_replies_and_statements_pass_unchanged(mysql: tuple[MySQLProxy, str]) -> None:
    with Oracle(mysql[1]) as oracle:
        found = oracle.rows(f"SELECT '{'x' * 1_000_000}' UNION ALL SELECT 'y'")
    assert [len(row[0]) for row in found] == [1_000_000, 1]


def test_what_is_done_to_commands_of_redis(redis_url: str) -> None:
    """After a lost reply in a pipeline the server does the rest; an error takes a command's place;
    a request that is held waits for its release.
    """
    with RedisProxy.to(redis_url) as proxy, connect_redis(proxy.url(redis_url)) as client:
        proxy.when("XADD", Phase.AFTER, Deed.CUT, skip=2)
        pipeline = client.pipeline(transaction=False)
        for _ in range(10):
            pipeline.xadd(STREAM, {"a": b"1"})
        with pytest.raises(redis.ConnectionError):
            pipeline.execute()
        assert client.xlen(STREAM) == 10
        proxy.when("XADD", Phase.BEFORE, Deed.ERROR, error="OOM command not allowed")
        with pytest.raises(redis.ResponseError, match="not allowed"):
            client.xadd(STREAM, {"a": b"1"})
        assert client.xlen(STREAM) == 10
        held = proxy.when("PING", Phase.BEFORE, Deed.HOLD)
        with beside(client.ping) as answered:
            assert held.reached.wait(20)
            assert not answered.done()
            held.release.set()
            assert answered.result(20)

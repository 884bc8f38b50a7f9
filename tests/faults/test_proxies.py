"""The proxies do to a conversation what their rules say, and nothing else."""

import threading
from collections.abc import Iterator

import pymysql
import pytest
import redis

from countersink.stream.connection import connect as connect_redis
from tests.support.oracle import connect
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
    connection = connect(url)
    cursor = connection.cursor()
    cursor.execute("BEGIN")
    cursor.execute("INSERT INTO counter_slot VALUES (0, 'kept after 1205')")
    proxy.when("slots", Phase.BEFORE, Deed.ERROR, error=code)
    with pytest.raises(pymysql.err.OperationalError) as raised:
        cursor.execute("INSERT INTO counter_slot VALUES (1, 'refused')")
    assert raised.value.args[0] == code
    cursor.execute("COMMIT")
    cursor.execute("SELECT a FROM counter_slot")
    assert list(cursor.fetchall()) == kept
    connection.close()


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
    again = connect(url)
    cursor = again.cursor()
    cursor.execute("SELECT COUNT(*) FROM counter_slot")
    assert cursor.fetchone() == (rows,)
    again.close()


def test_large_replies_and_statements_pass_unchanged(mysql: tuple[MySQLProxy, str]) -> None:
    _, url = mysql
    connection = connect(url)
    cursor = connection.cursor()
    text = "x" * 1_000_000
    cursor.execute("SELECT %s UNION ALL SELECT 'y'", (text,))
    assert [len(row[0]) for row in cursor.fetchall()] == [1_000_000, 1]
    connection.close()


def test_a_lost_reply_in_a_pipeline_lets_the_server_do_the_rest(redis_url: str) -> None:
    with RedisProxy.to(redis_url) as proxy:
        client = connect_redis(proxy.url(redis_url))
        proxy.when("XADD", Phase.AFTER, Deed.CUT, skip=2)
        pipeline = client.pipeline(transaction=False)
        for _ in range(10):
            pipeline.xadd(STREAM, {"a": b"1"})
        with pytest.raises(redis.ConnectionError):
            pipeline.execute()
        assert client.xlen(STREAM) == 10
        client.close()


def test_a_held_request_waits_for_its_release(redis_url: str) -> None:
    with RedisProxy.to(redis_url) as proxy:
        client = connect_redis(proxy.url(redis_url))
        held = proxy.when("PING", Phase.BEFORE, Deed.HOLD)
        answered = threading.Event()

        def ask() -> None:
            client.ping()
            answered.set()

        asking = threading.Thread(target=ask)
        asking.start()
        assert held.reached.wait(20)
        assert not answered.is_set()
        held.release.set()
        assert answered.wait(20)
        asking.join()
        client.close()


def test_a_redis_error_is_answered_in_place_of_the_command(redis_url: str) -> None:
    with RedisProxy.to(redis_url) as proxy:
        client = connect_redis(proxy.url(redis_url))
        proxy.when("XADD", Phase.BEFORE, Deed.ERROR, error="OOM command not allowed")
        with pytest.raises(redis.ResponseError, match="not allowed"):
            client.xadd(STREAM, {"a": b"1"})
        assert client.xlen(STREAM) == 0
        client.close()

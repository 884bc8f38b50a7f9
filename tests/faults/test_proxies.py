"""The proxies do to a conversation what their rules say, and nothing else."""

from collections.abc import Iterator

import pymysql
import pytest

from tests.support.oracle import connect
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.support.servers import MySQLServer


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

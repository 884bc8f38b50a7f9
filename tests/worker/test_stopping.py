"""Signals to real processes: the batch is finished, or the end comes in bounded time anyhow."""

import signal

import pytest
import redis

from countersink.stream.connection import command
from countersink.stream.connection import connect as connect_redis
from countersink.stream.errors import StreamMisconfigured
from countersink.stream.names import GROUP, stream_key
from tests.support.factories import RedisFactory
from tests.support.forked import ForkedChildren
from tests.support.oracle import Oracle
from tests.support.processes import Child
from tests.support.servers import MySQLServer
from tests.support.traffic import Traffic, backlog
from tests.support.waiting import eventually
from tests.worker.running import AWAY, Place, check, drain, feeding, fill

STREAM = stream_key(0)


def pending(client: redis.Redis) -> int:
    try:
        return int(command(client, "XPENDING", STREAM, GROUP)[0])
    except StreamMisconfigured:
        return 0  # the worker makes its group a moment after it is ready


def ready(child: Child) -> bool:
    assert child.running, child.output()
    return " ready " in child.output()


def leases(oracle: Oracle) -> int:
    """How many worker slots are held now."""
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000"
    sql = f"SELECT COUNT(*) FROM lease WHERE name LIKE 'slot:%' AND expires_at > {now}"
    return int(oracle.rows(sql)[0][0])


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long("the other signal"))],
)
def test_a_signal_under_load_leaves_nothing_pending(place: Place, number: signal.Signals) -> None:
    traffic = Traffic(60)
    with ForkedChildren() as children, Oracle(place.mysql_url) as oracle:
        child = children.worker(place.redis_url, place.mysql_url)
        eventually(lambda: ready(child))
        assert leases(oracle) == 1
        with feeding(lambda: place.fill(traffic, 10)):
            eventually(lambda: oracle.guards() > 30)
            child.send(number)
            assert child.wait() == 0
        assert pending(place.client) == 0
        assert place.client.xinfo_consumers(STREAM, GROUP) == []
        assert place.client.keys("countersink:worker:*") == []
        assert leases(oracle) == 0
        assert "stopping" in child.output()
        assert "leaves nothing pending" in child.output()
        # What was acknowledged was counted, and nothing else was removed.
        place.drain()
        oracle.check(traffic.expected)


@pytest.mark.parametrize(
    ("signals", "stop_within_s", "said"),
    [
        pytest.param(
            *(1, 2.0, "took more than 2 s"),
            marks=pytest.mark.long("a time-out is waited for"),
            id="a time-out",
        ),
        pytest.param(2, 600.0, "a second signal came", id="a second signal"),
    ],
)
def test_a_frozen_mysql_does_not_hold_up_the_end_and_the_batch_comes_back(
    place: Place,
    mysql_to_stop: tuple[MySQLServer, str],
    signals: int,
    stop_within_s: float,
    said: str,
) -> None:
    (server, url), traffic = mysql_to_stop, Traffic(61)
    with ForkedChildren() as children:
        child = children.worker(place.redis_url, url, stop_within_s=stop_within_s)
        eventually(lambda: ready(child))
        server.freeze()
        place.fill(traffic)
        eventually(lambda: pending(place.client) > 0)
        child.terminate()
        if signals == 2:
            eventually(lambda: " stopping " in child.output())
            assert child.running
            child.terminate()
        assert child.wait() == 1
        assert said in child.output()
        if signals == 1:
            assert "stays pending and will be redelivered" in child.output()
        server.thaw()
    assert drain(place.redis_url, url, claim_idle_ms=1) == 0
    check(url, traffic)


def test_a_frozen_mysql_does_not_hold_up_the_end_of_a_quiet_worker(
    redis_url: str, mysql_to_stop: tuple[MySQLServer, str]
) -> None:
    server, url = mysql_to_stop
    with ForkedChildren() as children:
        child = children.worker(redis_url, url)
        eventually(lambda: ready(child))
        server.freeze()
        child.terminate()
        assert child.wait() == 0
        server.thaw()


@pytest.mark.long("a time-out is waited for")
def test_a_frozen_redis_does_not_hold_up_the_end(
    own_redis_server: RedisFactory, mysql_url: str
) -> None:
    server, traffic = own_redis_server(), Traffic(63)
    client = connect_redis(server.url)
    with ForkedChildren() as children:
        child = children.worker(server.url, mysql_url)
        eventually(lambda: ready(child))
        fill(client, traffic)
        eventually(lambda: backlog(client) == 0)
        server.freeze()
        child.terminate()
        assert child.wait() == 0  # nothing was in hand
        server.thaw()
    fill(client, traffic)
    assert drain(server.url, mysql_url, claim_idle_ms=1) == 0
    check(mysql_url, traffic)
    client.close()


def test_a_signal_while_waiting_for_a_server_ends_at_once(redis_url: str) -> None:
    with ForkedChildren() as children:
        child = children.worker(redis_url, AWAY, log_format="json")
        eventually(lambda: '"waiting"' in child.output())
        child.terminate()
        assert child.wait() == 0  # nothing was read, so nothing stays pending


def test_a_signal_with_a_batch_in_hand_and_mysql_away_ends_soon_with_status_1(
    place: Place, mysql_to_stop: tuple[MySQLServer, str]
) -> None:
    (server, url), traffic = mysql_to_stop, Traffic(64)
    with ForkedChildren() as children:
        child = children.worker(place.redis_url, url)
        eventually(lambda: ready(child))
        server.kill()
        place.fill(traffic)
        eventually(lambda: " waiting " in child.output())
        child.terminate()
        assert child.wait() == 1
        assert "its pending entries will be redelivered" in child.output()
    server.start()
    assert drain(place.redis_url, url, claim_idle_ms=1) == 0
    check(url, traffic)

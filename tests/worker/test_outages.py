"""Servers that are away, at the start or later, or refuse: the worker waits, says so, goes on."""

from threading import Event

import redis

from countersink.database.migrate import migrate
from countersink.stream.connection import command
from countersink.stream.connection import connect as connect_redis
from tests.support.factories import RedisFactory
from tests.support.oracle import Oracle
from tests.support.servers import MySQLServer
from tests.support.traffic import Traffic, backlog, now_ms
from tests.support.waiting import eventually
from tests.worker.running import (
    Place,
    Records,
    Running,
    count,
    migrated_by_a_newer_version,
    settled,
    watched,
)


def waits_for(records: Records, service: str) -> bool:
    return any(fields["service"] == service for fields in records.fields("waiting"))


def fill_up(client: redis.Redis, traffic: Traffic, **settings: int) -> None:
    """Send entries to a Redis that takes nothing from then on."""
    client.config_set("maxmemory", 0)
    with client.pipeline(transaction=True) as pipeline:
        for _ in range(20):
            pipeline.xadd("{countersink:0}:events", traffic.entry(now_ms(client)).fields())
        for key, value in settings.items():
            pipeline.set(key, value)
        pipeline.config_set("maxmemory", 1)
        pipeline.execute()


def test_redis_away_at_the_start_and_again_later(
    own_redis_server: RedisFactory, mysql_url: str
) -> None:
    server = own_redis_server(appendfsync="always")
    client, traffic = connect_redis(server.url), Traffic(40)
    server.stop()
    with watched(server.url, mysql_url) as (records, worker, oracle):
        eventually(lambda: waits_for(records, "Redis"))
        server.start()
        eventually(lambda: "ready" in records.actions())
        count(client, oracle, traffic)
        records.records.clear()
        server.kill()
        eventually(lambda: waits_for(records, "Redis"))
        server.start()
        client.close()
        count(client, oracle, traffic)
        assert worker.end() == 0
    assert "resumed" in records.actions()
    assert len(records.fields("waiting")) == 1  # said once, not at each try
    assert backlog(client) == 0
    client.close()


def test_mysql_away_at_the_start_and_again_in_the_midst_of_a_batch(
    place: Place, mysql_to_stop: tuple[MySQLServer, str]
) -> None:
    (server, url), traffic = mysql_to_stop, Traffic(41)
    server.stop()
    started = Event()
    killed: list[str] = []

    def reached(point: str) -> None:
        if point == "upserted" and not killed:
            started.wait(60)  # who starts it looks until it answers
            killed.append(point)
            server.kill()

    place.fill(traffic)
    with Records() as records, Running(place.redis_url, url, reached=reached) as worker:
        eventually(lambda: waits_for(records, "MySQL"))
        # Nothing is taken from the stream while it could not be applied.
        assert place.client.exists("{countersink:0}:events") == 1
        assert place.client.xinfo_groups("{countersink:0}:events") == []
        server.start()
        started.set()
        eventually(lambda: bool(killed))
        eventually(lambda: len(records.fields("waiting")) == 2)
        place.fill(traffic)
        server.start()
        with Oracle(url) as oracle:
            eventually(lambda: settled(oracle, traffic))
        assert worker.end() == 0
    assert backlog(place.client) == 0


def test_tables_that_are_missing_are_waited_for(place: Place, empty_mysql_url: str) -> None:
    traffic = Traffic(42)
    place.fill(traffic)
    with Records() as records, Running(place.redis_url, empty_mysql_url) as worker:
        eventually(lambda: waits_for(records, "MySQL"))
        assert "countersink migrate" in records.fields("waiting")[0]["error"]
        migrate(empty_mysql_url)
        with Oracle(empty_mysql_url) as oracle:
            eventually(lambda: settled(oracle, traffic))
        assert worker.end() == 0


def test_tables_of_a_newer_version_end_the_worker_at_once(place: Place) -> None:
    place.fill(Traffic(43))
    with (
        Oracle(place.mysql_url) as oracle,
        migrated_by_a_newer_version(oracle),
        Records() as records,
    ):
        assert place.running().start().join() == 1
    assert records.actions()[-2:] == ["schema_too_new", "stopped"]
    assert "upgrade countersink" in records.records[-2].getMessage()
    assert backlog(place.client) == 20


def test_a_changed_password_of_redis_is_waited_for(
    own_redis_server: RedisFactory, mysql_url: str
) -> None:
    server, traffic = own_redis_server(), Traffic(48)
    client = connect_redis(server.url)
    password = client.connection_pool.connection_kwargs["password"]
    with watched(server.url, mysql_url) as (records, worker, oracle):
        count(client, oracle, traffic)
        client.config_set("requirepass", "another")
        command(client, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        eventually(lambda: waits_for(records, "Redis"))
        client.config_set("requirepass", password)
        count(client, oracle, traffic)
        assert worker.end() == 0
    said = "".join(str(vars(record)) for record in records.records)
    assert password not in said
    client.close()


def test_a_full_redis_is_emptied_by_running_workers_and_by_new_ones(
    own_redis_server: RedisFactory, mysql_url: str
) -> None:
    server, traffic = own_redis_server(), Traffic(49)
    client = connect_redis(server.url)
    with Oracle(mysql_url) as oracle:
        with Running(server.url, mysql_url) as worker:
            count(client, oracle, traffic)
            fill_up(client, traffic)
            eventually(lambda: settled(oracle, traffic))
            eventually(lambda: backlog(client) == 0)
            assert worker.end() == 0
        fill_up(client, traffic)
        with Running(server.url, mysql_url) as worker:
            eventually(lambda: settled(oracle, traffic))
            eventually(lambda: backlog(client) == 0)
            assert worker.end() == 0
    client.close()

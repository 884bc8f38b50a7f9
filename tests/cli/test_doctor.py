"""`countersink doctor`: each line ok, warn or fail, with what to do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from countersink.cli.private_server import free_port
from countersink.database.connection import connect as connect_mysql
from countersink.stream.connection import command, connect
from tests.cli.command import Result, Servers, call
from tests.support.factories import MySQLFactory, RedisFactory
from tests.support.sentinels import MASTER, Watched
from tests.support.waiting import eventually


def lines(result: Result) -> dict[str, dict[str, str]]:
    """The report by check; of several lines about one thing the worst."""
    order = ("ok", "warn", "fail")
    found: dict[str, dict[str, str]] = {}
    for line in result.json["lines"]:
        known = found.get(line["check"])
        if known is None or order.index(line["status"]) > order.index(known["status"]):
            found[line["check"]] = line
        assert line["status"] == "ok" or line["advice"]
    failed = any(line["status"] == "fail" for line in found.values())
    assert result.status == (1 if failed else 0)
    return found


def statuses(result: Result) -> dict[str, str]:
    return {check: line["status"] for check, line in lines(result).items()}


def asked(servers: Servers, **variables: str) -> Result:
    return servers.call("doctor", "--format", "json", **variables)


def test_healthy_servers_have_no_failing_line_but_a_table_of_another_engine_is_one(
    servers: Servers,
) -> None:
    done = servers.call("doctor", "--format", "json")
    assert done.status == 0, done.out
    found = statuses(done)
    assert set(found) >= {
        "redis",
        "redis role",
        "redis clock",
        "redis eviction",
        "redis memory",
        "redis persistence",
        "redis rights",
        "queue",
        "mysql",
        "mysql writable",
        "mysql durability",
        "mysql binary log",
        "mysql isolation",
        "schema",
        "mysql tables",
        "mysql rights",
        "mysql clock",
        "dead rows",
    }
    assert found["schema"] == found["mysql rights"] == found["redis rights"] == "ok"
    servers.execute("ALTER TABLE counter_slot ENGINE = MyISAM")
    assert statuses(asked(servers))["mysql tables"] == "fail"
    servers.execute("ALTER TABLE counter_slot ENGINE = InnoDB")  # it can be used again


def test_people_get_a_line_each_and_what_to_do_below_it(servers: Servers) -> None:
    shown = servers.call("doctor", COUNTERSINK_MYSQL_URL="mysql://root:secret@127.0.0.1:1/x")
    assert shown.status == 1
    report = shown.out.splitlines()
    failed = next(number for number, line in enumerate(report) if line.startswith("fail"))
    assert "mysql" in report[failed]
    assert report[failed + 1].strip().startswith("→ start the server, or correct")
    assert "secret" not in shown.out


def test_without_urls_it_says_what_to_set() -> None:
    found = lines(call("doctor", "--format", "json"))
    assert found["redis"]["status"] == found["mysql"]["status"] == "fail"
    assert "COUNTERSINK_REDIS_URL" in found["redis"]["advice"]
    assert "COUNTERSINK_MYSQL_URL" in found["mysql"]["advice"]


def test_a_redis_that_cannot_be_used_fails(servers: Servers) -> None:
    for url in ("redis://127.0.0.1:1/0", "nonsense", "redis://127.0.0.1:x/0"):
        found = lines(asked(servers, COUNTERSINK_REDIS_URL=url))
        assert (found["redis"]["status"], found["mysql"]["status"]) == ("fail", "ok"), url


def test_a_wrong_password_fails_and_is_not_shown(servers: Servers) -> None:
    redis_url = servers.redis_url.replace("redis://:", "redis://:not-the-")
    mysql_url = servers.mysql_url.replace("root:", "root:not-the-")
    done = asked(servers, COUNTERSINK_REDIS_URL=redis_url, COUNTERSINK_MYSQL_URL=mysql_url)
    found = lines(done)
    assert found["redis"]["status"] == found["mysql"]["status"] == "fail"
    assert "not-the-" not in done.out + done.err


def test_a_missing_database_and_missing_tables_name_migrate(
    redis_url: str, empty_mysql_url: str
) -> None:
    servers = Servers(redis_url, empty_mysql_url)
    found = lines(asked(servers))
    assert found["schema"]["status"] == "fail"
    assert "countersink migrate" in found["schema"]["advice"]
    assert servers.call("migrate").status == 0
    assert statuses(asked(servers))["schema"] == "ok"


def test_missing_grants_fail_with_the_grant_to_give(servers: Servers) -> None:
    database = servers.mysql_url.rpartition("/")[2]
    host = servers.mysql_url.rpartition("@")[2]
    servers.execute(
        "DROP USER IF EXISTS reader@'%'",
        "CREATE USER reader@'%' IDENTIFIED BY 'pw'",
        f"GRANT SELECT ON `{database}`.* TO reader@'%'",
    )
    try:
        found = lines(asked(servers, COUNTERSINK_MYSQL_URL=f"mysql://reader:pw@{host}"))
    finally:
        servers.execute("DROP USER reader@'%'")
    assert found["mysql rights"]["status"] == "fail"
    assert found["mysql rights"]["advice"].startswith("GRANT SELECT, INSERT, UPDATE, DELETE ON")


@pytest.fixture
def own_redis(own_redis_server: RedisFactory) -> Iterator[tuple[str, redis.Redis]]:
    server = own_redis_server(appendfsync="always")
    with connect(server.url) as client:
        yield server.url, client


def test_what_redis_is_set_to(servers: Servers, own_redis: tuple[str, redis.Redis]) -> None:
    url, client = own_redis
    found = statuses(asked(servers, COUNTERSINK_REDIS_URL=url))
    assert found["redis persistence"] == found["redis eviction"] == "ok"
    client.config_set("maxmemory-policy", "allkeys-lru")
    assert statuses(asked(servers, COUNTERSINK_REDIS_URL=url))["redis eviction"] == "warn"
    client.config_set("maxmemory", 100_000_000)
    assert statuses(asked(servers, COUNTERSINK_REDIS_URL=url))["redis eviction"] == "fail"
    client.config_set("maxmemory", 1)
    client.config_set("appendfsync", "everysec")
    found = statuses(asked(servers, COUNTERSINK_REDIS_URL=url))
    assert (found["redis memory"], found["redis persistence"]) == ("fail", "warn")
    client.config_set("maxmemory", 0)
    client.config_set("appendonly", "no")
    assert statuses(asked(servers, COUNTERSINK_REDIS_URL=url))["redis persistence"] == "warn"
    client.replicaof("127.0.0.1", "1")
    assert statuses(asked(servers, COUNTERSINK_REDIS_URL=url))["redis role"] == "fail"


def test_which_master_the_sentinels_name(servers: Servers, servers_directory: Path) -> None:
    with Watched(servers_directory) as watched:
        url = watched.url

        def found(url: str) -> dict[str, dict[str, str]]:
            return lines(asked(servers, COUNTERSINK_REDIS_URL=url))

        first = found(url)
        assert first["redis sentinel"]["status"] == "ok"
        named = f"the master {MASTER} is 127.0.0.1:{watched.master.port}; 3 sentinels"
        assert named in first["redis sentinel"]["found"]
        assert "min-replicas-to-write 0" in first["redis role"]["found"]
        with watched.client(watched.master) as master:
            master.config_set("min-replicas-to-write", 1)
        assert found(url)["redis role"]["status"] == "ok"
        watched.replica.stop()

        def missed() -> bool:
            line = found(url)["redis sentinel"]
            return line["status"] == "warn" and "replica" in line["advice"]

        eventually(missed)
        assert "no sentinel knows" in found(watched.url_for("other"))["redis"]["found"]


def test_a_redis_user_without_rights_fails(
    servers: Servers, own_redis: tuple[str, redis.Redis]
) -> None:
    url, client = own_redis
    host = url.rpartition("@")[2]
    command(client, "ACL", "SETUSER", "app", "on", ">pw", "~*countersink:*", "+@all", "-xadd")
    found = lines(asked(servers, COUNTERSINK_REDIS_URL=f"redis://app:pw@{host}"))
    assert found["redis rights"]["status"] == "fail"
    assert "xadd" in found["redis rights"]["found"]
    command(client, "ACL", "SETUSER", "app", "+xadd", "-acl")
    found = lines(asked(servers, COUNTERSINK_REDIS_URL=f"redis://app:pw@{host}"))
    assert found["redis rights"]["status"] == "ok"
    assert "not checked" in found["redis rights"]["found"]


def test_rights_with_which_redis_cannot_load_its_file_fail(
    servers: Servers, own_redis: tuple[str, redis.Redis]
) -> None:
    url, client = own_redis
    command(client, "ACL", "SETUSER", "admin", "on", ">pw", "~*", "&*", "+@all")
    admin = f"redis://admin:pw@{url.rpartition('@')[2]}"
    for rules, status in (("-@all", "fail"), ("+@all", "ok")):
        command(client, "ACL", "SETUSER", "default", rules, "+acl")
        found = lines(asked(servers, COUNTERSINK_REDIS_URL=admin))["redis persistence"]
        assert found["status"] == status
        assert ("ACL SETUSER default" in found["advice"]) == (status == "fail")


def test_a_backlog_without_a_worker_and_dead_rows_are_warned_of(
    servers: Servers, redis_client: redis.Redis
) -> None:
    servers.call("increment", "c")
    found = lines(asked(servers))
    assert found["queue"]["status"] == "warn"
    assert "no worker runs" in found["queue"]["found"]
    redis_client.xadd("{countersink:0}:events", {"rows": "nonsense"})
    servers.apply()
    found = lines(asked(servers))
    assert found["dead rows"]["status"] == "warn"
    assert "countersink dead list" in found["dead rows"]["advice"]


def test_what_mysql_is_set_to(redis_url: str, own_mysql_server: MySQLFactory) -> None:
    server = own_mysql_server()
    servers = Servers(redis_url, server.url_for("doctored"))
    assert servers.call("migrate").status == 0
    found = statuses(asked(servers))
    assert found["mysql durability"] == "ok"
    servers.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    assert statuses(asked(servers))["mysql durability"] == "warn"
    servers.execute("SET GLOBAL read_only = ON")
    assert statuses(asked(servers))["mysql writable"] == "fail"


def test_each_of_several_hosts(redis_url: str, own_mysql_server: MySQLFactory) -> None:
    first, second = own_mysql_server(fast=True), own_mysql_server(fast=True)
    one, two, away = (f"127.0.0.1:{port}" for port in (first.port, second.port, free_port()))
    url = f"mysql://root:{first.password}@{one},{two},{away}/doctored"
    servers = Servers(redis_url, url)
    assert servers.call("migrate").status == 0
    found = lines(asked(servers))
    assert found[f"mysql host {one}"]["found"] == "used"
    assert found[f"mysql host {two}"]["found"] == "not used: takes writes, but is not the first"
    assert found[f"mysql host {away}"]["status"] == "warn"
    assert found[f"mysql host {away}"]["found"] == "refused the connection"
    assert found["mysql writers"]["status"] == "fail"
    assert f"{one} and {two} take writes" in found["mysql writers"]["found"]
    with connect_mysql(second.url, database=False) as session:
        session.execute("SET GLOBAL read_only = 1")
    found = lines(asked(servers))
    assert found[f"mysql host {two}"]["status"] == "ok"
    assert found[f"mysql host {two}"]["found"] == "not used: read only"
    assert "mysql writers" not in found
    assert found["schema"]["status"] == found["mysql writable"]["status"] == "ok"
    with connect_mysql(first.url, database=False) as session:
        session.execute("SET GLOBAL read_only = 1")
    found = lines(asked(servers))
    assert found["mysql"]["status"] == "fail"
    assert f"no host takes writes: {one}: read only; {two}: read only" in found["mysql"]["found"]

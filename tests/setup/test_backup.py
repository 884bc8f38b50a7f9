"""Backup and restore as docs/operations.md has them: what is counted once, and what is lost."""

from pathlib import Path

import pytest
import redis

from countersink.database.connection import connect
from countersink.database.migrate import migrate
from countersink.database.url import Settings
from countersink.producers import Producer
from countersink.store import Store
from countersink.store.verify import open_session, verify
from tests.clients.programs import output, redis_cli
from tests.support.databases import dropped, new_name
from tests.support.factories import RedisFactory
from tests.support.servers import MySQLServer, RedisServer
from tests.support.waiting import eventually
from tests.worker.running import drain


def restored_redis(make: RedisFactory, saved: Path) -> RedisServer:
    """The steps of the page: from the file, then with an append-only file made of it."""
    server = make(
        extra=["--appendonly", "no", "--dir", str(saved.parent), "--dbfilename", saved.name]
    )
    with redis.Redis.from_url(server.url) as client:
        client.config_set("appendonly", "yes")
        eventually(
            lambda: (
                client.info("persistence")["aof_rewrite_in_progress"] == 0
                and client.info("persistence")["aof_last_bgrewrite_status"] == "ok"
                and any(saved.parent.glob("appendonlydir/*.base.rdb"))
            )
        )
    server.kill()  # what the file holds is there after a start with the usual settings
    return make(extra=["--dir", str(saved.parent), "--dbfilename", saved.name])


def save_mysql(source: str, target: str) -> None:
    """What a dump in a single transaction holds, restored."""
    migrate(target)
    with connect(source, isolation="REPEATABLE READ") as reading, connect(target) as writing:
        with reading.transaction(snapshot=True):
            tables = reading.query(
                "SELECT table_name FROM information_schema.tables"
                " WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'"
                " AND table_name <> 'schema_version'"
            )
            saved = {table: reading.query(f"SELECT * FROM {table}") for (table,) in tables}
        with writing.transaction():
            for table, rows in saved.items():
                writing.execute(f"DELETE FROM {table}")
                for row in rows:
                    marks = ", ".join(["%s"] * len(row))
                    writing.execute(f"INSERT INTO {table} VALUES ({marks})", row)


def count(redis_url: str, amount: int) -> None:
    with Producer(redis_url) as producer:
        producer.increment("page_views", "/home", amount)
        assert producer.flush(20)


@pytest.mark.parametrize(
    ("applied_in_between", "total"),
    [
        (True, 10 + 200 + 3000),  # by the guards: not once more from the saved queue
        # What came after the saving of Redis, and was not applied, is lost.
        pytest.param(False, 10 + 200, marks=pytest.mark.long("the same way, and what it loses")),
    ],
)
def test_redis_first_then_mysql(
    own_redis_server: RedisFactory,
    mysql_server: MySQLServer,
    mysql_url: str,
    tmp_path: Path,
    applied_in_between: bool,
    total: int,
) -> None:
    live = own_redis_server()
    count(live.url, 10)
    assert drain(live.url, mysql_url) == 0
    count(live.url, 200)
    saved = tmp_path / "queue.rdb"
    redis_at, login = redis_cli(live.url)
    output([*redis_at, "--rdb", str(saved)], environment=login)
    count(live.url, 3000)
    if applied_in_between:
        assert drain(live.url, mysql_url) == 0
    with dropped(mysql_server, new_name()) as restored:
        save_mysql(mysql_url, restored)
        queue = restored_redis(own_redis_server, saved)
        assert drain(queue.url, restored) == 0
        assert Settings.parse(restored).database != Settings.parse(mysql_url).database
        with Store(restored) as store, open_session(restored) as session:
            assert store.totals.total("page_views") == total
            assert verify(session).differences == []

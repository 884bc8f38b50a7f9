"""Backup and restore as docs/how-to/upgrade-and-restore.md has them: what is counted once, and what
is lost.
"""

import re
from pathlib import Path

import pytest
import redis

from countersink.database.connection import connect
from countersink.database.url import Settings
from countersink.producers import Producer
from countersink.store import Store
from countersink.store.verify import open_session, verify
from tests.clients.programs import output, redis_cli
from tests.support.databases import dropped, new_name
from tests.support.factories import RedisFactory
from tests.support.processes import PROJECT
from tests.support.servers import MySQLServer, RedisServer
from tests.support.waiting import eventually
from tests.worker.running import drain

PAGE = PROJECT / "docs/how-to/upgrade-and-restore.md"


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


def page_command(part: str) -> str:
    """The command of the page in which ``part`` is, without its comment."""
    [found] = re.findall(rf"^({re.escape(part)} .*?)(?:    #.*)?$", PAGE.read_text(), re.MULTILINE)
    return str(found)


def by_bash(command: str, url: str, directory: Path) -> None:
    """Run a command of the page for the database at ``url``, in a directory."""
    at = Settings.parse(url)
    assert at.database is not None
    options = {"host": at.host, "port": at.port, "user": at.user, "password": at.password}
    lines = [f"{name}={value}" for name, value in options.items()]
    # The tests' servers have no TLS, which clients of MariaDB 11.8 require unless told otherwise.
    lines = ["[client]", *lines, "[client-mariadb]", "skip-ssl"]
    (directory / ".my.cnf").write_text("\n".join(lines))
    command = command.replace(" countersink ", f" {at.database} ")
    output(["bash", "-ec", f"cd {directory} && {command}"], environment={"HOME": str(directory)})


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
    by_bash(page_command("mysqldump"), mysql_url, tmp_path)
    with dropped(mysql_server, new_name()) as restored:
        with connect(restored, database=False) as session:
            session.execute(f"CREATE DATABASE {Settings.parse(restored).database}")
        by_bash(page_command("mysql"), restored, tmp_path)
        queue = restored_redis(own_redis_server, saved)
        assert drain(queue.url, restored) == 0
        count(queue.url, 40_000)  # it goes on
        assert drain(queue.url, restored) == 0
        with Store(restored) as store, open_session(restored) as session:
            assert store.totals.total("page_views") == total + 40_000
            assert verify(session).differences == []

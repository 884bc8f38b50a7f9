"""The private servers: own data, own port, clean end, and nothing left behind."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pymysql
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from countersink.cli import servers as server_programs
from countersink.cli.errors import ServerFailed, ServerMissing
from countersink.cli.private_server import free_port
from tests.support.factories import MySQLFactory, RedisFactory
from tests.support.processes import is_running
from tests.support.servers import Kind, MySQLServer, RedisServer
from tests.support.waiting import eventually

FLUSHES = "SELECT @@innodb_flush_log_at_trx_commit"
NO_RETRY = Retry(NoBackoff(), 0)


def sql(server: MySQLServer, statement: str) -> list[tuple[object, ...]]:
    connection = pymysql.connect(
        host="127.0.0.1",
        port=server.port,
        user="root",
        password=server.password,
        autocommit=True,
        read_timeout=20,
    )
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())
    finally:
        connection.close()


def test_redis_keeps_its_data_and_port_through_a_clean_restart(
    own_redis_server: RedisFactory,
) -> None:
    server = own_redis_server()
    port = server.port
    with redis.Redis.from_url(server.url) as client:
        client.set("kept", "1")
        server.restart()
        assert server.port == port
        assert client.get("kept") == b"1"
    for end in (server.stop, server.stop, server.kill):
        end()
        assert not server.running


def test_redis_never_evicts_keeps_a_file_and_a_password_unless_options_say_else(
    own_redis_server: RedisFactory,
) -> None:
    server = own_redis_server()
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
    with (
        redis.Redis(host="127.0.0.1", port=server.port, retry=NO_RETRY) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
    server = own_redis_server(extra=("--maxmemory", "10mb", "--appendonly", "no"))
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        assert client.config_get("appendonly") == {"appendonly": "no"}
        assert client.config_get("maxmemory") == {"maxmemory": str(10 * 1024 * 1024)}


def test_mysql_keeps_its_commits_and_port_through_kill_and_restart(
    own_mysql_server: MySQLFactory,
) -> None:
    server = own_mysql_server()
    port = server.port
    assert sql(server, FLUSHES) == [(1,)]
    sql(server, "CREATE DATABASE kept")
    server.kill()
    server.start()
    assert server.port == port
    assert ("kept",) in sql(server, "SHOW DATABASES")
    server.restart()
    assert ("kept",) in sql(server, "SHOW DATABASES")


def test_mysql_listens_on_loopback_and_asks_for_its_password(mysql_server: MySQLServer) -> None:
    assert sql(mysql_server, "SELECT @@bind_address") == [("127.0.0.1",)]
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root", password="")
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        pymysql.connect(unix_socket=str(mysql_server.socket), user="root", password="")


def test_a_new_data_directory_is_made_without_a_template(tmp_path: Path, server_kind: Kind) -> None:
    with MySQLServer(tmp_path / "new", kind=server_kind) as server:
        [(files,)] = sql(server, "SELECT COALESCE(@@secure_file_priv, 'NULL')")
        # No file of this machine can be read by a statement, nor written where others look.
        assert (
            str(files).rstrip("/")
            == {
                "mysql": "NULL",
                "mariadb": str(tmp_path / "new" / "tmp"),
            }[server_kind]
        )
    assert not server.running


def test_a_frozen_server_can_be_stopped_and_killed(own_redis_server: RedisFactory) -> None:
    for end in (RedisServer.stop, RedisServer.kill):
        server = own_redis_server()
        pid = server.pid
        server.freeze()
        end(server)
        assert not is_running(pid)


def test_a_password_is_readable_by_its_owner_alone_and_not_shown(
    redis_server: RedisServer, mysql_server: MySQLServer
) -> None:
    for server in (redis_server, mysql_server):
        shown = repr(server) + Path(f"/proc/{server.pid}/cmdline").read_text()
        assert server.password not in shown
        secrets = [f for f in server.directory.iterdir() if f.is_file() and f.suffix != ".log"]
        holding = [f for f in secrets if server.password in f.read_text(errors="replace")]
        assert holding
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in holding)


def test_a_drawn_port_that_was_taken_meanwhile_is_drawn_again(
    own_redis_server: RedisFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = own_redis_server().port
    drawn = iter([taken, taken])
    monkeypatch.setattr(
        "countersink.cli.private_server.free_port", lambda: next(drawn, None) or free_port()
    )
    with RedisServer(tmp_path) as server:
        assert server.port != taken


def test_a_data_directory_with_a_long_path_still_gets_a_socket(tmp_path: Path) -> None:
    long = tmp_path / ("a" * 60) / ("b" * 60)
    with RedisServer(long) as server:
        assert len(os.fsencode(server.socket)) < 108
        assert server.socket.exists()
        used = server.socket.parent
    assert not used.exists()


def test_a_server_started_from_a_short_lived_thread_outlives_it(
    own_redis_server: RedisFactory,
) -> None:
    made: list[RedisServer] = []
    thread = threading.Thread(target=lambda: made.append(own_redis_server()))
    thread.start()
    thread.join()
    with redis.Redis.from_url(made[0].url) as client:
        assert client.ping()


@pytest.mark.parametrize(
    "kind", ["redis", pytest.param("mysql", marks=pytest.mark.long("ends in the same way"))]
)
def test_a_killed_process_leaves_no_server_behind(
    tmp_path: Path, kind: str, server_kind: Kind
) -> None:
    program = f"""
        import signal
        from tests.support.servers import MySQLServer, RedisServer
        from tests.support.templates import template
        if {kind!r} == "redis":
            server = RedisServer({str(tmp_path)!r})
        else:
            server = MySQLServer(
                {str(tmp_path)!r}, kind={server_kind!r}, template=template({server_kind!r})
            )
        print(server.start().pid, flush=True)
        signal.pause()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_running(pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    eventually(lambda: not is_running(pid))


def test_a_missing_program_is_one_line_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_programs, "find_program", lambda program: None)
    monkeypatch.delenv("COUNTERSINK_REDIS_SERVER", raising=False)
    with pytest.raises(ServerMissing, match="install the package redis-server"):
        RedisServer(tmp_path / "r").start()
    with pytest.raises(ServerMissing, match="install the packages mariadb-server-core and"):
        MySQLServer(tmp_path / "m").start()
    monkeypatch.delenv("COUNTERSINK_MYSQLD", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ServerMissing, match="make test-mysql"):
        MySQLServer(tmp_path / "y", kind="mysql").start()


def test_the_next_process_on_a_directory_gets_the_same_port_and_password(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as first:
        url = first.url
    with RedisServer(tmp_path) as second:
        assert second.url == url


def test_a_kept_port_that_was_taken_meanwhile_is_drawn_anew(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "a") as first:
        port = first.port
    with RedisServer(tmp_path / "other", port=port), RedisServer(tmp_path / "a") as second:
        assert second.port != port


def test_no_second_server_starts_on_data_that_is_in_use(
    own_redis_server: RedisFactory, own_mysql_server: MySQLFactory
) -> None:
    for running in (own_redis_server(), own_mysql_server(fast=True)):
        second = type(running)(running.directory)
        second.stop_timeout = 0.1
        with pytest.raises(ServerFailed, match=f"process {running.pid}\\) still runs"):
            second.start()
        assert running.running


def test_a_start_waits_for_the_end_of_the_server_before_it(own_redis_server: RedisFactory) -> None:
    first = own_redis_server()
    second = RedisServer(first.directory)
    ending = threading.Timer(0.2, first.stop)
    ending.start()
    with second:  # else it would have found the directory in use
        ending.join()
        assert not first.running

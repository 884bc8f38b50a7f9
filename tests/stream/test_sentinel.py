"""Redis Sentinel: one URL, by which each connection finds the master of the moment."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis._parsers import _HiredisParser, _RESP2Parser
from redis.sentinel import SentinelConnectionPool

from countersink.cli.private_server import LOOPBACK, free_port
from countersink.stream import sentinel
from countersink.stream.connection import SOCKET_TIMEOUT, command, connect, mapped, redact
from countersink.stream.errors import StreamMisconfigured, StreamUnavailable
from countersink.stream.sentinel import SENTINEL_TIMEOUT, Sentinels, watched
from tests.support.certificates import make_certificates
from tests.support.entries import beside, together
from tests.support.factories import RedisFactory
from tests.support.proxies import Deed, Phase, RedisProxy
from tests.support.proxies.tcp import Link
from tests.support.sentinels import MASTER, SentinelServer, Watched
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def servers(servers_directory: Path) -> Iterator[Watched]:
    """A master, its replica and three sentinels; a test that changes them makes its own."""
    with Watched(servers_directory) as made:
        yield made


def pool_of(url: str) -> SentinelConnectionPool:
    pool = connect(url).connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    return pool


def sentinels_of(pool: redis.ConnectionPool) -> list[tuple[str, int]]:
    assert isinstance(pool, SentinelConnectionPool)
    options = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    return [(each["host"], each["port"]) for each in options]


@pytest.mark.parametrize(
    ("url", "hosts", "name", "database"),
    [
        ("redis+sentinel://a:1,b:2,c:3/m/7", [("a", 1), ("b", 2), ("c", 3)], "m", 7),
        ("redis+sentinel://a,b:2/m", [("a", 26379), ("b", 2)], "m", 0),
        ("valkey+sentinel://u:p@a/m/", [("a", 26379)], "m", 0),
        ("redis+sentinel://[::1],[fe80::1]:5/m%2F1/2", [("::1", 26379), ("fe80::1", 5)], "m/1", 2),
        ("valkeys+sentinel://s.example/m", [("s.example", 26379)], "m", 0),
    ],
)
def test_a_url_names_sentinels_master_and_database(
    url: str, hosts: list[tuple[str, int]], name: str, database: int
) -> None:
    pool = pool_of(url)
    assert sentinels_of(pool) == hosts
    assert pool.service_name == name
    assert pool.connection_kwargs["db"] == database


def test_credentials_of_the_sentinels_are_apart_from_those_of_the_servers() -> None:
    pool = pool_of(
        "rediss+sentinel://app:p%40w@a/m?sentinel_username=watch&sentinel_password=p%2Fw"
        f"&ssl_ca_certs={__file__}&socket_timeout=7"
    )
    servers = pool.connection_kwargs
    assert (servers["username"], servers["password"]) == ("app", "p@w")
    assert (servers["socket_timeout"], servers["socket_connect_timeout"]) == (7, SOCKET_TIMEOUT)
    sentinels = pool.sentinel_manager.sentinels[0].connection_pool.connection_kwargs
    assert (sentinels["username"], sentinels["password"]) == ("watch", "p/w")
    assert sentinels["socket_timeout"] == sentinels["socket_connect_timeout"] == SENTINEL_TIMEOUT
    for options in (servers, sentinels):
        assert options["ssl_ca_certs"] == __file__
        assert options["ssl_check_hostname"] is True
        assert options["retry"]._retries == 0


def test_valkey_is_another_spelling(redis_url: str) -> None:
    assert connect(redis_url.replace("redis://", "valkey://")).ping()
    assert connect("valkeys://h/0").connection_pool.connection_kwargs["ssl_check_hostname"] is True


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis+sentinel://u:s3cret@a:1,b:2/m/0", "redis+sentinel://u:***@a:1,b:2/m/0"),
        ("valkey+sentinel://:s3cret@[::1],[::2]/m", "valkey+sentinel://:***@[::1],[::2]/m"),
        (
            "redis+sentinel://a/m?sentinel_password=s3cret&x=1",
            "redis+sentinel://a/m?sentinel_password=***&x=1",
        ),
        (
            "redis+sentinel://a/m?sentinel_password=s3%63ret@s3cret#s3cret",
            "redis+sentinel://a/m?sentinel_password=***",
        ),
        (
            "redis+sentinel://a/m?sentinel%5Fpass%77ord=s3cret",
            "redis+sentinel://a/m?sentinel%5Fpass%77ord=***",
        ),
        ("redis+sentinel://u:s3cret@a,u:s3cret@b/m", "redis+sentinel://u:***@b/m"),
        ("redis+sentinel://u:x/s3cret@a/m", "redis+sentinel://u:***@a/m"),
        ("redis+sentinel://s3/cret@a/m", "redis+sentinel://***@a/m"),
        ("redis://u:p?password=x&y=s3cret@a/0", "redis://u:***@a/0"),
        ("redis://:s3cret", "redis://:***"),
        ("redis://u:s3cret/0", "redis://u:***/0"),
        ("redis://[::1]:s3cret", "redis://[::1]:***"),
        ("redis+cluster://a:1,b:s3cret,[::1]:7", "redis+cluster://a:1,b:***,[::1]:7"),
        ("redis://:12345678@a:1,b:23456789", "redis://:***@a:1,b:***"),
        ("u:s3cret@a/m", "u:***@a/m"),
        ("redis://user@a/0", "redis://user@a/0"),
        ("unix:///run/r.sock?password=s3cret", "unix:///run/r.sock?password=***"),
        ("rediss://u:s3cret@[::1]:1/0", "rediss://u:***@[::1]:1/0"),
        ("redis://u:s3cret@[bad", "redis://u:***@[bad"),
        ("redis://u:a#s3cret@localhost:6379/0", "redis://u:***@localhost:6379/0"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert redact(url) == shown
    with pytest.raises(StreamMisconfigured) as caught:
        connect("x" + url)
    assert "s3" not in str(caught.value)


def test_commands_go_to_the_master_and_replies_are_the_protocols(servers: Watched) -> None:
    client = connect(servers.url_for(database=3), client_name="a-name")
    key = command(client, "XADD", "raw", "*", "a", "1", "a", "2")
    assert command(client, "XRANGE", "raw", "-", "+") == [[key, [b"a", b"1", b"a", b"2"]]]
    with servers.client(servers.master) as master:
        assert any(each["name"] == "a-name" and each["db"] == "3" for each in master.client_list())
        assert master.exists("raw") == 0  # that is database 0


def test_a_wrong_password_of_the_sentinels_is_said(servers: Watched) -> None:
    url = servers.url.partition("?")[0]
    for wrong, said in (
        ("", "uthentication required"),
        ("?sentinel_password=x", "WRONGPASS|invalid"),
    ):
        with pytest.raises(StreamMisconfigured, match=said):
            command(connect(url + wrong), "PING")


def test_a_wrong_password_of_the_master_is_a_misconfiguration(servers: Watched) -> None:
    url = servers.url.replace("default:", "nobody:")
    with pytest.raises(StreamMisconfigured, match="refuses"):
        command(connect(url), "PING")


def test_sentinels_that_are_away_are_passed_over_and_threads_lose_none(servers: Watched) -> None:
    alive = servers.sentinels[1].port
    hosts = f"{LOOPBACK}:{free_port()},{LOOPBACK}:{alive},{LOOPBACK}:{free_port()}"
    client = connect(servers.url_for(hosts=hosts))
    assert client.ping()
    assert sentinels_of(client.connection_pool)[0][1] == alive
    pool: Any = client.connection_pool
    known = sorted(sentinels_of(client.connection_pool))

    def ask() -> None:
        for _ in range(20):
            assert client.ping()
            pool.sentinel_manager.discover_master(MASTER)

    together(*[ask] * 8)
    assert sorted(sentinels_of(client.connection_pool)) == known


def in_a_child(work: Callable[[], int]) -> int:
    """What ``work`` returns in a process that is forked off."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, b"%d" % work())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as told:
        return int(told.read())


def test_a_child_has_connections_of_its_own(servers: Watched) -> None:
    client = connect(servers.url)
    mine = command(client, "CLIENT", "ID")
    assert in_a_child(lambda: int(command(client, "CLIENT", "ID"))) != mine
    assert command(client, "CLIENT", "ID") == mine


def test_a_reply_that_was_not_read_answers_no_other_command(servers: Watched) -> None:
    class Enough(Exception):
        pass

    def enough(*_: object) -> None:
        raise Enough

    client = connect(servers.url)
    assert client.ping()
    before = signal.signal(signal.SIGALRM, enough)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(Enough):
            client.blpop("nothing", 3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert client.ping() is True


def test_what_the_sentinels_know(servers: Watched, redis_url: str) -> None:
    seen = watched(connect(servers.url))
    assert seen is not None
    assert (seen.name, seen.sentinels, seen.replicas) == (MASTER, 3, 1)
    assert seen.address == f"{LOOPBACK}:{servers.master.port}"
    assert watched(connect(redis_url)) is None


@pytest.fixture
def behind_a_proxy(
    own_redis_server: RedisFactory, tmp_path: Path
) -> Iterator[tuple[str, redis.Redis, RedisProxy]]:
    """A sentinel whose master is behind a proxy: URL, a client of the server itself, the proxy."""
    server = own_redis_server()
    with (
        RedisProxy.to(server.url) as proxy,
        SentinelServer(tmp_path / "s", proxy.port, server.password) as sentinel,
        connect(server.url) as direct,
    ):
        url = (
            f"redis+sentinel://:{server.password}@{LOOPBACK}:{sentinel.port}/{MASTER}"
            f"?sentinel_password={sentinel.password}"
        )
        yield url, direct, proxy


def test_a_command_whose_reply_is_lost_is_sent_once(
    behind_a_proxy: tuple[str, redis.Redis, RedisProxy],
) -> None:
    url, direct, proxy = behind_a_proxy
    client = connect(url)
    cut = proxy.when("XADD", Phase.AFTER, Deed.CUT, times=0)
    with pytest.raises(StreamUnavailable), mapped():
        client.xadd("once", {"a": 1})
    pipe = client.pipeline(transaction=False)
    pipe.xadd("once", {"a": 2})
    with pytest.raises(StreamUnavailable), mapped():
        pipe.execute(raise_on_error=False)
    assert direct.xlen("once") == cut.acted == 2


def test_a_master_that_became_a_replica_is_left(
    behind_a_proxy: tuple[str, redis.Redis, RedisProxy],
) -> None:
    url, direct, proxy = behind_a_proxy
    client = connect(url)
    assert client.xadd("s", {"a": 1})
    refused = proxy.when("XADD", Phase.BEFORE, Deed.PASS, times=0)
    direct.replicaof(LOOPBACK, str(free_port()))
    for _ in range(2):
        with pytest.raises(StreamUnavailable), mapped():
            client.xadd("s", {"a": 2})
    assert refused.acted == 2  # each sent once, though redis-py calls it a lost connection
    assert not any(each._sock for each in client.connection_pool._available_connections)
    direct.replicaof("NO", "ONE")
    assert client.xadd("s", {"a": 3})


def test_a_master_that_hangs_is_left_once_the_sentinels_name_another(
    servers_directory: Path,
) -> None:
    with Watched(servers_directory) as servers:
        old, new = servers.master, servers.replica
        client = connect(servers.url, socket_timeout=300.0)
        assert client.ping()
        old.freeze()
        try:
            with beside(lambda: command(client, "PING")) as waiting:
                eventually(lambda: servers.is_master(new))
            assert isinstance(waiting.exception(0), StreamUnavailable)
            assert command(client, "CONFIG", "GET", "port") == [b"port", b"%d" % new.port]
        finally:
            old.thaw()


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The sentinels are asked very soon; how often they were."""
    made: list[object] = []
    discover = Sentinels.discover_master

    def noted(sentinels: Sentinels, name: str) -> tuple[str, int]:
        made.append(name)
        return discover(sentinels, name)

    monkeypatch.setattr(sentinel, "ASK_S", 0.05)
    monkeypatch.setattr(Sentinels, "discover_master", noted)
    return made


@pytest.mark.parametrize("parser", [_HiredisParser, _RESP2Parser])
def test_a_long_command_of_a_living_master_is_not_broken_off(
    behind_a_proxy: tuple[str, redis.Redis, RedisProxy],
    asks: list[object],
    monkeypatch: pytest.MonkeyPatch,
    parser: type,
) -> None:
    """Nor is a reply that comes in pieces."""
    url, direct, _ = behind_a_proxy
    client = connect(url, socket_timeout=60.0)
    client.connection_pool.connection_kwargs["parser_class"] = parser
    mine = command(client, "CLIENT", "ID")
    asks.clear()
    with beside(lambda: client.blpop("list", 30)) as waiting:
        eventually(lambda: len(asks) > 2)
        direct.rpush("list", "one")
    assert waiting.result(0) == (b"list", b"one")
    direct.set("text", "a" * 1000)
    send = Link.send

    def in_pieces(link: Link, to: socket.socket, data: bytes) -> None:
        if data.startswith(b"$1000"):
            asks.clear()
            send(link, to, data[:500])
            eventually(lambda: len(asks) > 2)
            data = data[500:]
        send(link, to, data)

    monkeypatch.setattr(Link, "send", in_pieces)
    assert client.get("text") == b"a" * 1000
    assert command(client, "CLIENT", "ID") == mine


def test_a_late_reply_of_a_master_that_was_replaced_counts_for_nothing(
    behind_a_proxy: tuple[str, redis.Redis, RedisProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of a master that goes on after it was frozen, and loses what it has taken since."""
    url, direct, proxy = behind_a_proxy
    client = connect(url, socket_timeout=60.0)
    assert client.ping()
    pool: Any = client.connection_pool
    (watching,) = pool.sentinel_manager.sentinels
    port = direct.connection_pool.connection_kwargs["port"]
    held = proxy.when("PING", Phase.AFTER, Deed.HOLD)
    discover = Sentinels.discover_master

    def replaced_afterwards(sentinels: Sentinels, name: str) -> tuple[str, int]:
        """Answers, and then the reply comes, and another server is the master."""
        found = discover(sentinels, name)
        if not held.release.is_set():
            password = direct.connection_pool.connection_kwargs["password"]
            watching.execute_command("SENTINEL", "REMOVE", name)
            watching.execute_command("SENTINEL", "MONITOR", name, LOOPBACK, port, 1)
            watching.execute_command("SENTINEL", "SET", name, "auth-pass", password)
            held.release.set()
        return found

    monkeypatch.setattr(Sentinels, "discover_master", replaced_afterwards)
    with pytest.raises(StreamUnavailable, match="another server is the master"):
        command(client, "PING")
    assert command(client, "PING") is True
    assert pool.master_address == (LOOPBACK, port)


def test_the_time_out_of_a_master_that_nobody_replaces(
    behind_a_proxy: tuple[str, redis.Redis, RedisProxy], asks: list[object]
) -> None:
    url, _, proxy = behind_a_proxy
    client = connect(url, socket_timeout=0.5)
    assert client.ping()
    held = proxy.when("PING", Phase.BEFORE, Deed.HOLD)
    with pytest.raises(StreamUnavailable, match="Timeout"):
        command(client, "PING")
    held.release.set()
    assert len(asks) > 2
    assert client.ping()


def test_tls_to_servers_and_sentinels_verifies_certificate_and_name(
    own_redis_server: RedisFactory, tmp_path: Path
) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    make_certificates(right, LOOPBACK)
    make_certificates(wrong, "127.0.0.9")

    def tls(directory: Path, port: int) -> tuple[str, ...]:
        return (
            *("--tls-port", str(port), "--tls-cert-file", str(directory / "cert.pem")),
            *("--tls-key-file", str(directory / "key.pem"), "--tls-auth-clients", "no"),
            *("--tls-ca-cert-file", str(directory / "ca.pem"), "--tls-replication", "yes"),
        )

    ports = [free_port() for _ in range(3)]
    server = own_redis_server(extra=tls(right, ports[0]))
    made = [
        SentinelServer(
            tmp_path / f"s{number}", ports[0], server.password, tls(directory, ports[number])
        )
        for number, directory in ((1, right), (2, wrong))
    ]
    with made[0], made[1]:

        def url(number: int, directory: Path) -> str:
            return (
                f"rediss+sentinel://:{server.password}@{LOOPBACK}:{ports[number]}/{MASTER}"
                f"?sentinel_password={made[number - 1].password}"
                f"&ssl_ca_certs={directory / 'ca.pem'}"
            )

        assert connect(url(1, right)).ping()
        with pytest.raises(StreamUnavailable, match=r"(?i)certificate verify failed"):
            command(connect(url(1, wrong)), "PING")
        with pytest.raises(StreamUnavailable, match=r"(?i)address mismatch|not valid for"):
            command(connect(url(2, wrong)), "PING")

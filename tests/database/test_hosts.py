"""A URL with several hosts: which one a session goes to, and what is said if none takes writes."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from countersink.database import connection, hosts
from countersink.database.connection import connect
from countersink.database.errors import (
    OtherWriter,
    ReadInterrupted,
    Refused,
    SchemaMismatch,
    StoreError,
    Unavailable,
)
from countersink.database.migrate import migrate
from countersink.database.sessions import KeptSession, Pool
from countersink.database.url import Settings
from countersink.store import Store
from tests.support import group_replication
from tests.support.databases import new_name
from tests.support.entries import beside
from tests.support.examples import MANY
from tests.support.factories import MySQLFactory
from tests.support.replication import ask, port_of, run
from tests.support.servers import Kind, MySQLServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.servers("mariadb", "mysql")


@pytest.fixture(scope="module")
def started(servers_directory: Path, server_kind: Kind) -> Iterator[tuple[MySQLServer, ...]]:
    """Two servers that know nothing of each other, and a user who may not write where it is
    forbidden.
    """
    plugins = (f"--plugin-dir={group_replication._PLUGINS}",) if server_kind == "mysql" else ()
    with MySQLFactory(servers_directory, server_kind) as make:
        both = make(fast=True, extra=plugins), make(fast=True, extra=plugins)
        for server in both:
            run(server, "CREATE USER app@'%' IDENTIFIED BY 'geheim'")
            run(server, "GRANT ALL ON `test\\_%`.* TO app@'%'")
        yield both


@pytest.fixture
def first(started: tuple[MySQLServer, ...]) -> Iterator[MySQLServer]:
    """The first host of the URL; it takes writes."""
    yield started[0]
    run(started[0], "SET GLOBAL read_only = 0")


@pytest.fixture
def second(started: tuple[MySQLServer, ...]) -> Iterator[MySQLServer]:
    """The second one; it takes writes, too."""
    yield started[1]
    run(started[1], "SET GLOBAL read_only = 0")


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test learns of hosts is forgotten."""
    monkeypatch.setattr(hosts, "_silent", {})


def url_of(*ports: int, database: str = "") -> str:
    listed = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"mysql://app:geheim@{listed}/{database}"


def port(url: str) -> int:
    with connect(url, database=False) as session:
        return port_of(session)


@contextmanager
def unused_port() -> Iterator[int]:
    """Where nobody listens: connections are refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_the_first_in_the_urls_order_that_takes_writes(
    first: MySQLServer, second: MySQLServer
) -> None:
    url = url_of(first.port, second.port)
    assert port(url) == first.port
    assert port(url_of(second.port, first.port)) == second.port
    run(first, "SET GLOBAL read_only = 1")
    assert port(url) == second.port
    run(first, "SET GLOBAL read_only = 0")
    assert port(url) == first.port
    with unused_port() as nobody:
        assert port(url_of(nobody, second.port, first.port)) == second.port


def test_no_host_takes_writes(first: MySQLServer) -> None:
    run(first, "SET GLOBAL read_only = 1")
    with unused_port() as nobody, pytest.raises(Unavailable) as caught:
        connect(url_of(nobody, first.port), database=False)
    assert str(caught.value) == (
        f"no host takes writes: 127.0.0.1:{nobody}: refused the connection;"
        f" 127.0.0.1:{first.port}: read only"
    )


def test_a_login_that_all_refuse_is_refused(first: MySQLServer, second: MySQLServer) -> None:
    url = url_of(first.port, second.port).replace("geheim", "falsch")
    with pytest.raises(Refused, match=f"{first.port}: .*password.*{second.port}: ") as caught:
        connect(url, database=False)
    assert caught.value.code == 1045


def test_the_database_is_made_where_writes_go(first: MySQLServer, second: MySQLServer) -> None:
    name = new_name()
    url = url_of(first.port, second.port, database=name)
    run(first, "SET GLOBAL read_only = 1")
    with pytest.raises(SchemaMismatch, match="countersink migrate"):
        connect(url)
    assert migrate(url)
    assert not ask(first, f"SHOW DATABASES LIKE '{name}'")
    with Store(url) as store:
        assert store.counters.list() == []


def test_a_session_moves_when_its_server_becomes_read_only(
    first: MySQLServer, second: MySQLServer
) -> None:
    name = new_name()
    url = url_of(first.port, second.port, database=name)
    for server in (first, second):
        migrate(url_of(server.port, database=name))
    kept = KeptSession(partial(connect, url))
    write = "INSERT INTO lease VALUES ('x', '', 0)"
    assert port_of(kept()) == first.port
    run(first, "SET GLOBAL read_only = 1")
    with pytest.raises(Unavailable) as caught:
        kept().execute(write)
    assert caught.value.code == 1290
    assert kept().execute(write) == 1
    assert port_of(kept()) == second.port
    run(first, "SET GLOBAL read_only = 0")  # it is back: who has a session keeps it
    assert port_of(kept()) == second.port
    kept.close()


def test_sessions_that_read_move_with_the_writes_and_are_not_kept_for_long(
    first: MySQLServer, second: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted on the new primary would be missing in what an old one answers; and all
    processes come to the first host again that takes writes.
    """
    url = url_of(first.port, second.port)
    pool = Pool(partial(connect, url, database=False, isolation="REPEATABLE READ"))
    assert pool.read(port_of) == first.port
    monkeypatch.setattr(connection, "MOVE_S", 0.0)  # of the next session
    run(first, "SET GLOBAL read_only = 1")
    assert pool.read(port_of) == second.port
    run(first, "SET GLOBAL read_only = 0")
    assert pool.read(port_of) == first.port
    pool.close()


def test_a_statement_is_ended_on_the_server_where_it_runs(
    first: MySQLServer, second: MySQLServer
) -> None:
    run(first, "SET GLOBAL read_only = 1")
    with connect(url_of(first.port, second.port), database=False) as session:
        run(first, "SET GLOBAL read_only = 0")  # where a new session would go
        listed = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%SLEEP(60)'"
        with beside(lambda: session.query("SELECT 1 WHERE SLEEP(60)")) as waiting:
            eventually(lambda: ask(second, listed)[0][0] == 1)
            connection.interrupt(session)
    assert type(waiting.exception()) is ReadInterrupted


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hung host is left soon."""
    monkeypatch.setattr(hosts, "PATIENCE_S", 0.2)
    monkeypatch.setattr(hosts, "PROBE_S", 1.5)


@pytest.mark.random
@pytest.mark.usefixtures("impatient")
def test_a_session_leaves_a_hung_host_once_another_one_takes_writes(
    first: MySQLServer, second: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not MANY:
        monkeypatch.setattr(hosts, "PROBE_S", 0.5)
        monkeypatch.setattr(hosts, "SLOW_S", 0.2)
    run(second, "SET GLOBAL read_only = 1")
    url = url_of(first.port, second.port)
    with connect(url, database=False, read_timeout=300.0) as session:
        first.freeze()
        try:
            # It may answer once more before it stops.
            with beside(lambda: all(iter(session.answers, False))) as waiting:
                eventually(lambda: hosts._silent)  # it was looked at, and nobody else takes writes
                assert not waiting.done()
                run(second, "SET GLOBAL read_only = 0")
            assert waiting.done()
            assert port(url) == second.port
        finally:
            first.thaw()


@pytest.mark.usefixtures("impatient")
def test_a_long_statement_on_a_healthy_host_is_not_broken_off(
    first: MySQLServer, second: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    look = hosts.Watch._has_moved

    def noted(watch: hosts.Watch, where: Settings, session: hosts.Waiting, since: float) -> bool:
        looks.append(session)
        return look(watch, where, session, since)

    monkeypatch.setattr(hosts.Watch, "_has_moved", noted)
    url = url_of(first.port, second.port)
    with connect(url, database=False, read_timeout=300.0) as session:

        def end() -> None:
            eventually(lambda: len(looks) > 2)
            connection.interrupt(session)

        with beside(end), pytest.raises(ReadInterrupted):
            session.query("SELECT 1 WHERE SLEEP(100)")
        assert not session.closed


def test_a_child_leaves_its_parents_sessions_alone(first: MySQLServer, second: MySQLServer) -> None:
    """It would break the socket that both have."""
    url = url_of(first.port, second.port)
    with connect(url, database=False):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                session = connect(url, database=False)
                status = 0 if list(connection._watch._sessions) == [session] else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Hung:
    """A session that waits, and says when it was broken off."""

    def __init__(self, where: Settings, since: float | None = 0.0, address: str = "") -> None:
        self.where = where
        self.waiting_since = since
        self.address = address
        self.aborted = threading.Event()

    def abort(self) -> None:
        self.aborted.set()


def test_a_bug_does_not_end_the_watch() -> None:
    settings = Settings.parse(url_of(1, 2))
    one, two = settings.each_host()
    asked: list[Settings] = []

    def log_in(host: Settings) -> socket.socket:
        asked.append(host)
        if len(asked) == 1:
            raise ValueError("invalid literal for int()")
        if host == one:
            raise Unavailable("read only")
        return socket.socket()

    watch, session = hosts.Watch(log_in), Hung(one)
    watch.add(session, settings)
    assert session.aborted.wait(20.0)
    assert asked == [one, one, two]


@pytest.mark.parametrize(
    ("code", "answers", "given_up"),
    [
        (0, False, True),
        (0, True, False),
        (1226, False, False),  # at a limit of connections it serves those who are connected
    ],
)
def test_all_sessions_to_a_host_are_given_up_unless_it_answers_after_all(
    code: int, answers: bool, given_up: bool
) -> None:
    """A thread that uses one after the other waits once, and not for each of them."""
    settings = Settings.parse(url_of(1, 2))
    one, two = settings.each_host()
    long, just, idle = Hung(one), Hung(one, time.monotonic()), Hung(one, None)
    elsewhere = Hung(two, None)

    def log_in(host: Settings) -> socket.socket:
        if host == one:
            raise Unavailable("did not answer in time", code=code)
        if answers:
            long.waiting_since = None
        return socket.socket()

    hosts.Watch(log_in)._check([(each, settings) for each in (elsewhere, idle, just, long)])
    assert {each.aborted.is_set() for each in (long, just, idle)} == {given_up}
    assert not elsewhere.aborted.is_set()


class Node(socket.socket):
    """A node of Galera that takes writes, and what it says of the one that sessions wait for."""

    says: bool | None = None

    def excludes(self, session: Hung) -> bool:
        if self.says is None:
            raise Unavailable("a Galera node that is non-Primary")
        session.waiting_since = time.monotonic()  # one that goes on answers all but COMMIT
        return self.says


@pytest.mark.parametrize(
    ("address", "says", "asked", "given_up"),
    [
        ("h1:3306", (True, None), 1, True),
        ("h1:3306", (None, True), 2, True),
        ("h1:3306", (False, True), 1, False),  # who is in the cluster knows
        ("h1:3306", (None, None), 2, False),
        ("", (True, True), 0, False),
    ],
)
def test_the_others_tell_whether_a_node_is_in_the_cluster(
    address: str, says: tuple[bool | None, ...], asked: int, given_up: bool
) -> None:
    """Whatever it says of itself."""
    settings = Settings.parse(url_of(1, 2, 3))
    one, *others = settings.each_host()
    looked: list[Settings] = []

    def log_in(host: Settings) -> Node:
        looked.append(host)
        node = Node()
        node.says = says[others.index(host)] if host in others else None
        return node

    session = Hung(one, address=address)
    hosts.Watch(log_in)._check([(session, settings)])
    assert looked == [one, *others[:asked]]
    assert session.aborted.is_set() == given_up
    assert list(hosts._silent) == [one.where] * given_up  # a login there would wait, too


@pytest.mark.parametrize(
    ("error", "taken"),
    [
        (Unavailable("Too many connections", code=1040), False),
        (Unavailable("max_user_connections", code=1226), False),
        (Refused("Access denied", code=1045), False),
        (Unavailable("a Galera node that is non-Primary"), True),
    ],
)
def test_a_writer_that_refuses_us_serves_others(error: StoreError, taken: bool) -> None:
    settings = Settings.parse(url_of(1, 2))
    one, _ = settings.each_host()
    met: list[OtherWriter] = []

    def log_in(host: Settings, former: OtherWriter | None = None) -> str:
        if former is None:
            raise error if host == one else OtherWriter("127.0.0.1:1")
        met.append(former)
        return host.where

    if not taken:
        with pytest.raises(Unavailable, match=str(error)):
            hosts.first_writable(settings, log_in)
        assert not met
        return
    assert hosts.first_writable(settings, log_in) == "127.0.0.1:2"
    assert met[0].writer == "127.0.0.1:1"


@contextmanager
def silent_host() -> Iterator[tuple[int, Callable[[], int]]]:
    """A port that takes connections and says nothing, and how many it has taken."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        taken: list[socket.socket] = []

        def number() -> int:
            while True:
                try:
                    taken.append(listener.accept()[0])
                except BlockingIOError:
                    return len(taken)

        yield listener.getsockname()[1], number
        for each in taken:
            each.close()


def test_a_host_that_does_not_answer_is_left_and_asked_last_for_a_while(
    first: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", 1.0)
    monkeypatch.setattr(hosts, "SLOW_S", 0.9)
    with silent_host() as (silent, connections):
        url = url_of(silent, first.port)
        assert port(url) == port(url) == first.port
        assert connections() == 1
        run(first, "SET GLOBAL read_only = 1")
        told = f"{silent}: did not answer in time; .*{first.port}: read only"
        with pytest.raises(Unavailable, match=told):
            connect(url, database=False)  # the order of the URL, whatever was asked first
        assert connections() == 2
        run(first, "SET GLOBAL read_only = 0")
        # Under load the other one may have been slow, too.
        (name,) = [name for name in hosts._silent if str(silent) in name]
        hosts._silent[name] = 0.0  # the time is over
        assert port(url) == port(url) == first.port
        assert connections() == 3


def test_a_repair_does_not_go_on_on_another_server(first: MySQLServer, second: MySQLServer) -> None:
    """Its turn is on the first one: on the other a second repair may be at work."""
    database = new_name()
    for server in (second, first):
        url = url_of(server.port, database=database)
        migrate(url)
        run(server, f"CREATE TABLE `{database}`.orders (id INT PRIMARY KEY)")
        with Store(url) as store:
            store.tracked.track("orders")
        run(server, f"INSERT INTO `{database}`.orders VALUES (1), (2)")
        run(server, f"UPDATE `{database}`.counter_slot SET amount = 7")

    def switch(done: int, rows: int) -> None:
        run(first, "SET GLOBAL read_only = 1")

    with (
        Store(url_of(first.port, second.port, database=database)) as store,
        pytest.raises(Unavailable, match="another server"),
    ):
        store.tracked.repair("orders", progress=switch)
    for server in (first, second):
        assert ask(server, f"SELECT DISTINCT amount FROM `{database}`.counter_slot") == [(7,)]


@pytest.mark.servers("mysql")
@pytest.mark.skipif(not group_replication.installed(), reason="MySQL 9 is not there")
def test_a_member_of_a_group_with_several_primaries_is_refused(first: MySQLServer) -> None:
    """By a URL of one host, too; of reads and of `doctor` it is no matter."""
    name = new_name()
    url = url_of(first.port, database=name)
    run(first, "INSTALL PLUGIN group_replication SONAME 'group_replication.so'")
    try:
        run(first, f"SET GLOBAL {GROUP} = '3d6b1a64-0d3f-4a4c-8a4e-2c8b5a0c9e10'")
        run(first, f"CREATE DATABASE `{name}`")
        connect(url).close()
        run(first, "SET GLOBAL group_replication_single_primary_mode = OFF")
        with pytest.raises(Refused, match="several primaries"):
            connect(url)
        connect(url, to_read=True).close()
        connect(url, database=False).close()
    finally:
        run(first, "UNINSTALL PLUGIN group_replication")


GROUP = "group_replication_group_name"
GALERA = {"wsrep_on": "ON", "wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}
PRIMARY, SECONDARY, GONE = (
    (1, "ONLINE", "PRIMARY"),
    (0, "ONLINE", "SECONDARY"),
    (0, "UNREACHABLE", "SECONDARY"),
)


@pytest.mark.parametrize(
    ("variables", "rows", "says"),
    [
        ({"read_only": "OFF"}, None, ""),
        ({"read_only": "OFF", "super_read_only": "ON"}, None, "read only"),
        ({"read_only": "NO_LOCK"}, None, "read only"),
        ({"read_only": "OFF", "innodb_read_only": "ON"}, None, "read only"),
        ({"wsrep_on": "ON", "wsrep_provider": "none"}, None, ""),
        (GALERA, None, ""),
        ({GROUP: ""}, None, ""),
        ({GROUP: "g"}, [PRIMARY, SECONDARY, GONE], ""),
        ({GROUP: "g"}, [PRIMARY, (0, "ONLINE", "PRIMARY")], "several primaries"),
        ({GROUP: "g"}, [PRIMARY, GONE], "does not reach the majority"),
        ({GROUP: "g"}, [PRIMARY, SECONDARY, GONE, GONE], "does not reach the majority"),
        ({GROUP: "g"}, [(1, "ONLINE", "SECONDARY"), (0, "ONLINE", "PRIMARY")], "is SECONDARY"),
        ({GROUP: "g"}, [(1, "RECOVERING", "PRIMARY")], "is RECOVERING"),
        ({GROUP: "g"}, [(0, "OFFLINE", "")], "is OFFLINE"),
    ],
)
def test_what_servers_say_of_themselves(
    variables: dict[str, str], rows: list[tuple[object, ...]] | None, says: str
) -> None:
    asked: list[str] = []

    def answer(sql: str) -> list[tuple[object, ...]]:
        asked.append(sql)
        return rows or []

    found = hosts.why_read_only(variables, answer)
    assert says in found
    assert bool(found) == bool(says)
    assert len(asked) == (rows is not None)  # of a server that is in no cluster, nothing

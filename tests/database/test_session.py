"""A session behaves the same whatever the server's settings are, and fails in bounded time."""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from countersink.counting.apply import dead, guards
from countersink.counting.apply.amounts import Incoming
from countersink.counting.apply.applier import Applier
from countersink.database.connection import connect
from countersink.database.errors import (
    BadData,
    Conflict,
    DuplicateKey,
    Misconfigured,
    ReadInterrupted,
    Refused,
    SchemaMismatch,
    StoreError,
    Unavailable,
)
from countersink.database.migrate import migrate
from countersink.database.session import Session
from countersink.database.sessions import Cancellation
from countersink.store import Store
from tests.support.entries import MAX, Database, entry, keys, now_ms, rows
from tests.support.factories import MySQLFactory
from tests.support.oracle import Oracle
from tests.support.servers import Kind
from tests.support.waiting import eventually

pytestmark = pytest.mark.servers("mariadb", "mysql")

LAX = (
    "--sql-mode=NO_BACKSLASH_ESCAPES,ANSI_QUOTES,PIPES_AS_CONCAT",
    "--transaction-isolation=SERIALIZABLE",
    "--default-time-zone=+09:30",
    "--autocommit=0",
    "--innodb-lock-wait-timeout=100",
    "--character-set-server=latin1",
)

_ISOLATION = {
    "mariadb": "SELECT @@tx_isolation",
    "mysql": "SELECT @@transaction_isolation",
}


@pytest.fixture(scope="module")
def lax_url(servers_directory: Path, server_kind: Kind) -> Iterator[str]:
    """A database on a server that is set otherwise."""
    with MySQLFactory(servers_directory, server_kind) as make:
        url = make(fast=True, extra=LAX).url_for("counts")
        assert migrate(url)[-1] == "0001_schema"
        yield url


def test_the_settings_on_which_exactness_depends(session: Session, mysql_url: str) -> None:
    ((mode, zone, wait, meta, auto),) = session.query(
        "SELECT @@sql_mode, @@time_zone, @@innodb_lock_wait_timeout, @@lock_wait_timeout,"
        " @@autocommit"
    )
    assert {"STRICT_ALL_TABLES", "STRICT_TRANS_TABLES"} <= set(mode.split(","))
    assert (zone, wait, meta, auto) == ("+00:00", 5, 5, 1)
    with connect(mysql_url) as another:
        assert another.query("SELECT @@wait_timeout") == [(30,)]
    assert session.query(_ISOLATION[session.dialect.name]) == [("READ-COMMITTED",)]
    snapshot = session.query("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
    assert snapshot in ([], [("innodb_snapshot_isolation", "OFF")])


def test_a_server_set_otherwise_counts_just_as_well(lax_url: str) -> None:
    """Not strict it would clip a value that it does not take, and say nothing."""
    applier = Applier(lax_url, 3)
    applier.apply([entry(rows(('it\'s \\ "x"', MAX)))])
    applier.apply([entry(rows(('it\'s \\ "x"', 1), ("/b", 2), ("k" * 256, 1)))])
    unchecked = Incoming(b"u" * 16, now_ms(), rows(("k" * 256, 1)), checked=True)
    with pytest.raises(BadData):
        applier.apply([unchecked])
    applier.close()
    with connect(lax_url) as session:
        assert keys(session) == {b'it\'s \\ "x"': MAX + 1, b"/b": 2}
        assert dead.count(session) == {"bad_key": 1}
        assert session.query(_ISOLATION[session.dialect.name]) == [("READ-COMMITTED",)]
        (buried,) = dead.list_rows(session)
        assert buried.created is not None
        assert abs(buried.created.timestamp() - time.time() + time.localtime().tm_gmtoff) < 600
        assert guards.prune(session, now_ms=now_ms(), keep_ms=0).deleted >= 1
    with connect(lax_url, isolation="REPEATABLE READ") as session:
        assert session.query(_ISOLATION[session.dialect.name]) == [("REPEATABLE-READ",)]


def test_a_server_that_cuts_off_results_and_chains_transactions(lax_url: str) -> None:
    """With a chain the connection that has committed is in a transaction again, or closed."""
    with connect(lax_url) as admin:
        for limit in (0, 1):
            admin.execute("SET GLOBAL sql_select_limit = %s", (limit,))
            admin.execute("SET GLOBAL completion_type = 1")
            with connect(lax_url) as session:
                assert len(session.query("SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3")) == 3
                assert session.query("SELECT @@completion_type") == [("NO_CHAIN",)]
        admin.execute("SET GLOBAL sql_select_limit = DEFAULT")
        admin.execute("SET GLOBAL completion_type = DEFAULT")


def test_a_transaction_undoes_itself_on_any_error(session: Session) -> None:
    def fail() -> None:
        with session.transaction():
            session.execute("INSERT INTO lease VALUES ('a', '', 0)")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert session.query("SELECT * FROM lease") == []
    assert not session.closed


def test_errors_come_as_ours_and_the_session_stays_usable(session: Session) -> None:
    with pytest.raises(Refused):
        session.query("SELEC 1")
    with pytest.raises(SchemaMismatch):
        session.query("SELECT * FROM nowhere")
    session.execute("INSERT INTO lease VALUES ('a', '', 0)")
    with pytest.raises(DuplicateKey):
        session.execute("INSERT INTO lease VALUES ('a', '', 0)")
    with pytest.raises(BadData):
        session.execute("INSERT INTO lease VALUES (%s, '', 0)", ("n" * 65,))
    with pytest.raises(StoreError):
        session.query("SELECT %s", (1, 2))
    assert session.query("SELECT 1") == [(1,)]


def test_a_closed_session_is_unavailable(session: Session) -> None:
    session.close()
    session.close()
    session.rollback()
    session.rollback_or_close()
    session.abort()
    assert session.closed
    for use in (partial(session.query, "SELECT 1"), session.begin, session.commit):
        with pytest.raises(Unavailable):
            use()


def test_a_killed_connection_is_unavailable(mysql_url: str, session: Session) -> None:
    ((number,),) = session.query("SELECT CONNECTION_ID()")
    with connect(mysql_url) as other:
        other.execute("KILL %s", (number,))
        eventually(lambda: not _connected(other, number))
    with pytest.raises(Unavailable):
        session.query("SELECT 1")
    assert session.closed


def _connected(session: Session, number: int) -> bool:
    sql = "SELECT 1 FROM information_schema.processlist WHERE id = %s"
    return bool(session.query(sql, (number,)))


def test_an_idle_session_is_ended_by_the_server_with_its_locks(db: Database) -> None:
    db.session.execute("INSERT INTO lease VALUES ('a', '', 0)")
    with connect(db.mysql_url, idle_seconds=1) as asleep:
        asleep.begin()
        asleep.execute("UPDATE lease SET expires_at = 2")
        assert db.session.execute("UPDATE lease SET expires_at = 3") == 1  # waits, then gets it
        with pytest.raises(Unavailable):
            asleep.commit()


def test_abort_from_another_thread_ends_the_wait(session: Session) -> None:
    waiting = threading.Event()
    caught: list[StoreError] = []

    def wait() -> None:
        waiting.set()
        try:
            session.query("SELECT SLEEP(12)")
        except StoreError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(10)
    session.abort()
    thread.join(8)  # the query would take longer
    assert not thread.is_alive()
    assert [type(error) for error in caught] == [Unavailable]


@pytest.mark.long("waits for time-outs of logging in")
def test_a_frozen_server_is_unavailable_in_bounded_time(own_mysql_server: MySQLFactory) -> None:
    server = own_mysql_server(fast=True)
    with connect(server.url, database=False, read_timeout=1) as session:
        server.freeze()
        with pytest.raises(Unavailable):
            _ask_until_it_fails(session)  # the signal may take effect a moment later
        with pytest.raises(Unavailable):
            connect(server.url, database=False)  # logging in has its own, short, timeout
        server.thaw()
    connect(server.url, database=False).close()


def _ask_until_it_fails(session: Session) -> None:
    while True:
        session.query("SELECT 1")


def test_wrong_password_and_missing_database(mysql_url: str) -> None:
    with pytest.raises(Refused, match="check the user and the password") as caught:
        connect(mysql_url.replace("://root:", "://root:s3cret"))
    assert "s3cret" not in str(caught.value)
    with pytest.raises(SchemaMismatch, match="countersink migrate"):
        connect(mysql_url + "_not_there")
    with pytest.raises(Misconfigured, match="names no database"):
        connect(mysql_url.rpartition("/")[0])


def test_a_lock_wait_is_a_conflict_and_the_transaction_is_still_open(db: Database) -> None:
    db.session.execute("INSERT INTO lease VALUES ('a', '', 0), ('b', '', 0)")
    with connect(db.mysql_url, lock_wait=1) as waiting:
        db.session.begin()
        db.session.execute("UPDATE lease SET expires_at = 5 WHERE name = 'a'")
        waiting.begin()
        waiting.execute("UPDATE lease SET expires_at = 6 WHERE name = 'b'")
        with pytest.raises(Conflict):
            waiting.execute("UPDATE lease SET expires_at = 6 WHERE name = 'a'")
        waiting.rollback()
        db.session.commit()
    assert db.session.query("SELECT name, expires_at FROM lease") == [("a", 5), ("b", 0)]


SERIES = "SELECT counter_key FROM counter_slot ORDER BY counter_key"


@pytest.fixture
def filled(mysql_url: str) -> str:
    with Oracle(mysql_url) as oracle:
        values = ", ".join(f"('views', '2026-10-18', 'k{n:04}', 1, 1)" for n in range(2_500))
        oracle.rows(
            f"INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount) VALUES {values}"
        )
    return mysql_url


def test_all_rows_of_one_moment_come_in_order_and_the_session_goes_on(filled: str) -> None:
    with Store(filled) as store, store.reading() as session, Oracle(filled) as oracle:
        oracle.rows("DELETE FROM counter_slot")
        keys = [bytes(key) for (key,) in session.stream(SERIES)]
        assert keys == [b"k%04d" % n for n in range(2_500)]
        assert session.query("SELECT 1") == [(1,)]
        assert list(session.stream(f"{SERIES} LIMIT %s", (1,))) == [(b"k0000",)]


def test_whoever_stops_early_closes_the_session(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()  # what other tests have left behind
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    with Store(filled) as store, suppress(StoreError), store.reading() as session:
        rows = session.stream(SERIES)
        assert next(rows) == (b"k0000",)
        del rows
        gc.collect()
        assert session.closed
        with pytest.raises(Unavailable):
            session.query("SELECT 1")
    gc.collect()
    assert complaints == []


QUICK = "SELECT COUNT(*) FROM counter"


@contextmanager
def locked(mysql_url: str, table: str = "counter") -> Iterator[None]:
    """Whoever reads a table waits, in the server, until the end of the block."""
    with connect(mysql_url, idle_seconds=600) as other:
        other.execute(f"LOCK TABLES {table} WRITE")
        yield


def waiting(session: Session) -> list[int]:
    """The connections that wait for such a lock."""
    return [row[0] for row in session.query("SHOW PROCESSLIST") if "metadata lock" in str(row[6])]


def read(store: Store, cancellation: Cancellation) -> object:
    with cancellation.applied():
        return store.snapshot(lambda session: session.query(QUICK))


def outcome(store: Store, cancellation: Cancellation, work: Callable[[Session], int]) -> int:
    """What the work returns; 0 where it was ended."""
    with cancellation.applied():
        try:
            return store.snapshot(work)
        except ReadInterrupted:
            return 0


def test_a_read_that_waits_in_the_server_ends_when_it_is_cancelled(db: Database) -> None:
    cancellation = Cancellation()
    with Store(db.mysql_url) as store, ThreadPoolExecutor(1) as thread, locked(db.mysql_url):
        answer = thread.submit(read, store, cancellation)
        eventually(lambda: waiting(db.session))
        cancellation.cancel()
        with pytest.raises(ReadInterrupted):
            answer.result(20)
        assert not waiting(db.session)  # although the lock is still there
        with pytest.raises(ReadInterrupted):
            read(store, cancellation)


def test_a_cancelled_read_never_ends_another(mysql_url: str) -> None:
    """Whenever the cancelling comes: before the read, within a statement, between two, after it."""
    outcomes = set[int]()
    with Store(mysql_url) as store, ThreadPoolExecutor(1) as thread:
        for number in range(42):
            cancellation, reached = Cancellation(), threading.Event()

            def work(session: Session, reached: threading.Event = reached, at: int = number) -> int:
                for step in range(6):
                    if step == at % 7:
                        reached.set()
                    session.query(QUICK)
                reached.set()
                return 6

            answer = thread.submit(outcome, store, cancellation, work)
            assert reached.wait(20)
            cancellation.cancel()
            # On whatever connection that read was: this is another's.
            assert store.snapshot(lambda session: session.query(QUICK)) == [(0,)]
            outcomes.add(answer.result(20))
            assert store.snapshot(lambda session: session.query(QUICK)) == [(0,)]
    assert outcomes == {6, 0}


def test_the_server_gives_up_what_takes_longer_than_a_statement_may(mysql_url: str) -> None:
    slow = (
        "SELECT COUNT(*) FROM information_schema.columns AS a, information_schema.columns AS b,"
        " information_schema.columns AS c, information_schema.columns AS d"
    )
    with Store(mysql_url, statement_seconds=0.2) as store:
        with pytest.raises(ReadInterrupted):
            store.snapshot(lambda session: session.query(slow))
        assert store.snapshot(lambda session: session.query(QUICK)) == [(0,)]

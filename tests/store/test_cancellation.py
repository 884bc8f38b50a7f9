"""Reads that are ended from another thread: at once, and nobody else's with them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from countersink.store import Store
from countersink.store.connection import Session, connect
from countersink.store.errors import ReadInterrupted
from countersink.store.sessions import Cancellation
from tests.support.waiting import eventually

pytestmark = pytest.mark.servers("mariadb", "mysql")

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


def test_a_read_that_waits_in_the_server_ends_when_it_is_cancelled(
    mysql_url: str, session: Session
) -> None:
    cancellation = Cancellation()
    with Store(mysql_url) as store, ThreadPoolExecutor(1) as thread, locked(mysql_url):
        answer = thread.submit(read, store, cancellation)
        eventually(lambda: waiting(session))
        cancellation.cancel()
        with pytest.raises(ReadInterrupted):
            answer.result(20)
        assert not waiting(session)  # although the lock is still there
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

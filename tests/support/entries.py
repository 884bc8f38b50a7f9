"""Entries, rows and looks into the tables, for the tests of the store."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from datetime import date, timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

import pytest

from countersink.counting.apply.amounts import Incoming, Row
from countersink.counting.apply.applier import Applied, Applier
from countersink.database.session import Session
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import PassDone, open_tables
from countersink.store import Store
from tests.support.app_connection import Connection
from tests.support.proxies import Deed, MySQLProxy, Phase, Request, Rule
from tests.support.roll_up import roll_up
from tests.support.waiting import eventually

T = TypeVar("T")

EPOCH = date(1970, 1, 1).toordinal()
MAX = 2**63 - 1
MIN = -(2**63)


def minute(day: date = date(2026, 11, 21), of_day: int = 720) -> int:
    """Whole Unix minutes of a minute of ``day``."""
    return (day.toordinal() - EPOCH) * 1440 + of_day


def days_of(first: date, last: date) -> list[date]:
    """The days from the first to the last."""
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


def now_ms() -> int:
    """Unix ms on this machine's clock, which is the server's."""
    return time.time_ns() // 1_000_000


def row(key: str, amount: int = 1, *, counter: str = "views", position: int = 0) -> Row:
    """A row of today's."""
    return position, counter, key, minute(), amount


def rows(*amounts: tuple[str, int], counter: str = "views") -> list[Row]:
    """Rows of (key, amount), numbered."""
    return [
        (position, counter, key, minute(), amount) for position, (key, amount) in enumerate(amounts)
    ]


def entry(
    content: Sequence[Row], *, id: bytes | None = None, at: int | None = None, stream: str = "s"
) -> Incoming:
    """An entry with a new id, sent now."""
    return Incoming(id or os.urandom(16), now_ms() if at is None else at, content, stream=stream)


def keys(session: Session, counter: str = "views") -> dict[bytes, int]:
    """What the slots hold, by key."""
    found = session.query(
        "SELECT counter_key, SUM(amount) FROM counter_slot WHERE counter = %s GROUP BY counter_key",
        (counter,),
    )
    return {bytes(key): int(amount) for key, amount in found}


def ledger(session: Session) -> dict[str, int]:
    """What the ledger says, by counter."""
    found = session.query("SELECT counter, SUM(amount) FROM counter_ledger GROUP BY counter")
    return {counter: int(amount) for counter, amount in found}


def slots(session: Session) -> dict[str, int]:
    """What the slots hold, by counter."""
    found = session.query("SELECT counter, SUM(amount) FROM counter_slot GROUP BY counter")
    return {counter: int(amount) for counter, amount in found}


def guard_count(session: Session) -> int:
    """How many guards there are."""
    return int(session.query("SELECT COUNT(*) FROM applied_entry")[0][0])


def keep(session: Session, tables: Iterable[str]) -> None:
    """Copy tables, for :func:`restore`."""
    for table in tables:
        session.execute(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}")


def restore(session: Session, tables: Iterable[str]) -> None:
    """Let tables be as they were when they were copied."""
    for table in tables:
        session.execute(f"DELETE FROM {table}")
        session.execute(f"INSERT INTO {table} SELECT * FROM kept_{table}")


def compacted(url: str, before: date = date.max, **more: Any) -> PassDone:
    """Compact what lies before a day."""
    return compact(partial(open_tables, url), CompactOptions(before=before, **more))


def rolled_up(url: str) -> PassDone:
    """Roll up whatever there is to be."""
    return roll_up(partial(open_tables, url))


def wait_for_update_lock(session: Session) -> None:
    """Wait until somebody asks for rows to update them."""
    shown = "SHOW FULL PROCESSLIST"
    eventually(lambda: any("FOR UPDATE" in str(row[7]) for row in session.query(shown)))


class Database:
    """A test's database, and who works on it: the fixtures of these names, made when asked for."""

    mysql_url: str
    store: Store
    session: Session
    applier: Applier
    app: Connection

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def __getattr__(self, name: str) -> Any:
        return self._request.getfixturevalue(name)

    def count(self, *amounts: tuple[str, int], counter: str = "views") -> Applied:
        """Apply an entry with rows of (key, amount)."""
        return self.applier.apply([entry(rows(*amounts, counter=counter))])

    def keys(self, counter: str = "views") -> dict[bytes, int]:
        """What the slots hold, by key."""
        return keys(self.session, counter)

    def worker(self, slot: int = 18, **options: Any) -> Applier:
        """Another applier."""
        made = Applier(self.mysql_url, slot, **options)
        self._request.addfinalizer(made.close)
        return made


class Killed(BaseException):
    """Stands for a process that dies at a point."""


def die_at(point: int) -> Callable[[str], None]:
    """Dies at the point with this number, from 1."""
    points = count(1)

    def reached(name: str) -> None:
        if next(points) == point:
            raise Killed(name)

    return reached


def killed_anywhere(
    work: Callable[[Callable[[str], None]], object],
    check: Callable[[], object],
    at: Callable[[int], int] = lambda deaths: deaths + 1,
) -> int:
    """Do a work again and again, which dies at its first point, then at its second one, and so on,
    or where it is said by the number of deaths, until it ends; the number of deaths.
    """
    for deaths in range(50):
        with suppress(Killed):
            work(die_at(at(deaths)))
            return deaths
        check()
    raise AssertionError("it does not end")


def says(text: str) -> Callable[[Request, bytes], bool]:
    """Whether a statement has this text in it: for a rule of a proxy."""
    return lambda request, _: text in request.text


def once(
    proxy: MySQLProxy,
    where: Callable[[Request, bytes], bool],
    act: Callable[[], object],
    phase: Phase = Phase.BEFORE,
    skip: int = 0,
) -> Rule:
    """Have something done before a statement, or after it, that passes the proxy then."""
    return proxy.when("*", phase, Deed.PASS, call=lambda _: act(), where=where, skip=skip, times=1)


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Future[T]]:
    """Run something in a thread meanwhile."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield future
    finally:
        thread.join(60)


@contextmanager
def again_and_again(*works: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """Run each of these in a thread, over and over, meanwhile; whether none of them has failed."""
    stop = threading.Event()

    def going() -> bool:
        return all(not each.done() for each in futures)

    def repeat(work: Callable[[], object]) -> None:
        while not stop.is_set():
            work()

    with ExitStack() as threads:
        futures = [threads.enter_context(beside(partial(repeat, work))) for work in works]
        try:
            yield going
        finally:
            stop.set()
    for future in futures:
        future.result()


def together(*works: Callable[[], T]) -> list[T]:
    """Run each in a thread of its own, all starting at the same moment; their results in order."""
    barrier = threading.Barrier(len(works))
    results: list[T | None] = [None] * len(works)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            barrier.wait(timeout=30)
            results[index] = works[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return [result for result in results if result is not None]


def applier(url: str, slot: int = 17) -> Applier:
    """An applier on its own connection."""
    return Applier(url, slot)

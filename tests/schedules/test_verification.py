"""The job that verifies: done when all agrees, failed with the list when not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from functools import partial

import pytest

from countersink.schedules.compaction import Selection, compact
from countersink.schedules.context import Context, JobOptions, Outcome
from countersink.schedules.failure import Failed
from countersink.schedules.mover import open_tables
from countersink.schedules.verification import Differs, job
from countersink.store import Store, UnknownCounter
from countersink.store.apply import Applier
from countersink.store.connection import connect
from countersink.store.rerun import rerun
from countersink.store.settings import Settings
from tests.store.helpers import entry, row


@pytest.fixture
def context(mysql_url: str) -> Context:
    """What a run works with; this one needs no Redis."""
    return Context(
        mysql_url=mysql_url, redis_url="redis://none", options=JobOptions(), stop=lambda: False
    )


def count(context: Context, counters: int) -> None:
    applier = Applier(context.mysql_url, 3)
    applier.apply([entry([row("/a", 1, counter=f"c{n:02}", position=n) for n in range(counters)])])
    applier.close()


def test_all_agrees(context: Context) -> None:
    count(context, 3)
    assert job(context) == Outcome(rows=3, detail="3 counters agree with the ledger")


def test_what_differs_is_named(context: Context) -> None:
    count(context, 3)
    with connect(context.mysql_url) as session:
        session.execute("UPDATE counter_slot SET amount = 5 WHERE counter = 'c01'")
    with pytest.raises(Differs) as raised:
        job(context)
    assert str(raised.value) == (
        "c01: the tables hold +4 against the ledger: see countersink verify"
    )


def test_tracked_tables_are_verified_and_nothing_is_repaired(
    context: Context, app_database_url: str
) -> None:
    count(context, 3)
    name = f"{Settings.parse(app_database_url).database}.orders"
    with connect(app_database_url) as app, Store(context.mysql_url) as store:
        app.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
        app.execute("INSERT INTO orders VALUES (1), (2)")
        store.tracked.track(name, counter="orders")
        assert job(context).detail == (
            "4 counters agree with the ledger, 1 tracked tables with their counters"
        )
        app.execute("TRUNCATE TABLE orders")
    for _ in range(2):
        with pytest.raises(Differs) as raised:
            job(context)
        assert str(raised.value) == f"orders ({name}): 2 counted, 0 rows: see countersink verify"


def test_of_many_the_first_are_named(context: Context) -> None:
    count(context, 30)
    with connect(context.mysql_url) as session:
        session.execute("DELETE FROM counter_slot")
    with pytest.raises(Differs, match=r"^c00: .*; c09: .*; and 20 more: see countersink verify$"):
        job(context)


def test_a_run_that_is_told_to_stop_proves_nothing(context: Context) -> None:
    count(context, 3)
    stopping = Context(
        mysql_url=context.mysql_url,
        redis_url=context.redis_url,
        options=context.options,
        stop=lambda: True,
    )
    with pytest.raises(Failed, match="stopped when 0 counters were verified"):
        job(stopping)


def test_there_is_no_false_alarm_beside_writers_compaction_and_deletion(
    mysql_url: str, context: Context
) -> None:
    """What compaction takes out of the application's slots enters the ledger as it leaves them."""
    stop = threading.Event()
    batches = passes = 0
    errors: list[BaseException] = []

    def beside(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write() -> None:
        nonlocal batches
        applier.slot = 1 + batches % 5
        applier.apply(
            [entry([row(f"/{key}", 1, position=key, counter="open") for key in range(20)])]
        )
        for slot in (256, 300):
            # as an application does after a deadlock
            rerun(partial(session.execute, into_slot, (slot,)))
        batches += 1

    def move() -> None:
        nonlocal passes
        compact(lambda: open_tables(mysql_url), Selection(before=date(2027, 1, 1), rows=10))
        passes += 1

    applier = Applier(mysql_url, 1)
    with connect(mysql_url) as session, Store(mysql_url) as store:
        into_slot = (
            "INSERT INTO counter_slot VALUES ('open', '2026-11-21', '/1', %s, 3)"
            + session.dialect.upsert_add("counter_slot", "amount")
        )
        threads = [beside(write), beside(move)]
        looks = 0
        while not errors and (batches < 20 or passes < 10 or looks < 20):
            job(context)
            if looks % 4 == 2:
                with suppress(UnknownCounter):  # nobody has counted since the last time
                    store.counters.delete("open", None if looks % 8 == 2 else "/1")
            looks += 1
        stop.set()
        for thread in threads:
            thread.join(60)
        write()
    applier.close()
    assert errors == []
    assert job(context).detail == "1 counters agree with the ledger"

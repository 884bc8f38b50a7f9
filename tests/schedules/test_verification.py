"""The job that verifies: done when all agrees, failed with the list when not."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime

import pymysql
import pytest

from countersink.schedules.errors import JobFailed, TablesDiffer
from countersink.schedules.jobs import Context, JobOutcome
from countersink.schedules.jobs.checks import verification
from countersink.store import Store, UnknownCounter
from countersink.store.apply.apply import Applier
from countersink.store.connection import connect, rerun
from countersink.store.errors import Conflict
from countersink.store.settings import Settings
from tests.store.app import open_app
from tests.store.helpers import again_and_again, compacted, entry, row


def count(context: Context, counters: int) -> None:
    applier = Applier(context.mysql_url, 3)
    applier.apply([entry([row("/a", 1, counter=f"c{n:02}", position=n) for n in range(counters)])])
    applier.close()


def test_what_differs_is_named(context: Context) -> None:
    count(context, 30)
    assert verification(context) == JobOutcome(rows=30, detail="30 counters agree with the ledger")
    with connect(context.mysql_url) as session:
        session.execute("UPDATE counter_slot SET amount = 5 WHERE counter = 'c01'")
        with pytest.raises(TablesDiffer) as raised:
            verification(context)
        assert str(raised.value) == (
            "c01: the tables hold +4 against the ledger: see countersink verify"
        )
        session.execute("DELETE FROM counter_slot")
        # Of many the first.
        with pytest.raises(
            TablesDiffer, match=r"^c00: .*; c09: .*; and 20 more: see countersink verify$"
        ):
            verification(context)


def test_tracked_tables_are_verified_and_nothing_is_repaired(
    context: Context, app_database_url: str
) -> None:
    count(context, 3)
    name = f"{Settings.parse(app_database_url).database}.orders"
    with connect(app_database_url) as app, Store(context.mysql_url) as store:
        app.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
        app.execute("INSERT INTO orders VALUES (1), (2)")
        store.tracked.track(name, counter="orders")
        assert verification(context).detail == (
            "4 counters agree with the ledger, 1 tracked tables with their counters"
        )
        app.execute("TRUNCATE TABLE orders")
    for _ in range(2):
        with pytest.raises(TablesDiffer) as raised:
            verification(context)
        assert str(raised.value) == f"orders ({name}): 2 counted, 0 rows: see countersink verify"


def test_a_run_that_is_told_to_stop_proves_nothing(context: Context) -> None:
    count(context, 3)
    stopping = replace(context, stop=lambda: True)
    with pytest.raises(JobFailed, match="stopped when 0 counters were verified"):
        verification(stopping)


def test_there_is_no_false_alarm_beside_writers_compaction_and_deletion(
    mysql_url: str, context: Context
) -> None:
    """Whoever changes rows posts it in the same transaction."""
    batches = passes = looks = 0

    def write() -> None:
        nonlocal batches
        applier.slot = 1 + batches % 5
        applier.apply(
            [entry([row(f"/{key}", 1, position=key, counter="open") for key in range(20)])]
        )
        for _ in range(2):
            # as an application does after a deadlock
            rerun(in_transaction)
        batches += 1

    def in_transaction() -> None:
        try:
            store.increment(app, "open", "/1", 3, at=datetime(2026, 11, 21, tzinfo=UTC))
            app.commit()
        except pymysql.err.OperationalError as error:
            app.rollback()
            raise Conflict("as its own code would say") from error

    def move() -> None:
        nonlocal passes
        compacted(mysql_url, before=date(2027, 1, 1), rows=10)
        passes += 1

    applier = Applier(mysql_url, 1)
    with open_app(mysql_url) as app, Store(mysql_url) as store:
        with again_and_again(write, move) as going:
            while going() and (batches < 20 or passes < 10 or looks < 20):
                verification(context)
                if looks % 4 == 2:
                    with suppress(UnknownCounter):  # nobody has counted since the last time
                        store.counters.delete("open", None if looks % 8 == 2 else "/1")
                looks += 1
        write()
    applier.close()
    assert verification(context).detail == "1 counters agree with the ledger"

"""The ledger is equal to the rows, in sums and checksums, whatever anybody does."""

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from countersink.backfill.undo import undo
from countersink.counting.apply.amounts import Amounts
from countersink.counting.apply.applier import Applier
from countersink.counting.apply.cells import add
from countersink.counting.counters.deletion import delete_key
from countersink.counting.ledger import BucketSums, merge, post
from countersink.database.app_connection import private_slot
from countersink.database.connection import connect
from countersink.database.session import Session, rerun
from countersink.database.sql import day_label
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables
from countersink.store import Store
from countersink.store.verify import open_session, verify
from tests.backfill.helpers import NOON, line
from tests.backfill.helpers import add as backfilled
from tests.support.app_connection import open_app, run
from tests.support.entries import entry, row
from tests.support.ledger import held, posted
from tests.support.waiting import eventually

DAY = day_label(NOON.date())
pytestmark = pytest.mark.servers("mariadb", "mysql")


def test_rows_that_no_application_has_touched_for_an_hour_are_merged(
    mysql_url: str, store: Store, session: Session
) -> None:
    """But for one that an open transaction adds to, and those of the last hour."""
    with open_app(mysql_url) as idle, open_app(mysql_url) as app, open_app(mysql_url) as busy:
        for connection in (idle, app):
            store.increment(connection, "views", "/a", 5, at=NOON)
            connection.commit()
        session.execute("UPDATE counter_ledger SET posted_at = posted_at - INTERVAL 61 MINUTE")
        store.increment(busy, "views", "/a", 100, at=NOON)
        busy.commit()
        store.increment(app, "views", "/a", 7, at=NOON)
        opened = partial(open_tables, mysql_url)
        compact(opened, CompactOptions())
        assert _amounts(session) == [(0, 5), (1, 5), (1, 100)]
        assert posted(session) == held(session)
        app.commit()
        compact(opened, CompactOptions())
        assert _amounts(session) == [(0, 5), (1, 12), (1, 100)]
        assert merge(session) == 0
    with open_app(mysql_url) as again:
        store.increment(again, "views", "/a", 1, at=NOON)
        again.commit()
    assert posted(session) == held(session)
    assert store.totals.total("views") == 118


def test_a_fold_waits_for_nobody_and_nobody_for_it(
    mysql_url: str, store: Store, session: Session
) -> None:
    """Many idle rows beside open transactions of an application and of a worker."""
    idle = [open_app(mysql_url) for _ in range(12)]
    for connection in idle:
        store.increment(connection, "views", "/a", 1, at=NOON)
        connection.commit()
    session.execute("UPDATE counter_ledger SET posted_at = posted_at - INTERVAL 61 MINUTE")
    with (
        open_app(mysql_url) as app,
        open_tables(mysql_url) as worker,
        open_tables(mysql_url) as own,
    ):
        store.increment(app, "views", "/b", 1, at=NOON)
        store.increment(idle[3], "views", "/b", 1, at=NOON)
        with worker.transaction():
            sums = BucketSums()
            sums.add("views", DAY, 0, 0)
            post(worker, 9, sums)
            own.execute("SET SESSION innodb_lock_wait_timeout = 1")
            assert merge(own) == 11
            assert _amounts(session) == [(0, 11), (1, 1)]
        for connection in (app, idle[3]):
            connection.commit()
    for connection in idle:
        connection.close()
    assert posted(session) == held(session)


def _amounts(session: Session) -> list[tuple[int, int]]:
    """Of rows of the ledger, those of slot 0 first."""
    found = session.query("SELECT slot > 0, amount FROM counter_ledger ORDER BY 1, 2")
    return [(int(own), int(amount)) for own, amount in found]


def test_two_fold_at_once_while_applications_count(mysql_url: str, store: Store) -> None:
    """Every connection is a new one, whose row is old at once."""
    stopping = Event()

    def count() -> int:
        done = 0
        while not stopping.is_set():
            with open_app(mysql_url) as app:
                store.increment(app, "views", f"/{done % 3}", 1, at=NOON)
                run(
                    app,
                    "UPDATE counter_ledger SET posted_at = '2026-01-01'"
                    f" WHERE counter = 'views' AND bucket = '{NOON.date()}' AND width = 4"
                    f" AND slot = {private_slot()}",
                )
                app.commit()
            done += 1
        return done

    def merge_all() -> int:
        merged = 0
        with open_tables(mysql_url) as session:
            while not stopping.is_set():
                merged += rerun(partial(merge, session))
        return merged

    with ThreadPoolExecutor(4) as pool:
        counting = [pool.submit(count) for _ in range(2)]
        merging = [pool.submit(merge_all) for _ in range(2)]
        try:
            eventually(
                lambda: any(map(Future.done, (*counting, *merging))) or _merged(mysql_url) > 20,
                timeout=100,
            )
        finally:
            stopping.set()
        counted = sum(each.result(60) for each in counting)
        assert all(each.result(60) for each in merging)
    with open_session(mysql_url) as session:
        assert posted(session) == held(session) != {}
        assert verify(session).differences == []
    assert store.totals.total("views") == counted


def _merged(mysql_url: str) -> int:
    """Counts of 1 that were merged."""
    with open_session(mysql_url) as session:
        ((found,),) = session.query(
            "SELECT COALESCE(SUM(amount), 0) FROM counter_ledger WHERE slot = 0"
        )
    return int(found)


def test_a_bucket_without_rows_is_gone_from_the_ledger_and_its_counter_stays_known(
    store: Store, session: Session, verifying: Session
) -> None:
    """A backfill's slot keeps its sum, of no bucket, as the records of backfills say so."""
    for label, slot in ((DAY, 7), (DAY, 600), (DAY + 86_400, 9)):
        amounts = Amounts()
        amounts.add("views", label, "/a", slot)
        with session.transaction():
            add(session, slot, amounts)
    delete_key(session, "views", "/a")
    assert posted(session) == held(session) == {}
    assert session.query(
        "SELECT CAST(bucket AS CHAR), width, slot, amount FROM counter_ledger ORDER BY slot"
    ) == [("1000-01-01 00:00:00", 0, 0, -600), ("1000-01-01 00:00:00", 0, 512, 600)]
    assert store.totals.total("views") == 0
    assert store.totals.daily("views") == []
    assert verify(verifying).differences == []


def test_a_bucket_whose_amounts_add_up_to_nothing_stays_in_the_ledger(session: Session) -> None:
    amounts = Amounts()
    for key, amount in (("/a", 5), ("/b", -5), ("/c", 2)):
        amounts.add("views", DAY, key, amount)
    with session.transaction():
        add(session, 7, amounts)
    delete_key(session, "views", "/c")
    assert posted(session) == held(session) != {}


def test_a_deletion_waits_for_no_row_of_the_ledger(
    mysql_url: str, store: Store, session: Session
) -> None:
    """Rows that an open transaction has posted stay, until the bucket is empty once more."""
    with open_app(mysql_url) as app, open_app(mysql_url) as open_one:
        store.increment(app, "views", "/b", 1, at=NOON)
        store.increment(app, "views", "/a", 5, at=NOON)
        app.commit()
        store.increment(open_one, "views", "/z", 7, at=NOON)
        session.execute("SET SESSION innodb_lock_wait_timeout = 1")
        delete_key(session, "views", "/a")
        open_one.commit()
        assert posted(session) == held(session) != {}
    assert store.totals.total("views") == 8
    delete_key(session, "views", "/z")
    assert store.totals.total("views") == 1
    assert posted(session) == held(session)


def test_a_bucket_whose_rows_are_gone_is_in_no_answer(
    mysql_url: str, store: Store, applier: Applier, tmp_path: Path
) -> None:
    """After an undo, and after a deletion by an application, at once and after a merge."""
    applier.apply([entry([row("/", 5)])])
    first = store.totals.daily("views")
    early = datetime(1971, 1, 1, 12, tzinfo=UTC)
    wrong = tmp_path / "wrong.log"
    wrong.write_bytes(line("/", at=early))
    undo(mysql_url, backfilled(mysql_url, wrong).run or 0)
    assert store.totals.daily("views") == first
    with open_app(mysql_url) as app, connect(mysql_url) as session:
        store.increment(app, "views", "/old", 1, at=early)
        app.commit()
        store.delete(app, "views", "/old")
        app.commit()
        assert store.totals.daily("views") == first
        session.execute("UPDATE counter_ledger SET posted_at = posted_at - INTERVAL 61 MINUTE")
        assert merge(session) == 1
        assert store.totals.daily("views") == first
        assert session.query("SELECT COUNT(*) FROM counter_ledger WHERE bucket = '1971-01-01'") == [
            (0,)
        ]


def test_a_bucket_with_rows_of_nothing_stays_in_answers(store: Store, applier: Applier) -> None:
    applier.apply([entry([row("/zero", 0, position=0), row("/a", 5, position=1)])])
    ((day, _),) = store.totals.daily("views")
    store.counters.delete("views", "/a")
    assert store.totals.daily("views") == [(day, 0)]


@pytest.mark.servers("mariadb")
def test_the_next_transaction_of_an_application_finds_its_row_of_the_ledger(
    mysql_url: str, store: Store
) -> None:
    with open_app(mysql_url) as app:
        run(app, "SET SESSION innodb_snapshot_isolation = ON")
        store.increment(app, "views", "/a", 1, at=NOON)
        app.commit()
        run(app, "SELECT COUNT(*) FROM counter")  # takes its snapshot
        store.counters.delete("views", "/a")
        store.increment(app, "views", "/b", 1, at=NOON)
        app.commit()
    assert store.totals.total("views") == 1


def test_one_merge_takes_rows_of_many_buckets(
    mysql_url: str, store: Store, session: Session
) -> None:
    store.counters.set("views", resolution="minute")
    with open_app(mysql_url) as app:
        for number in range(600):
            store.increment(app, "views", "/a", 1, at=NOON + timedelta(minutes=number))
        app.commit()
    session.execute("UPDATE counter_ledger SET posted_at = posted_at - INTERVAL 61 MINUTE")
    assert [merge(session), merge(session), merge(session)] == [500, 100, 0]
    assert posted(session) == held(session)
    assert store.totals.total("views") == 600

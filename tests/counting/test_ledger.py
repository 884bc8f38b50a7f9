"""The ledger is equal to the rows, in sums and checksums, whatever anybody does."""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest

from countersink.counting.ledger import Posting, merge, mergeable, post
from countersink.database.app_connection import private_slot
from countersink.database.session import Session, rerun
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables
from countersink.store import Store
from countersink.store.verify import open_session, verify
from tests.backfill.helpers import NOON
from tests.support.app_connection import open_app, run
from tests.support.ledger import held, posted
from tests.support.waiting import eventually

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
        assert mergeable(session) == []
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
            post(worker, 9, [("views", Posting())])
            own.execute("SET SESSION innodb_lock_wait_timeout = 1")
            assert merge(own, "views", -1) is not None
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
                    f" WHERE counter = 'views' AND slot = {private_slot()}",
                )
                app.commit()
            done += 1
        return done

    def merge_all() -> int:
        merged = 0
        with open_tables(mysql_url) as session:
            while not stopping.is_set():
                after: int | None = -1
                while after is not None:
                    after = rerun(partial(merge, session, "views", after))
                    merged += after is not None
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

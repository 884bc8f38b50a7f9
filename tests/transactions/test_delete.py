"""Taking a key away in the application's own transaction: rows and ledger go together."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random

import pymysql
import pytest
from pymysql.constants.FIELD_TYPE import NEWDECIMAL
from pymysql.converters import conversions

from countersink.counting.apply.applier import Applier
from countersink.counting.counters.buckets import NUMBER
from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.store import Store
from countersink.transactions import DELETED_PER_STATEMENT
from tests.support.app_connection import Connection, open_app, run
from tests.support.entries import Database, entry, keys, row, rows, says, together
from tests.support.ledger import Posted, held, post_planted, posted
from tests.support.proxies import Deed, MySQLProxy, Phase, Request
from tests.support.width_rows import plant

pytestmark = pytest.mark.servers("mariadb", "mysql")

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def filled(session: Session, store: Store, app: Connection, applier: Applier) -> Store:
    """Rows of the key a and of its neighbours: of workers, compacted days and months, the app's."""
    counted = rows(("a", 10), ("A", 1), ("a ", 1), ("á", 1), counter="orders")
    applier.apply([entry(counted)])
    for width in (4, 5):
        made = ("a", 100), ("b", 1)
        plant(session, *(("orders", "2026-01-01", key, 0, n) for key, n in made), width=width)
    post_planted(session)
    session.execute(
        "INSERT INTO counter (name, counted_hour, rolled_month, created)"
        " VALUES ('orders', '2026-02-01', '2026-02-01', '2020-01-01')"
    )
    store.increment_many(app, "orders", {"a": 1000, "b": 1})
    app.commit()
    return store


def delete_beside(
    store: Store, mysql_url: str, level: str, count: Callable[[Session], None]
) -> None:
    """Delete the key a, while another session counts just before its rows go."""

    def meanwhile(_request: Request) -> None:
        with connect(mysql_url, lock_wait=1) as other:
            count(other)

    with MySQLProxy.to(mysql_url) as proxy, open_app(proxy.url(mysql_url)) as slow:
        run(slow, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        proxy.when("*", Phase.BEFORE, Deed.PASS, call=meanwhile, where=says("DELETE"))
        store.delete(slow, "orders", "a")
        slow.commit()
    assert store.totals.total("orders", key="a") == 0


def test_all_of_the_keys_rows_go_and_nothing_else(filled: Store, db: Database) -> None:
    assert filled.totals.total("orders", key="a") == 1210
    before = filled.totals.total("orders")
    filled.delete(db.app, "orders", "a")
    filled.delete(db.app, "orders", "none")
    assert filled.totals.total("orders") == before
    db.app.commit()
    assert filled.totals.total("orders", key="a") == 0
    assert filled.totals.total("orders") == before - 1210 == 6
    assert posted(db.session) == held(db.session)
    assert db.keys("orders") == {b"A": 1, b"a ": 1, "á".encode(): 1, b"b": 3}


def test_amounts_are_exact_whatever_the_application_makes_of_decimals(db: Database) -> None:
    with open_app(db.mysql_url, conv=conversions | {NEWDECIMAL: float}) as app:
        for amount in (2**53, 1):
            db.store.increment(app, "orders", "a", amount)
        app.commit()
        db.store.delete(app, "orders", "a")
        app.commit()
    assert posted(db.session) == {}


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_what_others_count_meanwhile_stays(filled: Store, db: Database, level: str) -> None:
    late: list[bool] = []

    def count(other: Session) -> None:
        try:
            late_rows = [("orders", f"2026-11-{day}", "a", 77, 5) for day in (20, 22)]
            plant(other, *late_rows, post=False)
            late.append(True)
        except Exception:
            late.append(False)

    delete_beside(filled, db.mysql_url, level, count)
    # At READ COMMITTED the gaps between the rows are nobody's: what came there is met once more.
    assert late[0] == (level == "READ COMMITTED")
    assert _sum(held(db.session)) - _sum(posted(db.session)) == 10 * sum(late)
    post_planted(db.session)


def test_what_another_slot_or_width_counts_meanwhile_in_the_same_bucket_is_seen_before_it_goes(
    filled: Store, db: Database
) -> None:
    """Its row comes between the look at the key's rows and their end, and was not looked at."""

    def count(other: Session) -> None:
        plant(other, ("orders", "2026-01-01", "a", 77, 5), post=False)
        plant(other, ("orders", "2026-01-01", "a", 0, 20), width=NUMBER["hour"], post=False)

    delete_beside(filled, db.mysql_url, "READ COMMITTED", count)
    # It was posted as it went, as nobody has posted that it came.
    assert _sum(held(db.session)) - _sum(posted(db.session)) == 25
    post_planted(db.session)


def _sum(found: Posted) -> int:
    return sum(amount for amount, _ in found.values())


@pytest.mark.parametrize("autocommit", [True, False])
def test_cut_off_anywhere_it_has_done_nothing(
    filled: Store, db: Database, autocommit: bool
) -> None:
    for start in ("SELECT TIMESTAMPDIFF", "DELETE", "INSERT INTO"):
        with MySQLProxy.to(db.mysql_url) as proxy:
            slow = open_app(proxy.url(db.mysql_url), autocommit=autocommit)
            proxy.when("*", Phase.AFTER, Deed.CUT, where=says(start))
            with pytest.raises(pymysql.err.OperationalError):
                filled.delete(slow, "orders", "a")
        run(db.app, "SELECT * FROM counter_slot WHERE counter_key = 'a' FOR UPDATE")
        db.app.rollback()
        assert filled.totals.total("orders", key="a") == 1210


@pytest.mark.parametrize("autocommit", [True, False])
def test_who_commits_after_an_error_keeps_no_half_of_it(
    filled: Store, mysql_url: str, autocommit: bool
) -> None:
    with (
        MySQLProxy.to(mysql_url) as proxy,
        open_app(proxy.url(mysql_url), autocommit=autocommit) as slow,
    ):
        filled.increment(slow, "orders", "c")
        proxy.when("*", Phase.BEFORE, Deed.ERROR, error=1205, where=says("counter_ledger"))
        with pytest.raises(pymysql.err.OperationalError, match="1205"):
            filled.delete(slow, "orders", "a")
        slow.commit()
        assert filled.totals.total("orders", key="a") == 1210
        assert filled.totals.total("orders", key="c") == 1
        filled.delete(slow, "orders", "a")
        slow.commit()
    assert filled.totals.total("orders", key="a") == 0


def test_a_transaction_that_was_begun_by_hand_goes_on(filled: Store, mysql_url: str) -> None:
    """Autocommit is on, and yet there is a transaction, which deleting must not end."""
    with open_app(mysql_url, autocommit=True) as begun:
        begun.begin()
        filled.increment(begun, "orders", "c")
        filled.delete(begun, "orders", "a")
        begun.rollback()
        assert filled.totals.total("orders", key="a") == 1210
        assert filled.totals.total("orders", key="c") == 0
        filled.delete(begun, "orders", "a")
    assert filled.totals.total("orders", key="a") == 0


def test_a_key_of_very_many_buckets(store: Store, app: Connection, session: Session) -> None:
    store.counters.set("orders", resolution="quarter")
    number = 2 * DELETED_PER_STATEMENT + 7
    times = [NOON.replace(tzinfo=None) + timedelta(minutes=15 * n) for n in range(number)]
    plant(session, *(("orders", time, "a", 7, 2) for time in times), width=NUMBER["quarter"])
    post_planted(session)
    run(app, "SET SESSION sql_select_limit = 3")
    store.delete(app, "orders", "a")
    app.commit()
    assert keys(session, "orders") == {}
    assert posted(session) == {}


def test_beside_workers_and_other_transactions(store: Store, mysql_url: str) -> None:
    """Deadlocks are the application's to retry; each transaction is all or nothing."""

    def delete(number: int) -> None:
        draw = Random(number)
        with open_app(mysql_url) as app:
            run(app, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            done = 0
            while done < 12:
                try:
                    store.increment_many(app, "orders", {draw.choice("abc"): 1 for _ in range(2)})
                    store.delete(app, "orders", draw.choice("abc"))
                    app.commit() if draw.random() < 0.8 else app.rollback()
                    done += 1
                except pymysql.err.OperationalError as error:
                    app.rollback()
                    if error.args[0] not in (1213, 1205, 1020):
                        raise

    def apply(slot: int) -> None:
        applier = Applier(mysql_url, slot)
        for _ in range(25):
            applier.apply([entry([row(key, 2, counter="orders") for key in "abc"])])
        applier.close()

    together(partial(delete, 1), partial(delete, 2), partial(apply, 5), partial(apply, 6))

"""What meets buckets that were, or are just being, rolled up to wider ones; bad steps to keep."""

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pymysql
import pytest

from countersink.counting.apply import dead
from countersink.counting.apply.applier import Applier
from countersink.counting.apply.dead import DeadRow
from countersink.counting.apply.dead_retry import retry
from countersink.counting.counters import keep_steps
from countersink.counting.counters.catalog import Scheme
from countersink.counting.counters.deletion import Deleted, delete_counter, delete_key
from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.schedules.jobs.move import PassDone
from countersink.store import Store
from countersink.store.verify import verify
from countersink.stream.decode import decode_payload
from tests.support.app_connection import commit_one, open_app, run, wait_for_lock_wait
from tests.support.entries import Database, entry, rolled_up, says
from tests.support.ledger import held, posted
from tests.support.proxies import Deed, MySQLProxy, Phase, Request
from tests.support.traffic import now_minute


@pytest.mark.parametrize("past", [0, 1, 59])
def test_buckets_are_rolled_up_to_where_a_wider_one_begins(past: int) -> None:
    """An event is in a wider bucket or not, never half of its bucket's events."""
    noon = int(datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()) // 60
    steps = keep_steps.parse("minute=2d,hour=90d,day=400d")
    wanted = {
        "hour": (noon - 2 * 1440) * 60,
        "day": (noon - 90 * 1440 - 720) * 60,
        "month": int(datetime(2025, 10, 1, tzinfo=UTC).timestamp()),
    }
    scheme = Scheme(resolution="minute")
    assert keep_steps.due(scheme, steps, noon + past) == wanted
    reached = replace(scheme, rolled=tuple(wanted.items()))  # type: ignore[arg-type]
    assert keep_steps.due(reached, steps, noon + past) == {}
    # Of days nothing becomes hours, or days.
    assert keep_steps.due(Scheme(), steps, noon + past).keys() == {"month"}
    later = replace(Scheme(), counted=(("minute", 1),))
    assert keep_steps.due(later, steps, noon + past) == wanted


def hour_of_old() -> int:
    """The Unix minute at which an hour began that is rolled up."""
    return now_minute() // 60 * 60 - 3 * 1440


def minutes_kept(store: Store, steps: str = "minute=2d,hour=90d", **more: Any) -> None:
    store.counters.set("v", resolution="minute", keep=steps, **more)


def count(applier: Applier, events: dict[tuple[str, int], int]) -> None:
    rows = [(n, "v", key, at, amount) for n, ((key, at), amount) in enumerate(events.items())]
    applier.apply([entry(rows)])


def an_hour_of(key: str, hour: int, every: int = 1) -> dict[tuple[str, int], int]:
    return {(key, hour + n): 1 for n in range(5, 60, every)}


def verified(session: Session) -> None:
    assert verify(session).differences == []
    assert held(session) == posted(session)


@pytest.fixture
def wide(store: Store, applier: Applier, mysql_url: str) -> int:
    """An hour of v with two keys that is rolled up: its first minute."""
    minutes_kept(store)
    hour = hour_of_old()
    count(applier, {(key, hour + n): 1 for n in range(60) for key in "ab"})
    assert rolled_up(mysql_url).rolled_up == 120
    return hour


# -- counting -----------------------------------------------------------------------------------


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_the_application_counts_in_times_that_are_rolled_up(
    db: Database, wide: int, level: str, verifying: Session
) -> None:
    run(db.app, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
    moment = datetime.fromtimestamp(wide * 60 + 90, UTC)
    db.store.increment(db.app, "v", "a", 7, at=moment)
    assert rolled_up(db.mysql_url).busy == []  # what is not committed is nobody's yet
    assert db.keys("v") == {b"a": 60, b"b": 60}
    db.app.commit()
    db.store.increment(db.app, "v", "a", 100, at=moment)
    db.app.rollback()
    verified(verifying)
    assert rolled_up(db.mysql_url).rolled_up == 1
    assert db.store.totals.total("v", key="a") == 67
    assert db.session.query("SELECT COUNT(*) FROM counter_slot") == [(2,)]
    commit_one(db.store, db.app, "v", "a", -67, at=moment)
    rolled_up(db.mysql_url)
    assert db.store.totals.total("v", key="a") == 0
    verified(verifying)


def test_dead_letters_are_retried_into_times_that_are_rolled_up(
    db: Database, wide: int, verifying: Session
) -> None:
    for number in (1, 2):
        payload = json.dumps(["v", "a", wide + number, 10**number]).encode()
        row = DeadRow(number.to_bytes(16, "big"), 0, "s", 0, "bad_sketch", "why", payload)
        with db.session.transaction():
            dead.insert(db.session, [row])
    for retried in (2, 0):
        assert retry(db.session, slot=9, decode=decode_payload).retried == retried
        assert db.store.totals.total("v", key="a") == 60 + 110
        verified(verifying)
        rolled_up(db.mysql_url)
        assert db.session.query("SELECT COUNT(*) FROM counter_slot") == [(2,)]


# -- deleting -----------------------------------------------------------------------------------


def test_a_key_and_a_counter_go_with_their_wider_buckets(
    db: Database, wide: int, verifying: Session
) -> None:
    count(db.applier, {("a", wide + 3): 5, ("a", now_minute()): 7, ("b", now_minute()): 1})
    assert db.store.counters.delete("v", "a") == Deleted(3, 72)
    assert db.keys("v") == {b"b": 61}
    verified(verifying)
    assert db.store.counters.delete("v") == Deleted(2, 61)
    for table in ("counter_slot", "counter_ledger"):
        assert db.session.query(f"SELECT COUNT(*) FROM {table}") == [(0,)]
    count(db.applier, {("a", wide): 1})
    shown = db.store.counters.show("v")
    assert (shown.resolution, shown.keep, shown.rolled_up_to) == ("minute", (), {})
    verified(verifying)


def test_the_application_deletes_a_key_that_is_rolled_up_but_for_its_late_rows(
    db: Database, wide: int, verifying: Session
) -> None:
    count(db.applier, {("a", wide + 3): 5, ("b", wide + 3): 1})
    db.store.delete(db.app, "v", "a")
    # MySQL holds the next key's first row as well.
    assert b"a" in [place.key for place in rolled_up(db.mysql_url).busy]
    db.app.rollback()
    assert db.keys("v") == {b"a": 65, b"b": 61}
    verified(verifying)
    db.store.delete(db.app, "v", "a")
    db.app.commit()
    rolled_up(db.mysql_url)
    assert db.keys("v") == {b"b": 61}
    verified(verifying)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("what", ["key", "counter"])
def test_deleted_page_by_page_while_rows_move_behind_it_all_is_gone(
    db: Database, verifying: Session, what: str
) -> None:
    """Others held a row, so it goes on by few rows; in between they come to an earlier bucket."""
    minutes_kept(db.store)
    hour = hour_of_old()
    count(db.applier, an_hour_of("a", hour) | an_hour_of("b", hour))
    rolled: list[PassDone] = []
    with (
        connect(db.mysql_url) as holder,
        MySQLProxy.to(db.mysql_url) as proxy,
        connect(proxy.url(db.mysql_url), isolation="REPEATABLE READ") as deleting,
    ):
        holder.execute("BEGIN")
        holder.query("SELECT * FROM counter_slot WHERE counter = 'v' FOR UPDATE")

        def roll(_: Request) -> None:
            rolled.append(rolled_up(db.mysql_url))

        def let_go(_seconds: float) -> None:
            holder.execute("ROLLBACK")
            proxy.when("*", Phase.AFTER, Deed.PASS, call=roll, where=says("COMMIT"))

        if what == "key":
            deleted = delete_key(deleting, "v", "a", pause=let_go)
        else:
            deleted = delete_counter(deleting, "v", pause=let_go)
    assert rolled[0].rolled_up > 50
    assert deleted.amount == (55 if what == "key" else 110)
    assert db.keys("v") == ({b"b": 55} if what == "key" else {})
    verified(verifying)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_the_application_deletes_a_key_in_the_midst_of_its_move(
    db: Database, verifying: Session, level: str
) -> None:
    """It waits for a row that is moved to a bucket which it has passed: one of them is undone."""
    minutes_kept(db.store)
    hour = hour_of_old()
    count(db.applier, an_hour_of("a", hour) | an_hour_of("b", hour) | {("a", now_minute()): 1})
    outcome: list[str] = []

    def delete() -> None:
        with open_app(db.mysql_url) as app:
            run(app, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            try:
                db.store.delete(app, "v", "a")
                app.commit()
                outcome.append("deleted")
            except pymysql.err.OperationalError as error:
                # A deadlock is the application's to retry.
                app.rollback()
                outcome.append(str(error.args[0]))

    deleting = threading.Thread(target=delete)

    def in_the_midst(_: Request) -> None:
        deleting.start()
        wait_for_lock_wait(db.session)

    with MySQLProxy.to(db.mysql_url) as proxy:
        moves = says("FOR UPDATE NOWAIT")
        proxy.when("*", Phase.AFTER, Deed.PASS, call=in_the_midst, where=moves)
        rolled_up(proxy.url(db.mysql_url))
    deleting.join(60)
    assert outcome in (["deleted"], ["1213"], ["1205"])
    left = {b"b": 55} if outcome == ["deleted"] else {b"a": 56, b"b": 55}
    assert db.keys("v") == left
    verified(verifying)


# -- settings -----------------------------------------------------------------------------------


NO_WIDTH = (
    *("", "minute", "minute=2", "minute=2w", "minute=-2d", "minute=1.5d", "minute=٢d"),
    *("minute=2d,", "minute=2d\n", "minute=9999999999d", "x" * 100_000, "forever,minute=2d"),
)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        *((steps, "is not WIDTH=TIME with m") for steps in NO_WIDTH),
        ("second=2d", "'second' is not one of minute, quarter, hour, day"),
        ("month=400d", "'month' is not one of minute, quarter, hour, day"),
        ("day=30d,hour=40d", "day comes before hour"),
        ("minute=31d,day=30d", "is not shorter than day=30d"),
        ("minute=0d", "buckets can be kept for 1m to 100000d"),
        ("minute=100001d", "buckets can be kept for 1m to 100000d"),
        ("minute=2d,minute=3d", "minute comes before minute"),
        ("hour=2d,minute=3d", "hour comes before minute"),
        ("minute=2d,hour=2d", "is not shorter than hour=2d"),
        ("minute=2d,hour=48h", "is not shorter than hour=2d"),
    ],
)
def test_steps_that_cannot_be_are_refused(store_of_nowhere: Store, steps: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        store_of_nowhere.counters.set("v", resolution="minute", keep=steps)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def everything(session: Session) -> list[object]:
    """All that settings are made of."""
    return [
        session.query(f"SELECT * FROM {table} ORDER BY 1, 2") for table in ("counter", "control")
    ]


def refused(store: Store, session: Session, said: str, **settings: Any) -> None:
    """It is refused by a sentence, and nothing was changed."""
    before = everything(session)
    with pytest.raises(ValueError, match=said) as error:
        store.counters.set("v", **settings)
    assert "\n" not in str(error.value)
    assert everything(session) == before


def test_steps_have_to_fit_the_other_settings(store: Store, session: Session) -> None:
    refused(store, session, "its finest are day buckets", keep="minute=2d")
    store.counters.set("v", resolution="quarter", keep="quarter=29d,day=30d")
    refused(store, session, "its finest are quarter buckets", keep="minute=2d")
    refused(store, session, "its finest are hour buckets", resolution="hour")
    store.counters.set("v", resolution="hour", keep="day=1d")


def test_steps_go_on_for_what_was_counted_in_finer_buckets(
    db: Database, verifying: Session
) -> None:
    minutes_kept(db.store)
    hour = hour_of_old()
    count(db.applier, an_hour_of("a", hour))
    for resolution in ("day", "hour", "quarter", "day"):
        db.store.counters.set("v", resolution=resolution)
    count(db.applier, {("a", hour): 100, ("a", now_minute()): 1000})
    assert rolled_up(db.mysql_url).rolled_up == 55
    assert db.session.query("SELECT width, SUM(amount) FROM counter_slot GROUP BY width") == [
        (3, 55),
        (4, 1100),
    ]
    assert db.store.totals.total("v") == 1155
    verified(verifying)


def test_hours_need_a_time_zone_of_whole_hours(store: Store, session: Session) -> None:
    kolkata: dict[str, Any] = {"time_zone": "Asia/Kolkata", "resolution": "minute"}
    for steps in ("minute=2d,hour=90d", "quarter=2d,hour=90d"):
        refused(store, session, "write quarter instead of hour", keep=steps, **kolkata)
    store.counters.set("v", keep="minute=2d,quarter=90d", **kolkata)
    store.counters.set("v", time_zone="UTC", keep="minute=2d,hour=90d")
    refused(store, session, "write quarter", time_zone="Asia/Kathmandu")

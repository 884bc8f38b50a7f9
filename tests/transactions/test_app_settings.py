"""Settings of counters by which an application's transactions count, and changes of them meanwhile:
each event is counted once, on the day that it is of in the counter's time zone, in all breakdowns
that have begun."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from countersink.counting.apply.guards import exclusive
from countersink.counting.counters.settings import Counter, SettingsChange, change
from countersink.counting.errors import InexactZone
from countersink.database.connection import connect
from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.database.url import Settings
from countersink.store import Store, TrackedCounter, UnknownCounter
from countersink.store.verify import verify
from countersink.transactions import MAX_AGE_S, Clocks
from tests.counting.test_tracked_refusals import track
from tests.support.app_connection import (
    Connection,
    app_slots,
    commit_one,
    labels,
    open_app,
    without_snapshot_isolation,
)
from tests.support.entries import Database, entry, row, says, together
from tests.support.proxies import Deed, MySQLProxy, Phase, Request

pytestmark = pytest.mark.servers("mariadb", "mysql")

LATE = datetime(2026, 11, 21, 23, 30, tzinfo=UTC)
"""In Berlin it is the next day."""


class Moved:
    """Clocks that are ahead of this machine's."""

    def __init__(self) -> None:
        self.monotonic = self.wall = 0.0

    def __call__(self) -> Clocks:
        now = Clocks.now()
        return Clocks(now.monotonic + self.monotonic, now.wall + self.wall)

    def pass_by(self, seconds: float) -> None:
        """Let time go by on both."""
        self.monotonic += seconds
        self.wall += seconds


@pytest.fixture
def clocks(store: Store) -> Moved:
    """The clocks of the store's process."""
    moved = store._increments._settings._clocks = Moved()
    return moved


@pytest.fixture
def other(mysql_url: str) -> Iterator[Store]:
    """Another process's store, as far as this one can tell."""
    with Store(mysql_url) as opened:
        yield opened


def in_berlin(store: Store) -> object:
    return store.counters.set("orders", time_zone="Europe/Berlin")


def age(session: Session, minutes: int = 11) -> None:
    """Let it be longer ago that time zones were fixed."""
    session.execute("UPDATE counter SET zone_fixed = zone_fixed - INTERVAL %s MINUTE", (minutes,))


def change_waits_for_commit(session: Session, app: Connection, wanted: SettingsChange) -> Counter:
    """Change settings: refused while the application's transaction is open, and done after it."""
    with connect(session.where, isolation="REPEATABLE READ") as changing:
        with pytest.raises(Conflict):
            exclusive(changing, partial(change, wanted, changing), attempts=1)
        app.commit()
        return exclusive(changing, partial(change, wanted, changing), attempts=1)


# -- time zones -----------------------------------------------------------------------------------


def test_a_time_zone_stays_once_an_application_is_about_to_count_in_it(
    db: Database, other: Store
) -> None:
    db.store.increment(db.app, "orders", "a", at=LATE)
    for minutes in (0, 1):
        age(db.session, minutes)
        with pytest.raises(ValueError, match="may be counting orders in UTC"):
            in_berlin(other)
    # Longer ago it is waited for, and in the end given way to.
    age(db.session)
    to_berlin = SettingsChange("orders", "Europe/Berlin", None, None, None)
    with (
        connect(db.session.where, isolation="REPEATABLE READ") as changing,
        pytest.raises(Conflict),
    ):
        exclusive(changing, partial(change, to_berlin, changing), attempts=1)
    db.app.commit()
    with pytest.raises(ValueError, match="orders has been counted in UTC"):
        in_berlin(other)
    assert labels(db.session) == {"2026-11-21 00:00:00": 1}


def test_what_was_rolled_back_keeps_a_time_zone_for_ten_minutes(
    db: Database, other: Store, clocks: Moved
) -> None:
    db.store.increment(db.app, "orders", "a", at=LATE)
    db.app.rollback()
    with pytest.raises(ValueError, match="for ten minutes"):
        in_berlin(other)
    age(db.session)
    assert in_berlin(other)
    clocks.pass_by(MAX_AGE_S)
    db.store.increment(db.app, "orders", "a", at=LATE)
    with pytest.raises(ValueError, match="may be counting orders in Europe/Berlin"):
        other.counters.set("orders", time_zone="Asia/Tokyo")
    db.app.commit()
    assert labels(db.session) == {"2026-11-22 00:00:00": 1}


def test_first_counts_and_a_time_zone_at_once_agree(db: Database, verifying: Session) -> None:
    for number in range(8):
        name = f"orders{number}"

        def count(name: str = name) -> None:
            with Store(db.mysql_url) as own, open_app(db.mysql_url) as app:
                commit_one(own, app, name, "a", at=LATE)

        def set_zone(name: str = name) -> bool:
            with Store(db.mysql_url) as own:
                try:
                    return bool(own.counters.set(name, time_zone="Europe/Berlin"))
                except (ValueError, Conflict):
                    return False

        def work(name: str = name) -> object:
            at = round(LATE.timestamp()) // 60
            return db.applier.apply([entry([(0, name, "a", at, 1)])])

        *_, done, _ = together(count, count, set_zone, work)
        day = "2026-11-22 00:00:00" if done else "2026-11-21 00:00:00"
        assert labels(db.session, name) == {day: 3}
    assert verify(verifying).agrees


def test_a_deleted_counter_counts_from_0_in_its_time_zone(db: Database, other: Store) -> None:
    """What is remembered of it, and what is in the queue, goes to the same days."""
    in_berlin(other)
    commit_one(db.store, db.app, "orders", "a", 5, at=LATE)
    assert other.counters.delete("orders").amount == 5
    assert other.counters.list() == []
    with pytest.raises(UnknownCounter):
        other.counters.show("orders")
    with pytest.raises(UnknownCounter):
        other.totals.total("orders")
    with pytest.raises(ValueError, match="neither counted nor deleted for ten minutes"):
        other.counters.set("orders", time_zone="Asia/Tokyo")
    commit_one(db.store, db.app, "orders", "a", 2, at=LATE)
    db.applier.apply([entry([(0, "orders", "b", round(LATE.timestamp()) // 60, 3)])])
    assert labels(db.session) == {"2026-11-22 00:00:00": 5}
    assert not other.counters.show("orders").made
    other.counters.delete("orders")
    age(db.session)
    made = other.counters.set("orders", time_zone="Asia/Tokyo")
    assert (made.time_zone, made.made) == ("Asia/Tokyo", True)


# -- resolutions, slots, breakdowns ---------------------------------------------------------------


@pytest.mark.servers("mariadb")  # MySQL scans, and locks, the whole of a table with few rows
def test_an_open_transaction_holds_up_no_change(db: Database, other: Store) -> None:
    db.store.increment(db.app, "orders", "a")
    with connect(db.session.where, isolation="REPEATABLE READ") as changing:
        wanted = SettingsChange("orders", None, "hour", None, 3)
        assert exclusive(changing, partial(change, wanted, changing), attempts=1).app_slots == 3
    other.counters.set_strict(True)
    assert db.applier.apply([entry([row("/a", counter="views")])]).dead == 1
    db.app.commit()
    assert db.store.totals.total("orders") == 1


def test_another_resolution_is_followed_within_a_minute_and_nothing_is_lost_before(
    db: Database, other: Store, clocks: Moved
) -> None:
    without_snapshot_isolation(db.app)
    commit_one(db.store, db.app, "orders", "a")
    other.counters.set("orders", resolution="minute", app_slots=1)
    commit_one(db.store, db.app, "orders", "a", 10)
    clocks.pass_by(MAX_AGE_S)
    for days in (-300, 0, 300):
        commit_one(
            db.store, db.app, "orders", "a", 100, at=datetime.now(UTC) + timedelta(days=days)
        )
    rows = db.session.query(
        "SELECT width, COUNT(DISTINCT bucket), SUM(amount) FROM counter_slot GROUP BY width"
    )
    assert rows == [(1, 3, 300), (4, 1, 11)]
    assert db.store.totals.total("orders") == 311
    assert sum(dict(db.store.totals.daily("orders")).values()) == 311
    assert app_slots(db.session)[256] >= 300


def test_a_resolution_waits_for_what_a_transaction_has_counted_ahead(db: Database) -> None:
    ahead = datetime.now(UTC) + timedelta(days=30)
    commit_one(db.store, db.app, "orders", "a")
    db.store.increment(db.app, "orders", "a", 7, at=ahead)
    wanted = SettingsChange("orders", None, "minute", None, None)
    change_waits_for_commit(db.session, db.app, wanted)
    noon = ahead.replace(hour=12, minute=0, second=0, microsecond=0)
    with pytest.raises(InexactZone):
        db.store.totals.total("orders", start=noon)


def test_the_time_is_that_of_the_server(db: Database, clocks: Moved) -> None:
    """However wrong that of the application's machine is."""
    clocks.wall = -10 * 365 * 86_400
    commit_one(db.store, db.app, "orders", "a")
    ((today,),) = db.session.query("SELECT CAST(UTC_DATE() AS CHAR)")
    assert labels(db.session) == {f"{today} 00:00:00": 1}


@pytest.mark.parametrize(
    ("monotonic", "wall"),
    [(MAX_AGE_S, MAX_AGE_S), (MAX_AGE_S, 0.0), (0.0, 700.0), (0.0, -60.0), (1e6, 1e6)],
)
def test_settings_are_read_again_by_whichever_clock_says_so(
    db: Database, other: Store, clocks: Moved, monotonic: float, wall: float
) -> None:
    without_snapshot_isolation(db.app)
    commit_one(db.store, db.app, "orders", "a")
    other.counters.set("orders", resolution="minute")
    clocks.monotonic += monotonic
    clocks.wall += wall
    found, _ = db.store._increments._settings.for_event("orders", None)
    assert found.catalog.scheme("orders").resolution == "minute"


def test_events_are_in_each_breakdown_that_has_begun_whatever_is_remembered(
    db: Database, other: Store, clocks: Moved
) -> None:
    german = {"country": "DE"}
    db.store.counters.set("orders", dimensions=["country"])
    db.store.increment(db.app, "orders", german, 1)
    db.app.commit()
    made = other.counters.set("orders", breakdowns=["country"]).breakdowns[0]
    begins = datetime.fromtimestamp(made.since * 60, UTC)
    db.store.increment(db.app, "orders", german, 10)
    for amount, at in ((100, begins), (1000, begins - timedelta(minutes=1))):
        db.store.increment(db.app, "orders", german, amount, at=at)
    db.app.commit()
    assert db.keys("orders") == {b"": 1111}
    assert db.keys(made.name) == {b"DE": 100}


def test_the_minute_of_an_event_is_no_later_than_its_settings_allow(
    db: Database, clocks: Moved
) -> None:
    """A process that was stopped for eleven minutes before, after or between reads them again."""
    cache = db.store._increments._settings
    _, before = cache.for_event("orders", None)
    stops = [660.0, 0.0, 660.0, 660.0, 0.0, 660.0]

    def stopped() -> Clocks:
        clocks.pass_by(stops.pop() if stops else 0.0)
        return clocks()

    cache._clocks = stopped
    found, minute = cache.for_event("orders", None)
    assert not stops
    assert found.are_fresh(clocks())
    assert before <= minute <= before + 1


# -- who may be counted ---------------------------------------------------------------------------


def test_strict_mode_refuses_what_nobody_has_made(db: Database, other: Store) -> None:
    other.counters.set_strict(True)
    with pytest.raises(UnknownCounter, match="countersink counter set orders"):
        db.store.increment(db.app, "orders", "a")
    db.store.delete(db.app, "orders", "a")
    db.app.commit()
    assert db.session.query("SELECT * FROM counter_slot") == []
    other.counters.set("orders")
    commit_one(db.store, db.app, "orders", "a")
    assert db.store.totals.total("orders") == 1


def test_strict_mode_refuses_what_was_only_ever_rolled_back_and_what_was_deleted(
    db: Database, other: Store, clocks: Moved
) -> None:
    db.store.increment(db.app, "orders", "a")
    db.app.rollback()
    commit_one(db.store, db.app, "counted", "a")
    other.counters.set_strict(True)
    clocks.pass_by(MAX_AGE_S)
    db.store.increment(db.app, "counted", "a")
    with pytest.raises(UnknownCounter):
        db.store.increment(db.app, "orders", "a")
    db.app.commit()
    assert db.applier.apply([entry([row("a", counter="counted")])]).rows == 1
    assert db.store.totals.total("counted") == 3
    other.counters.delete("counted")
    clocks.pass_by(MAX_AGE_S)
    with pytest.raises(UnknownCounter):
        db.store.increment(db.app, "counted", "a")


def test_a_tracked_tables_counter_is_its_triggers_alone(db: Database) -> None:
    track(db.session, "orders")
    calls: list[Callable[[], object]] = [
        lambda: db.store.increment(db.app, "orders", "a"),
        lambda: db.store.increment(db.app, "orders", "a", 0),
        lambda: db.store.increment_many(db.app, "orders", {"a": 1, "b": 2}),
        lambda: db.store.delete(db.app, "orders", "a"),
        lambda: in_berlin(db.store),
        lambda: db.store.counters.set("orders", keep="day=30d"),
        lambda: db.store.counters.delete("orders"),
        lambda: db.store.counters.delete("orders", "a"),
    ]
    for call in calls:
        with pytest.raises(TrackedCounter, match="untrack orders"):
            call()
        db.app.rollback()  # at REPEATABLE READ it has seen, and locked, that it may not count
    assert db.session.query("SELECT * FROM counter_slot") == []


def test_a_table_is_not_tracked_by_a_counter_that_an_application_is_about_to_count(
    db: Database, app_database_url: str
) -> None:
    with connect(app_database_url) as there:
        there.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
    table = f"{Settings.parse(app_database_url).database}.orders"
    db.store.increment(db.app, "orders", "a")
    with pytest.raises(ValueError, match="run this again ten minutes later"):
        db.store.tracked.track(table, counter="orders")
    db.app.rollback()
    age(db.session)
    db.store.tracked.track(table, counter="orders")
    with pytest.raises(TrackedCounter):
        db.store._increments._settings.read("orders")
    db.store.tracked.untrack("orders")


# -- breakdowns and applications that know nothing of a change ----------------------------------


@pytest.mark.parametrize("first", ["open", "rolled back"])
def test_a_breakdown_does_not_hold_all_of_what_an_application_is_about_to_count(
    db: Database, other: Store, first: str
) -> None:
    db.store.increment(db.app, "orders", "", 5)
    if first == "rolled back":
        db.app.rollback()
    made = other.counters.set("orders", dimensions=["page"], breakdowns=["page"]).breakdowns[0]
    assert made.since > 0
    if first == "rolled back":
        db.store.increment(db.app, "orders", "", 5)
    db.app.commit()
    assert db.store.totals.total("orders") == 5


def test_a_breakdown_begins_behind_what_an_open_transaction_has_counted_ahead(db: Database) -> None:
    db.store.counters.set("orders", dimensions=["page"])
    commit_one(db.store, db.app, "orders", {"page": "/a"})
    ahead = datetime.now(UTC) + timedelta(hours=24)
    db.store.increment(db.app, "orders", {"page": "/b"}, 9, at=ahead)
    wanted = SettingsChange("orders", None, None, None, None, breakdowns=(("page",),))
    made = change_waits_for_commit(db.session, db.app, wanted).breakdowns[0]
    assert made.since * 60 > ahead.timestamp()


def test_rows_of_a_breakdown_that_is_gone_become_no_others(db: Database, other: Store) -> None:
    """An application goes on counting in it for a minute; what it counted goes the next time."""
    both = {"page": "/a", "country": "DE"}
    db.store.counters.set("orders", dimensions=["page", "country"], breakdowns=["page"])
    commit_one(db.store, db.app, "orders", both, 5)
    other.counters.delete("orders")
    made = other.counters.set("orders", dimensions=["page", "country"], breakdowns=["country"])
    assert [each.name for each in made.breakdowns] == ["orders#2"]
    commit_one(db.store, db.app, "orders", both, 7)
    assert db.keys("orders#1") == {b"/a": 7}
    assert db.keys("orders#2") == {}
    age(db.session)
    other.counters.set("orders", breakdowns=[])
    assert db.keys("orders#1") == {}
    found = db.session.query("SELECT name FROM counter WHERE breakdown_of = 'orders'")
    assert found == [("orders#2",)]  # the other one has been swept twice
    other.counters.delete("orders")
    assert db.session.query("SELECT * FROM counter_slot") == []


def test_a_resolution_waits_for_a_first_count_that_has_been_open_for_long(db: Database) -> None:
    db.store.increment(db.app, "orders", "", 5)
    age(db.session)
    wanted = SettingsChange("orders", None, "hour", None, None)
    change_waits_for_commit(db.session, db.app, wanted)


def test_a_zone_that_an_application_fixes_while_it_is_to_be_changed_stays(db: Database) -> None:
    """Between the first look of the change and its lock on the row."""
    db.store.counters.set("orders", max_keys=10)

    def fix(_: Request) -> None:
        db.store.increment(db.app, "orders", "a", at=LATE)

    with MySQLProxy.to(db.mysql_url) as proxy, Store(proxy.url(db.mysql_url)) as changing:
        proxy.when("*", Phase.AFTER, Deed.PASS, call=fix, where=says("FROM tracked_table"))
        with pytest.raises(ValueError, match="may be counting orders in UTC"):
            in_berlin(changing)
    db.app.commit()
    assert labels(db.session) == {"2026-11-21 00:00:00": 1}

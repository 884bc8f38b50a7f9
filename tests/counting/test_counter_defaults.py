"""Default settings: a counter has those of its first moment, whoever makes it, and keeps them."""

from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from threading import Event
from typing import Any

import pytest

from countersink.backfill import history
from countersink.backfill.options import BackfillOptions
from countersink.counting.apply.guards import BUILT_IN, CounterDefaults
from countersink.counting.counters.all_counters import delete_unused_rows
from countersink.counting.counters.buckets import NUMBER, RESOLUTIONS, width_of
from countersink.counting.counters.settings import Counter
from countersink.database.connection import connect
from countersink.database.sql import LABEL
from countersink.store import Store
from tests.counting.test_schemes import counted, event
from tests.support.app_connection import wait_for_lock_wait
from tests.support.entries import (
    Database,
    again_and_again,
    beside,
    entry,
    once,
    says,
    together,
    wait_for_update_lock,
)
from tests.support.proxies import MySQLProxy
from tests.support.traffic import now_minute

pytestmark = pytest.mark.servers("mariadb", "mysql")

BERLIN = CounterDefaults("Europe/Berlin", "hour", "hour=90d")


def in_berlin(store: Store) -> None:
    assert store.counters.set_defaults(time_zone=BERLIN[0], resolution="hour", keep="hour=90d")
    assert store.counters.defaults() == BERLIN


def settings_of(counter: Counter) -> tuple[object, ...]:
    return counter.time_zone, counter.resolution, counter.keep


HOURS = ("Europe/Berlin", "hour", (("hour", 90 * 1440),))
DAYS = ("UTC", "day", ())


def test_each_way_of_making_a_counter_gives_it_the_defaults(db: Database) -> None:
    """Of what was counted before, also without a row, nothing changes."""
    at = now_minute()
    db.applier.apply([entry([event(at)])])
    in_berlin(db.store)
    db.applier.apply([entry([event(at, 10), event(at, counter="fired")])])
    db.store.counters.set("made", max_keys=9)
    db.store.increment(db.app, "orders", "a", at=datetime.fromtimestamp(at * 60, UTC))
    db.app.commit()
    _, resolution = history.begin(
        db.session, BackfillOptions(counter="old_days", sources=(), mode="reconcile"), [], "test"
    )
    assert resolution == "hour"
    db.applier.apply([entry([event(at, counter="old_days")])])
    hour = at // 60 * 3600 + 3
    assert counted(db.session) == {at // 1440 * 86_400 + 4: 11}
    for name in ("fired", "orders", "old_days"):
        assert counted(db.session, name) == {hour: 1}, name
    db.store.counters.set_defaults(time_zone="Asia/Tokyo", resolution="day", keep="forever")
    expected = {"views": DAYS, **dict.fromkeys(("fired", "made", "old_days", "orders"), HOURS)}
    assert {one.name: settings_of(one) for one in db.store.counters.list()} == expected


def age_zones(db: Database) -> None:
    """Let time pass until a counter's time zone may change."""
    db.session.execute("UPDATE counter SET zone_fixed = zone_fixed - INTERVAL 11 MINUTE")


def test_a_counter_that_has_a_row_and_no_counts_follows_the_defaults(db: Database) -> None:
    """An application rolled back, a backfill failed, all was deleted. One that may be counted by
    what its row says does not follow."""
    at = now_minute()
    for name in ("rolled_back", "deleted", "failed", "running", "made"):
        if name == "rolled_back":
            db.store.increment(db.app, name, "a")
            db.app.rollback()
        elif name == "deleted":
            db.applier.apply([entry([event(at, counter=name)])])
            db.store.counters.delete(name)
        elif name == "made":
            db.store.counters.set(name)
        else:
            run, _ = history.begin(db.session, BackfillOptions(counter=name, sources=()), [], name)
            if name == "failed":
                history.end(db.session, run, "failed")
    age_zones(db)
    db.store.increment(db.app, "just_now", "a")
    db.app.rollback()
    in_berlin(db.store)
    names = ("rolled_back", "deleted", "failed", "running", "made", "just_now")
    db.applier.apply([entry([event(at, counter=name) for name in names])])
    followed = {one.name: settings_of(one) for one in db.store.counters.list()}
    assert followed == {name: DAYS if name in names[3:] else HOURS for name in names}
    assert [db.store.totals.total(name) for name in names] == [1] * 6


def test_the_defaults_change_beside_a_transaction_that_counts_for_the_first_time(
    db: Database,
) -> None:
    """However long it has been open: nobody waits for it, and only its counter does not follow."""
    db.store.increment(db.app, "left", "a")
    db.app.rollback()
    db.store.increment(db.app, "orders", "a")
    age_zones(db)
    in_berlin(db.store)
    assert db.session.query("SELECT name FROM counter") == [("orders",)]
    db.app.commit()
    db.applier.apply([entry([event(now_minute(), counter=name) for name in ("orders", "left")])])
    assert settings_of(db.store.counters.show("orders")) == DAYS
    assert settings_of(db.store.counters.show("left")) == HOURS
    assert db.store.totals.total("orders") == 2


@pytest.mark.parametrize("waits", [True, False])
def test_a_row_that_is_used_at_the_last_moment_stays(db: Database, waits: bool) -> None:
    """The deletion waits for the transaction, and gives way to one that stays open."""
    db.store.increment(db.app, "orders", "a")
    db.app.rollback()
    age_zones(db)
    with MySQLProxy.to(db.mysql_url) as proxy, Store(proxy.url(db.mysql_url)) as store:

        def meanwhile() -> None:
            db.store.increment(db.app, "orders", "a")
            age_zones(db)
            began.set()

        began = Event()
        rule = once(proxy, says("DELETE FROM counter "), meanwhile)
        with beside(partial(in_berlin, store)) as changed:
            assert began.wait(60)
            if waits:
                wait_for_lock_wait(db.session)
                db.app.commit()
        changed.result()
        assert rule.acted == 1
    db.app.commit()
    db.applier.apply([entry([event(now_minute(), counter="orders")])])
    assert settings_of(db.store.counters.show("orders")) == DAYS
    assert db.store.totals.total("orders") == 2


def test_to_find_rows_that_are_unused_no_counts_are_read(db: Database) -> None:
    """But whether there are any: neither server may make a table of all names of what it has."""
    db.count(*((f"/{n}", 1) for n in range(3_000)))
    db.session.insert_rows("counter (name)", [(f"c{n}",) for n in range(3_000)], 500)
    db.session.query("ANALYZE TABLE counter, counter_slot, counter_ledger")
    with connect(db.session.where, isolation="REPEATABLE READ") as session:
        delete_unused_rows(session)
        ((_, reads),) = session.query("SHOW SESSION STATUS LIKE 'Handler_read_next'")
    assert int(reads) < 100
    assert db.session.query("SELECT name FROM counter") == []


def test_a_worker_forgets_a_row_that_is_deleted_after_the_change(db: Database) -> None:
    """It may have read it together with the new defaults."""
    db.store.increment(db.app, "orders", "a")
    db.app.rollback()
    age_zones(db)

    def work() -> None:
        db.applier.apply([entry([event(now_minute(), counter="views")])])

    with MySQLProxy.to(db.mysql_url) as proxy, Store(proxy.url(db.mysql_url)) as store:
        rule = once(proxy, says("UNCOMMITTED"), work)
        in_berlin(store)
        assert rule.acted == 1
    at = now_minute()
    db.applier.apply([entry([event(at, counter="orders")])])
    assert settings_of(db.store.counters.show("orders")) == HOURS
    assert counted(db.session, "orders") == {at // 60 * 3600 + 3: 1}


def test_a_deleted_counter_begins_anew_in_its_hours(db: Database) -> None:
    in_berlin(db.store)
    for name in ("views", "own"):
        db.applier.apply([entry([event(now_minute(), counter=name)])])
    db.store.counters.set("own", resolution="quarter", keep="forever")
    for name, steps in (("views", HOURS[2]), ("own", ())):
        db.store.counters.delete(name)
        db.applier.apply([entry([event(now_minute(), counter=name)])])
        assert db.store.counters.show(name).keep == steps


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"time_zone": "Mars/Olympus"}, "no time zone"),
    ({"time_zone": ""}, "no time zone"),
    ({"resolution": "second"}, "one of day, hour, quarter, minute"),
    ({"time_zone": "Asia/Kolkata"}, "use the resolution quarter"),
    (
        {"keep": "minute=2d"},
        "a new counter has no minute buckets.*--keep forever, or --resolution minute",
    ),
    ({"resolution": "day"}, "a new counter has no hour buckets.*give --keep forever, or"),
    ({"keep": "hours=2d"}, "'hours' is not one of"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_what_no_counter_can_have_is_refused(
    db: Database, changes: dict[str, Any], said: str
) -> None:
    in_berlin(db.store)
    before = db.session.query("SELECT * FROM control")
    with pytest.raises(ValueError, match=said):
        db.store.counters.set_defaults(**changes)
    assert db.session.query("SELECT * FROM control") == before


def test_settings_that_do_not_fit_the_defaults_are_refused_and_make_nothing(db: Database) -> None:
    in_berlin(db.store)
    own: list[dict[str, Any]] = [{"resolution": "day"}, {"time_zone": "Asia/Kolkata"}]
    for changes in own:
        with pytest.raises(ValueError, match="`countersink counter defaults`"):
            db.store.counters.set("views", **changes)
    assert db.store.counters.list() == []
    assert db.store.counters.set("views", resolution="day", keep="forever").keep == ()
    assert db.store.counters.set_defaults(keep="forever", resolution="day")[2] is BUILT_IN[2]


def test_the_defaults_wait_for_an_application_that_creates_a_counter_by_them(db: Database) -> None:
    """Otherwise a worker could count it by new ones, before its row says the old ones."""

    def change_and_count() -> None:
        db.store.counters.set_defaults(resolution="hour")
        db.applier.apply([entry([event(now_minute(), counter="orders")])])

    with MySQLProxy.to(db.mysql_url) as proxy, Store(proxy.url(db.mysql_url)) as store:
        with ExitStack() as threads:

            def meanwhile() -> None:
                threads.enter_context(beside(change_and_count))
                wait_for_update_lock(db.session)

            rule = once(proxy, says("INTO counter (name"), meanwhile)
            store.increment(db.app, "orders", "a")
            db.app.commit()
        assert rule.acted == 1
    assert db.session.query("SELECT width, SUM(amount) FROM counter_slot GROUP BY width") == [
        (NUMBER["day"], 2)
    ]


def test_workers_and_applications_create_counters_while_the_defaults_change(db: Database) -> None:
    """All buckets of a counter are of its one resolution, so each total has all of them."""
    names, widths = [f"c{n}" for n in range(60)], cycle(RESOLUTIONS)
    at, workers = now_minute(), [db.worker(18), db.worker(19)]

    def change() -> None:
        db.store.counters.set_defaults(resolution=next(widths))

    def increment(name: str) -> None:
        db.store.increment(db.app, name, "a")
        db.app.commit()

    with again_and_again(change):
        for name in names:
            apply = [partial(each.apply, [entry([event(at, counter=name)])]) for each in workers]
            together(*apply, partial(increment, name))
    buckets = db.session.query(f"SELECT DISTINCT counter, {LABEL} FROM counter_slot")
    resolutions = {one.name: one.resolution for one in db.store.counters.list()}
    assert sorted(resolutions) == sorted(names)
    assert [db.store.totals.total(name) for name in names] == [3] * 60
    assert {(name, width_of(int(label))) for name, label in buckets} == set(resolutions.items())

"""A change of resolution is followed at once and exactly: no event is counted twice, or lost."""

import threading
from datetime import UTC, date, datetime

import pytest

from countersink.counting.apply.amounts import Row
from countersink.counting.counters.catalog import load_scheme
from countersink.database.errors import Refused
from countersink.database.session import Session
from countersink.database.sql import LABEL
from countersink.store.verify import open_session, verify
from tests.support.entries import Database, beside, entry, ledger, wait_for_update_lock
from tests.support.traffic import now_minute


def minute_of(moment: datetime) -> int:
    return round(moment.timestamp()) // 60


def event(minute: int, amount: int = 1, key: str = "k", counter: str = "views") -> Row:
    return 0, counter, key, minute, amount


def counted(session: Session, counter: str = "views") -> dict[int, int]:
    """By label the amount of each bucket."""
    rows = session.query(
        f"SELECT {LABEL}, SUM(amount) FROM counter_slot WHERE counter = %s GROUP BY bucket, width",
        (counter,),
    )
    return {int(label): int(amount) for label, amount in rows}


def test_what_is_counted_after_the_change_was_committed_goes_by_it(db: Database) -> None:
    """Whatever the event's time. The applier has the catalog in memory, from before."""
    at = now_minute()
    db.applier.apply([entry([event(at)])])
    db.store.counters.set("views", resolution="hour")
    db.applier.apply([entry([event(at, 10), event(at - 14_400, 20)])])
    db.store.counters.set("other", time_zone="Asia/Tokyo")
    db.applier.apply([entry([event(at, 5, counter="other")])])
    scheme = load_scheme(db.session, "views")
    assert counted(db.session) == {
        scheme.label_in("day", at): 1,
        scheme.label_in("hour", at): 10,
        scheme.label_in("hour", at - 14_400): 20,
    }
    assert counted(db.session, "other") == {load_scheme(db.session, "other").label(at): 5}
    assert db.store.totals.total("views") == 31


def test_the_end_of_a_resolution_is_that_of_its_last_bucket(db: Database) -> None:
    """Of now, or of the latest event that was counted in it, be it from the future."""
    db.store.counters.set("views", time_zone="Asia/Kolkata")
    at = now_minute()
    db.applier.apply([entry([event(at)])])
    db.store.counters.set("views", resolution="quarter")
    days = load_scheme(db.session, "views")
    # For some minutes applications may go on: near a midnight that is the day after.
    last = now_minute() + 2
    ends = {days.ends_at(days.label_in("day", each)) for each in (at, last)}
    assert days.until("day") in ends
    assert days.until("quarter") is None
    ahead = at + 2880
    db.applier.apply([entry([event(ahead)])])
    db.store.counters.set("views", resolution="minute")
    quarters = load_scheme(db.session, "views")
    assert quarters.until("quarter") == quarters.ends_at(quarters.label_in("quarter", ahead))
    db.store.counters.set("views", resolution="day")
    again = load_scheme(db.session, "views")
    assert again.until("day") is None
    assert again.until("minute") is not None
    assert again.widths == ("minute", "quarter", "day")
    assert again.until("hour") == 0


def test_a_change_waits_for_the_transaction_that_is_open_and_sees_what_it_counted(
    db: Database,
) -> None:
    beyond = now_minute() + 2880
    upserted, go_on = threading.Event(), threading.Event()

    def reached(point: str) -> None:
        if point == "upserted":
            upserted.set()
            assert go_on.wait(30)

    applier = db.worker(3, reached=reached)
    before = entry([event(beyond)])
    with beside(lambda: applier.apply([before])):
        assert upserted.wait(30)
        with beside(lambda: db.store.counters.set("views", resolution="hour")):
            wait_for_update_lock(db.session)
            assert load_scheme(db.session, "views").resolution == "day"
            go_on.set()
    scheme = load_scheme(db.session, "views")
    assert scheme.until("day") == scheme.ends_at(scheme.label_in("day", beyond))
    applier.apply([before, entry([event(beyond, 100)])])
    assert counted(db.session) == {
        scheme.label_in("day", beyond): 1,
        scheme.label_in("hour", beyond): 100,
    }
    assert ledger(db.session) == {"views": 101}


def test_the_time_zone_of_a_counter_changes_as_long_as_nothing_was_counted(db: Database) -> None:
    db.applier.apply([entry([event(now_minute(), counter="other")])])
    for zone in ("Asia/Tokyo", "Europe/Berlin"):
        db.store.counters.set("views", time_zone=zone, resolution="hour")
        assert load_scheme(db.session, "views").time_zone == zone
    assert load_scheme(db.session, "views").widths == ("hour",)
    db.applier.apply([entry([event(now_minute(), 0)])])
    with pytest.raises(ValueError, match=r"views has been counted in Europe/Berlin.*cannot be"):
        db.store.counters.set("views", time_zone="Asia/Tokyo")
    with pytest.raises(ValueError, match="other has been counted in UTC"):
        db.store.counters.set("other", time_zone="Asia/Tokyo", resolution="quarter")
    assert load_scheme(db.session, "other").resolution == "day"


def test_a_time_zone_that_this_machine_does_not_know_is_the_matter_of_its_counter_alone(
    db: Database,
) -> None:
    at = minute_of(datetime(2026, 11, 21, 12, tzinfo=UTC))
    day = date(2026, 11, 21)
    db.store.counters.set("views", resolution="hour", time_zone="Europe/Berlin")
    db.applier.apply([entry([event(at, counter=name)]) for name in ("bad", "views", "plain")])
    db.session.execute(
        "INSERT INTO counter (name, time_zone, created) VALUES ('bad', 'Mars/Olympus', NOW(3))"
    )
    db.session.execute("UPDATE control SET catalog_version = catalog_version + 1")
    db.applier.apply([entry([event(at, 10, counter=name)]) for name in ("views", "plain")])
    with pytest.raises(Refused, match=r"Mars/Olympus of bad is unknown.*tzdata"):
        db.applier.apply([entry([event(at, counter="plain"), event(at, counter="bad")])])
    assert db.session.query("SELECT COUNT(*) FROM dead_row") == [(0,)]
    assert ledger(db.session) == {"bad": 1, "views": 11, "plain": 11}
    assert db.store.totals.daily("views", start=day, end=day) == [(day, 11)]
    assert db.store.totals.total("plain", start=day, time_zone="UTC") == 11
    # Whatever needs none of its days is told of this counter too.
    assert db.store.totals.counters() == {"bad": 1, "views": 11, "plain": 11}
    assert db.store.totals.daily("bad") == [(day, 1)]
    with pytest.raises(Refused, match="tzdata"):
        db.store.totals.total("bad", start=day, time_zone="UTC")
    assert [counter.name for counter in db.store.counters.list()] == ["bad", "plain", "views"]
    assert db.store.counters.show("bad").time_zone == "Mars/Olympus"
    with open_session(db.mysql_url) as reading:
        assert verify(reading).agrees
    db.store.counters.delete("bad")
    assert db.store.totals.counters() == {"views": 11, "plain": 11}


def test_a_counter_with_a_garbled_resolution_counts_days(db: Database, verifying: Session) -> None:
    db.store.counters.set("views", resolution="hour", time_zone="Europe/Berlin")
    db.session.execute("UPDATE counter SET resolution = 'week'")
    db.session.execute("UPDATE control SET catalog_version = catalog_version + 1")
    db.applier.apply([entry([event(29_400_000), event(29_400_000, counter="other")])])
    assert counted(db.session) == {load_scheme(db.session, "views").label_in("day", 29_400_000): 1}
    assert db.store.totals.counters() == {"other": 1, "views": 1}
    assert verify(verifying).agrees
    assert db.store.counters.set("views", resolution="hour").resolution == "hour"

"""A change of policy is followed exactly: no event counts under the wrong one, or under two."""

import threading
from collections import Counter
from datetime import UTC, date, datetime, timedelta

import pytest
import redis

from countersink.store import Store
from countersink.store.apply.amounts import Row
from countersink.store.apply.apply import Applier
from countersink.store.apply.control import exclusive
from countersink.store.connection import Session, connect
from countersink.store.counters.policies import load
from countersink.store.errors import Conflict, Refused
from countersink.store.sql import label_of, label_text
from countersink.store.verify import open_session, verify
from tests.store.helpers import beside, entry, ledger
from tests.support.forked import ForkedChildren
from tests.support.traffic import Traffic, now_ms, send
from tests.support.waiting import eventually


def later(minutes: int = 5) -> datetime:
    """A whole minute so far ahead."""
    return datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=minutes)


def minute_of(moment: datetime) -> int:
    return round(moment.timestamp()) // 60


def event(minute: int, amount: int = 1, key: str = "k", counter: str = "views") -> Row:
    return 0, counter, key, minute, amount


def counted(session: Session, counter: str = "views") -> dict[str, int]:
    """What is in each bucket."""
    rows = session.query(
        "SELECT bucket, SUM(amount) FROM counter_slot WHERE counter = %s GROUP BY bucket",
        (counter,),
    )
    return {label_text(label_of(bucket)): int(amount) for bucket, amount in rows}


def expected(session: Session, *events: Row) -> dict[str, int]:
    """What each bucket must hold by the policies that are in force now."""
    policies = load(session)
    sums: dict[str, int] = {}
    for _, counter, _, at, amount in events:
        text = label_text(policies.bucket(counter, at))
        sums[text] = sums.get(text, 0) + amount
    return sums


def test_a_batch_that_straddles_the_change_is_divided_by_event_time(
    store: Store, session: Session, applier: Applier
) -> None:
    start = later()
    change = minute_of(start)
    applier.apply([entry([event(change - 5000, 0)])])
    store.counters.set("views", time_zone="Asia/Kolkata", resolution="quarter", start=start)
    events = [event(change + offset) for offset in (-2, -1, 0, 1, 16)]
    applier.apply([entry([each]) for each in events])
    found = counted(session)
    assert found == expected(session, event(change - 5000, 0), *events)
    assert {text[-2:] for text in found} == {"00", "01"}


def test_what_is_counted_after_the_change_was_committed_goes_by_it(
    store: Store, session: Session, applier: Applier
) -> None:
    """The applier has the policies in memory, from before."""
    start = later()
    change = minute_of(start)
    applier.apply([entry([event(change + 3)])])
    store.counters.set("views", resolution="hour", start=start)
    applier.apply([entry([event(change + 3, 10)])])
    store.counters.set("other", time_zone="Asia/Tokyo")
    applier.apply([entry([event(change + 3, 5, counter="other")])])
    policies = load(session)
    old, new = policies.of("views")
    assert counted(session) == {
        label_text(old.label(change + 3)): 1,
        label_text(new.label(change + 3)): 10,
    }
    assert counted(session, "other") == expected(session, event(change + 3, 5, counter="other"))
    # The event from beyond the start is the latest that the first policy will ever have.
    assert old.used_to == old.label(change + 3)


def test_a_policy_that_is_superseded_is_used_up_to_its_last_minute(
    store: Store, session: Session, applier: Applier
) -> None:
    start = later(3 * 1440)
    applier.apply([entry([event(minute_of(later()))])])
    store.counters.set("views", time_zone="Asia/Kolkata", start=start)
    third = start + timedelta(days=2)
    store.counters.set("views", resolution="quarter", start=third)
    first, second, last = load(session).of("views")
    assert first.used_to == first.label(minute_of(start) - 1)
    assert second.used_to == second.label(minute_of(third) - 1)
    assert last.used_to is None
    assert (last.number, last.time_zone, last.resolution) == (2, "Asia/Kolkata", "quarter")


def test_nothing_changes_while_a_transaction_counts_by_what_is_in_force(mysql_url: str) -> None:
    refused: list[str] = []

    def reached(point: str) -> None:
        if point == "before_commit":
            with connect(mysql_url) as other, pytest.raises(Conflict):
                exclusive(other, lambda control: None, attempts=1)
            refused.append(point)

    applier = Applier(mysql_url, 3, reached=reached)
    applier.apply([entry([event(minute_of(later()))])])
    applier.close()
    assert refused == ["before_commit"]


def test_a_change_waits_for_the_transaction_that_is_open_and_sees_what_it_counted(
    mysql_url: str, store: Store, session: Session
) -> None:
    start = later()
    beyond = minute_of(start) + 2880
    upserted, go_on = threading.Event(), threading.Event()

    def reached(point: str) -> None:
        if point == "upserted":
            upserted.set()
            assert go_on.wait(30)

    def somebody_asks_for_the_lock() -> bool:
        return any("FOR UPDATE" in str(row[7]) for row in session.query("SHOW FULL PROCESSLIST"))

    applier = Applier(mysql_url, 3, reached=reached)
    before = entry([event(beyond)])
    with beside(lambda: applier.apply([before])):
        assert upserted.wait(30)
        with beside(lambda: store.counters.set("views", time_zone="Asia/Tokyo", start=start)):
            eventually(somebody_asks_for_the_lock)
            assert len(load(session).of("views")) == 1
            go_on.set()
    first, second = load(session).of("views")
    assert first.used_to == first.label(beyond)
    applier.apply([before, entry([event(beyond, 100)])])
    applier.close()
    assert counted(session) == {
        label_text(first.label(beyond)): 1,
        label_text(second.label(beyond)): 100,
    }
    assert ledger(session) == {"views": 101}


def test_a_first_policy_replaces_another_one_as_long_as_nothing_was_counted(
    store: Store, session: Session, applier: Applier
) -> None:
    applier.apply([entry([event(minute_of(later()), counter="other")])])
    for zone in ("Asia/Tokyo", "Europe/Berlin"):
        store.counters.set("views", time_zone=zone, resolution="hour", start=later())
        store.counters.set("views", time_zone=zone)
        (only,) = load(session).of("views")
        assert (only.number, only.valid_from, only.time_zone) == (0, 0, zone)
    at = minute_of(later())
    applier.apply([entry([event(at)])])
    assert counted(session) == expected(session, event(at))


def test_a_worker_process_follows_without_a_restart(
    redis_url: str, redis_client: redis.Redis, mysql_url: str, store: Store, session: Session
) -> None:
    traffic = Traffic(1)
    start = later()
    change = minute_of(start)

    def sent(*events: Row) -> None:
        send(
            redis_client,
            traffic.entry(
                now_ms(redis_client), [(each[1], str(each[2]), *each[3:]) for each in events]
            ),
        )

    def total(wanted: int) -> bool:
        return ledger(session).get("views") == wanted

    with ForkedChildren() as children:
        children.worker(redis_url, mysql_url)
        sent(event(change - 1), event(change))
        eventually(lambda: total(2))
        store.counters.set("views", time_zone="Pacific/Chatham", resolution="quarter", start=start)
        sent(event(change - 1, 10), event(change, 10), event(change + 15, 10))
        eventually(lambda: total(32))
        store.counters.set("new", time_zone="Pacific/Chatham")
        sent(event(change, 100), event(change, 1, counter="new"))
        eventually(lambda: total(132))
    first, second = load(session).of("views")
    wanted = Counter({label_text(first.label(change - 1)): 11})
    wanted[label_text(first.label(change))] += 1
    wanted[label_text(second.label(change))] += 110
    wanted[label_text(second.label(change + 15))] += 10
    assert counted(session) == wanted
    assert counted(session, "new") == expected(session, event(change, 1, counter="new"))


def test_a_time_zone_that_this_machine_does_not_know_stops_counting_and_loses_nothing(
    mysql_url: str, session: Session
) -> None:
    session.execute(
        "INSERT INTO counter_policy (counter, number, valid_from, time_zone, resolution)"
        " VALUES ('views', 0, '1970-01-01', 'Mars/Olympus', 'day')"
    )
    applier = Applier(mysql_url, 1)
    batch = [entry([(0, "views", "/home", 29_400_000, 5)])]
    with pytest.raises(Refused, match=r"Mars/Olympus.*tzdata"):
        applier.apply(batch)
    assert session.query("SELECT COUNT(*) FROM applied_entry") == [(0,)]
    session.execute("UPDATE counter_policy SET time_zone = 'Europe/Berlin'")
    assert applier.apply(batch).applied == 1
    applier.close()


def test_a_time_zone_that_this_machine_does_not_know_is_the_matter_of_its_counter_alone(
    mysql_url: str, session: Session, store: Store, applier: Applier
) -> None:
    at = minute_of(datetime(2026, 11, 21, 12, tzinfo=UTC))
    day = date(2026, 11, 21)
    store.counters.set("views", resolution="hour", time_zone="Europe/Berlin")
    applier.apply([entry([event(at, counter=name)]) for name in ("bad", "views", "plain")])
    session.execute(
        "INSERT INTO counter_policy (counter, number, valid_from, time_zone, resolution)"
        " VALUES ('bad', 0, '1970-01-01', 'Mars/Olympus', 'day')"
    )
    session.execute("UPDATE control SET policy_version = policy_version + 1")
    applier.apply([entry([event(at, 10, counter=name)]) for name in ("views", "plain")])
    with pytest.raises(Refused, match=r"bad counts in Mars/Olympus.*tzdata"):
        applier.apply([entry([event(at, counter="plain"), event(at, counter="bad")])])
    assert session.query("SELECT COUNT(*) FROM dead_row") == [(0,)]
    assert ledger(session) == {"bad": 1, "views": 11, "plain": 11}
    assert store.totals.daily("views", start=day, end=day) == [(day, 11)]
    assert store.totals.total("plain", start=day, time_zone="UTC") == 11
    # Whatever needs none of its days is told of this counter too.
    assert store.totals.counters() == {"bad": 1, "views": 11, "plain": 11}
    assert store.totals.daily("bad") == [(day, 1)]
    with pytest.raises(Refused, match="tzdata"):
        store.totals.total("bad", start=day, time_zone="UTC")
    assert [counter.name for counter in store.counters.list()] == ["bad", "plain", "views"]
    assert store.counters.show("bad").in_force.time_zone == "Mars/Olympus"
    with open_session(mysql_url) as reading:
        assert verify(reading).agrees
    store.counters.delete("bad")
    assert store.totals.counters() == {"views": 11, "plain": 11}


def test_hours_are_counted_in_a_time_zone_that_this_machine_does_not_know(
    session: Session, store: Store, applier: Applier
) -> None:
    """They are the same in all; only its days are not known."""
    store.counters.set("views", resolution="hour")
    session.execute("UPDATE counter_policy SET time_zone = 'Mars/Olympus'")
    applier.apply([entry([event(29_400_000)])])
    assert store.totals.total("views", time_zone="UTC") == 1
    assert len(store.totals.daily("views", time_zone="UTC")) == 1
    for ask in (store.totals.daily, store.totals.hourly, store.totals.monthly):
        with pytest.raises(Refused, match="tzdata"):
            ask("views")

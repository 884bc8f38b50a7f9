"""Making counters, and what of them can be changed when."""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from countersink.store import Store, UnknownCounter
from countersink.store.apply.apply import Applier
from countersink.store.connection import Session
from countersink.store.counters.policies import DEFAULT, Policy
from tests.store.helpers import entry, row, rows, together


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    """The store, on tables that are put up by hand: verify would find that."""
    with Store(mysql_url) as opened:
        yield opened


def version(session: Session) -> int:
    """The number of the policies in force."""
    return int(session.query("SELECT policy_version FROM control")[0][0])


def ahead(minutes: int = 10) -> datetime:
    """A whole minute so far ahead."""
    return datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=minutes)


def test_a_counter_that_was_never_counted_has_its_settings_for_all_time(store: Store) -> None:
    made = store.counters.set("views", time_zone="Europe/Berlin", resolution="quarter")
    assert made.policies == (Policy(time_zone="Europe/Berlin", resolution="quarter"),)
    assert (made.name, made.keep_days, made.app_slots, made.made) == ("views", None, 16, True)
    assert made.rolled_up_to is None
    assert store.counters.show("views") == made


def test_what_is_not_given_stays(store: Store) -> None:
    store.counters.set("views", time_zone="Asia/Tokyo", resolution="hour", keep_days=30)
    made = store.counters.set("views", app_slots=64)
    assert made.policies == (Policy(time_zone="Asia/Tokyo", resolution="hour"),)
    assert (made.keep_days, made.app_slots) == (30, 64)
    assert store.counters.set("views", keep_days="forever").keep_days is None
    first = store.counters.set("views", resolution="day").policies
    assert first == (Policy(time_zone="Asia/Tokyo"),)


def test_setting_what_is_in_force_changes_nothing(
    store: Store, session: Session, applier: Applier
) -> None:
    def again() -> None:
        store.counters.set("views", time_zone="UTC", resolution="day", keep_days=9, app_slots=8)

    again()
    applier.apply([entry([row("/a")])])
    before = version(session)
    again()
    store.counters.set("views", time_zone="UTC", start=ahead())
    store.counters.set("views")
    assert version(session) == before
    assert store.counters.show("views").policies == (DEFAULT,)


def test_a_counted_counter_changes_from_a_time_to_come(store: Store, applier: Applier) -> None:
    applier.apply([entry([row("/a")])])
    start = ahead()
    made = store.counters.set("views", time_zone="Asia/Kolkata", resolution="quarter", start=start)
    first, second = made.policies
    assert second == Policy(
        number=1,
        valid_from=round(start.timestamp()) // 60,
        time_zone="Asia/Kolkata",
        resolution="quarter",
    )
    assert first.used_to is not None
    assert made.in_force == first
    assert made.to_come == (second,)


def test_a_counted_counter_does_not_change_without_a_start(
    store: Store, session: Session, applier: Applier
) -> None:
    applier.apply([entry(rows(("/a", 0)))])
    before = version(session)
    with pytest.raises(ValueError, match=r"views has been counted.*\(--from\), 20.*Z or later"):
        store.counters.set("views", time_zone="Europe/Berlin", keep_days=3)
    assert version(session) == before
    assert store.counters.show("views").keep_days is None
    assert not store.counters.show("views").made


def test_the_past_is_refused_with_the_earliest_time_that_is_not(
    store: Store, applier: Applier
) -> None:
    applier.apply([entry([row("/a")])])
    for start in (ahead(-60), ahead(0), ahead(1) - timedelta(minutes=1)):
        with pytest.raises(ValueError, match="is too early") as refused:
            store.counters.set("views", time_zone="Asia/Tokyo", start=start)
    said = re.search(r"at (\S+)Z or later", str(refused.value))
    assert said is not None
    earliest = datetime.fromisoformat(said[1]).replace(tzinfo=UTC)
    assert earliest > ahead(0)
    store.counters.set("views", time_zone="Asia/Tokyo", start=earliest + timedelta(minutes=1))
    with pytest.raises(ValueError, match="is too early"):
        store.counters.set("views", time_zone="UTC", start=earliest + timedelta(minutes=1))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"time_zone": "Mars/Olympus"}, "no time zone"),
    ({"time_zone": "Asia/Kolkata", "resolution": "hour"}, "use the resolution quarter"),
    ({"time_zone": "Australia/Lord_Howe", "resolution": "hour"}, "use the resolution quarter"),
    ({"resolution": "second"}, "one of day, hour, quarter, minute"),
    ({"keep_days": 0}, "keep_days is 0"),
    ({"keep_days": 1.5}, "keep_days is 1.5"),
    ({"keep_days": True}, "keep_days is True"),
    ({"keep_days": 10**6}, "keep_days is 1000000"),
    ({"app_slots": 0}, "app_slots is 0"),
    ({"app_slots": 257}, "app_slots is 257"),
    ({"start": ahead()}, "a start is for another time zone or resolution"),
    ({"time_zone": "UTC", "start": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001
    ({"time_zone": "UTC", "start": ahead() + timedelta(seconds=1)}, "not a whole minute"),
    (
        {"time_zone": "UTC", "start": datetime(9999, 12, 31, 23, tzinfo=ZoneInfo("Etc/GMT+9"))},
        "after the last possible event, 9999-12-25T23:59Z",
    ),
]


def test_what_cannot_be_is_refused_and_changes_nothing(store: Store, session: Session) -> None:
    for changes, said in REFUSED:
        with pytest.raises(ValueError, match=said):
            store.counters.set("views", **changes)
    assert version(session) == 0
    assert store.counters.list() == []


def test_what_is_no_name_is_refused(store: Store) -> None:
    store.counters.set("views")
    for name in ("", "a b", "ä", "x" * 65, "views\n", "views "):
        with pytest.raises(ValueError, match="1 to 64 characters"):
            store.counters.set(name)
        with pytest.raises(UnknownCounter):
            store.counters.show(name)
    with pytest.raises(TypeError, match="a counter name is a str"):
        store.counters.set(7)  # type: ignore[arg-type]


def test_a_zone_that_was_off_the_hour_long_ago_may_have_hours(store: Store) -> None:
    made = store.counters.set("views", time_zone="Europe/Amsterdam", resolution="hour")
    assert made.in_force.resolution == "hour"


def test_a_counter_can_have_sixty_policies_and_no_more(
    store: Store, session: Session, applier: Applier
) -> None:
    applier.apply([entry([row("/a")])])
    for number in range(58):  # as if it had changed every day since 1970-01-01
        session.execute(
            "INSERT INTO counter_policy (counter, number, valid_from, time_zone, resolution)"
            " VALUES ('views', %s, '1970-01-01' + INTERVAL %s DAY, 'UTC', 'quarter')",
            (number, number),
        )
    session.execute("UPDATE control SET policy_version = policy_version + 1")
    for number in (58, 59):
        zone = "UTC" if number % 2 else "Asia/Tokyo"
        store.counters.set("views", time_zone=zone, start=ahead(number))
    assert [p.number for p in store.counters.show("views").policies] == list(range(60))
    before = version(session)
    with pytest.raises(ValueError, match="count on under another name"):
        store.counters.set("views", resolution="day", start=ahead(100))
    assert version(session) == before


def test_the_policy_in_force_is_the_one_for_events_of_now(store: Store, session: Session) -> None:
    store.counters.set("views", time_zone="Asia/Tokyo")
    store.counters.set("views", time_zone="UTC", start=ahead())
    assert store.counters.show("views").in_force.time_zone == "Asia/Tokyo"
    session.execute(
        "UPDATE counter_policy SET valid_from = '2020-01-01' WHERE counter = 'views' AND number = 1"
    )
    session.execute("UPDATE control SET policy_version = policy_version + 1")
    shown = store.counters.show("views")
    assert shown.in_force == shown.policies[1]
    assert shown.to_come == ()


def test_the_list_has_what_was_made_and_what_was_counted(
    store: Store, session: Session, applier: Applier
) -> None:
    store.counters.set("made")
    applier.apply([entry([row("/a", counter="counted")])])
    session.execute(
        "INSERT INTO counter_month (counter, bucket, counter_key, amount)"
        " VALUES ('kept', '2026-01-01', 'k', 1)"
    )
    session.execute(
        "INSERT INTO counter (name, rolled_up_to, created) VALUES ('z', '2026-02-03', NOW(3))"
    )
    assert [(one.name, one.made, one.rolled_up_to) for one in store.counters.list()] == [
        ("counted", False, None),
        ("kept", False, None),
        ("made", True, None),
        ("z", True, date(2026, 2, 3)),
    ]
    with pytest.raises(UnknownCounter, match="no counter 'other'"):
        store.counters.show("other")


def test_two_changes_at_the_same_moment_follow_one_on_the_other(
    mysql_url: str, store: Store, session: Session
) -> None:
    with Store(mysql_url) as other:
        together(
            lambda: store.counters.set("views", keep_days=30),
            lambda: other.counters.set("views", app_slots=4),
        )
    found = store.counters.show("views")
    assert (found.keep_days, found.app_slots) == (30, 4)
    assert version(session) == 2

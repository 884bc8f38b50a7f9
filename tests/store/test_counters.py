"""Making counters, and what of them can be changed when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from countersink.store import Store
from countersink.store.apply import Applier
from countersink.store.connection import Session
from countersink.store.policies import DEFAULT, Policy
from tests.store.helpers import entry, row, rows


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    """The front door of the same database."""
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


def test_a_counted_counter_changes_from_a_time_to_come(
    store: Store, session: Session, applier: Applier
) -> None:
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

"""Salts: their periods follow on each other, are made ahead, and are forgotten."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from countersink.counting import visitors
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.store import Store
from tests.support.entries import Database, together

Period = tuple[int, int | None]


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    with Store(mysql_url) as opened:
        yield opened


def now() -> datetime:
    return datetime.now(UTC)


def minute(moment: datetime) -> int:
    return int(moment.timestamp()) // 60


def midnight(zone: str, days: int) -> int:
    """The Unix minute of the midnight so many days ahead of today's in a zone."""
    today = now().astimezone(ZoneInfo(zone)).date()
    day = today + timedelta(days=days)
    return minute(datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)))


def periods(session: Session, counter: str = "v") -> list[Period]:
    return [
        (begins, ends)
        for begins, ends in session.query(
            "SELECT begins, ends FROM visitor_salt WHERE counter = %s ORDER BY begins", (counter,)
        )
    ]


def require_contiguous(found: list[Period]) -> None:
    assert found[0][0] == visitors.BEGINNING
    for (_, ends), (begins, _) in pairwise(found):
        assert ends == begins


def test_one_salt_lasts_for_ever(store: Store, session: Session) -> None:
    made = store.counters.set("v", salt_days=0)
    assert made.salt_days == 0
    assert periods(session) == [(visitors.BEGINNING, None)]
    ((number, salt),) = session.query("SELECT number, salt FROM visitor_salt")
    ((published,),) = visitors.keep(session).values()
    assert published == (number, visitors.BEGINNING, None, bytes(salt))
    store.counters.set("v", salt_days=0)
    assert session.query("SELECT number, salt FROM visitor_salt") == [(number, salt)]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York", "Pacific/Kiritimati"])
@pytest.mark.parametrize("days", [1, 2, 7])
def test_salts_are_made_until_the_end_of_tomorrow_at_midnights_of_the_zone(
    store: Store, session: Session, zone: str, days: int
) -> None:
    store.counters.set("v", time_zone=zone, salt_days=days)
    found = periods(session)
    require_contiguous(found)
    wanted = [midnight(zone, days * (n + 1)) for n in range(len(found))]
    assert [ends for _, ends in found] == wanted
    assert found[-1][1] is not None
    assert found[-1][1] >= midnight(zone, 2)
    assert len(found) == (2 if days == 1 else 1)
    assert session.query("SELECT COUNT(DISTINCT salt) FROM visitor_salt") == [(len(found),)]


def test_a_worker_makes_what_is_lacking_once(store: Store, db: Database) -> None:
    store.counters.set("v", salt_days=1)
    days_ago(db.session, 5)
    together(*(lambda: _keep(db.mysql_url) for _ in range(4)))
    found = periods(db.session)
    require_contiguous(found)
    assert found[-1][1] == midnight("UTC", 2)
    assert len(found) == 7


def test_where_nothing_is_lacking_nobody_is_waited_for(store: Store, db: Database) -> None:
    for days in 0, 1, 2:
        store.counters.set(f"v{days}", salt_days=days)
    with db.session.transaction():
        db.session.query("SELECT id FROM control FOR UPDATE")
        _keep(db.mysql_url)


def _keep(mysql_url: str) -> None:
    with open_tables(mysql_url) as session:
        visitors.keep(session)


def test_salts_that_ended_more_than_a_day_ago_are_forgotten(store: Store, session: Session) -> None:
    store.counters.set("v", salt_days=1)
    first, second = (number for (number,) in session.query("SELECT number FROM visitor_salt"))
    ended = minute(now()) - visitors.KEPT_MINUTES
    session.execute("UPDATE visitor_salt SET made = %s", (ended - 1440,))
    session.execute("UPDATE visitor_salt SET ends = %s WHERE number = %s", (ended + 5, first))
    assert [one.number for one in visitors.keep(session)["v"]][:2] == [first, second]
    session.execute("UPDATE visitor_salt SET ends = %s WHERE number = %s", (ended - 5, first))
    assert first not in [one.number for one in visitors.keep(session)["v"]]
    assert session.query("SELECT salt FROM visitor_salt WHERE number = %s", (first,)) == [(None,)]
    assert periods(session)[0] == (visitors.BEGINNING, ended - 5)


def test_salts_of_missed_days_are_kept_for_a_day_after_they_were_made(
    store: Store, session: Session
) -> None:
    store.counters.set("v", salt_days=1)
    days_ago(session, 5)
    numbers = [one.number for one in visitors.keep(session)["v"]]
    made = [number for (number,) in session.query("SELECT number FROM visitor_salt")][2:]
    assert numbers == made
    assert len(made) == 5
    assert [one.number for one in visitors.keep(session)["v"]] == made
    session.execute("UPDATE visitor_salt SET made = made - %s", (visitors.KEPT_MINUTES + 5,))
    assert [one.number for one in visitors.keep(session)["v"]] == made[-3:]  # as ever


def days_ago(session: Session, days: int) -> None:
    """Let the salts be as if they had been made so many days ago."""
    session.execute(
        "UPDATE visitor_salt SET begins = begins - %s, ends = ends - %s, made = made - %s",
        [days * 1440] * 3,
    )
    session.execute(
        "UPDATE visitor_salt SET begins = %s ORDER BY begins LIMIT 1", (visitors.BEGINNING,)
    )


def test_an_endless_salt_ends_at_the_next_midnight_once_salts_are_renewed(
    store: Store, session: Session
) -> None:
    store.counters.set("v", salt_days=0, time_zone="Asia/Kolkata")
    store.counters.set("v", salt_days=2)
    found = periods(session)
    require_contiguous(found)
    soon = minute(now()) + visitors.NOTICE_MINUTES
    assert found[0][1] in (midnight("Asia/Kolkata", 1), midnight("Asia/Kolkata", 2))
    assert found[0][1] is not None
    assert found[0][1] > soon - 5
    assert all(ends is not None for _, ends in found)
    # And back: the last that was made ends, and one follows that does not.
    store.counters.set("v", salt_days=0)
    again = periods(session)
    assert again[:-1] == found
    assert again[-1] == (found[-1][1], None)


@pytest.mark.parametrize("days", [1, 7])
def test_renewal_may_be_switched_on_and_off_again_and_again(
    store: Store, session: Session, days: int
) -> None:
    for salt_days in (days, 0, 1, 0, 7, 1):
        known = periods(session)[:-1]
        store.counters.set("v", salt_days=salt_days)
        found = periods(session)
        require_contiguous(found)
        assert all(begins < ends for begins, ends in found if ends is not None)
        assert (found[-1][1] is None) is (salt_days == 0)
        # What producers know already stays as it is, but for the end of what had none.
        assert found[: len(known)] == known


def test_months_and_renewal_exclude_each_other(store: Store, session: Session) -> None:
    store.counters.set("v", salt_days=1)
    with pytest.raises(ValueError, match=r"--keep day=30d\) and renew its salts \(--salt-days 1\)"):
        store.counters.set("v", keep="day=30d")
    store.counters.set("w", keep="day=30d", salt_days=0)
    with pytest.raises(ValueError, match="cannot both roll up days to months"):
        store.counters.set("w", salt_days=7)
    assert store.counters.show("v").keep == ()
    assert store.counters.show("w").salt_days == 0
    assert periods(session, "w") == [(visitors.BEGINNING, None)]
    store.counters.set("w", keep="forever", salt_days=7)
    assert store.counters.show("w").salt_days == 7


@pytest.mark.parametrize("days", [-1, 367, True, "1", 1.0])
def test_what_is_no_number_of_days_is_refused(store_of_nowhere: Store, days: object) -> None:
    with pytest.raises(ValueError, match=r"salt_days is .*: use a number of days from 1 to 366"):
        store_of_nowhere.counters.set("v", salt_days=days)  # type: ignore[arg-type]


def test_nothing_is_published_of_counters_that_count_no_members(
    store: Store, session: Session
) -> None:
    store.counters.set("plain")
    assert visitors.keep(session) == {}
    store.counters.set("v", salt_days=0)
    assert set(visitors.keep(session)) == {"v"}
    store.counters.delete("v")
    assert visitors.keep(session) == {}

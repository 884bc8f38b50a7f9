"""Counters of known events over more than a year, and sums of them in the tests' own words."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from tests.support.ledger import post_planted
from tests.support.oracle import Oracle
from tests.web.serving import Web

NOW: Final = datetime(2025, 3, 10, 14, 35, tzinfo=UTC)
"""What the browser's clock says."""
BERLIN: Final = "Europe/Berlin"
FIRST: Final = date(2024, 1, 1)
KEYS: Final = ("/", "/blog/a", "/blog/b", "/shop", "")
HOURS: Final = (1, 9, 14, 20, 23)


@dataclass(frozen=True)
class Event:
    """What was counted once."""

    counter: str
    at: datetime
    key: str
    amount: int


def events() -> list[Event]:
    """`visits` by the quarter in Berlin, without any on each sixth day; `buys` by the day in UTC,
    without any on each fifth; nothing after NOW."""
    made = []
    for number in range((NOW.date() - FIRST).days + 1):
        day = FIRST + timedelta(days=number)
        for place, (hour, key) in enumerate(zip(HOURS, KEYS, strict=True)):
            at = datetime(day.year, day.month, day.day, hour, 10, tzinfo=UTC)
            if at > NOW:
                continue
            if number % 6:
                made.append(Event("visits", at, key, (number * 7 + place * 31) % 97 + 1))
            if number % 5 and place < 2:
                made.append(Event("buys", at, key, (number * 3 + place) % 11 + 1))
    return made


EVENTS: Final = events()


def fill(web: Web) -> None:
    """Count them."""
    web.store.counters.set("visits", resolution="quarter", time_zone=BERLIN)
    for event in EVENTS:
        web.producer.increment(event.counter, event.key, event.amount, at=event.at)
    for counter in ("huge", "hugest"):
        web.producer.increment(counter, "", 2**60 + 1, at=NOW - timedelta(days=1))
    web.producer.increment("old", "a", 7, at=datetime(2025, 1, 9, 12, tzinfo=UTC))
    web.apply()
    with Oracle(web.options.mysql_url) as oracle:
        oracle.rows(
            "INSERT INTO counter_slot (counter, bucket, counter_key, width, slot, amount)"
            " VALUES ('old', '2024-12-01', 'a', 5, 0, 310)"
        )
        post_planted(oracle)
        oracle.rows(
            "INSERT INTO counter (name, rolled_month, created) VALUES ('old', '2025-01-01', NOW())"
        )


def counted(
    counter: str,
    start: date,
    end: date,
    zone: str,
    wanted: Callable[[Event], bool] = lambda event: True,
) -> int:
    """The sum of the events of some days of a time zone."""
    return sum(
        event.amount
        for event in EVENTS
        if event.counter == counter
        and start <= event.at.astimezone(ZoneInfo(zone)).date() <= end
        and wanted(event)
    )


def by_day(counter: str, start: date, end: date, zone: str) -> dict[date, int]:
    """The same of each day."""
    days = [start + timedelta(days=n) for n in range((end - start).days + 1)]
    return {day: counted(counter, day, day, zone) for day in days}

"""What a counter has in each hour of each weekday, as a table that is a map."""

import re
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.axe import faults
from tests.browser.chromium import Look
from tests.web.serving import Web

ZONE = ZoneInfo("Europe/Berlin")
DAYS = 15
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def counted(web: Web, now: datetime) -> dict[tuple[int, int], list[int]]:
    """Count some hours; amounts by weekday and hour of those that are over, 0 included."""
    web.store.counters.set("map.hours", resolution="hour", time_zone=ZONE.key)
    now = now.replace(minute=0, second=0, microsecond=0)
    first = (now.astimezone(ZONE) - timedelta(days=DAYS - 1)).replace(hour=0)
    oracle: dict[tuple[int, int], list[int]] = defaultdict(list)
    at = first.astimezone(UTC)
    number = 0
    while at <= now:
        amount = number * 7919 % 53 if number % 3 else 0
        if amount:
            web.producer.increment("map.hours", "a", amount, at=at)
        if at < now:
            local = at.astimezone(ZONE)
            oracle[local.weekday(), local.hour].append(amount)
        at += timedelta(hours=1)
        number += 1
    web.apply()
    return oracle


def cells(table: Locator) -> list[list[float]]:
    """The numbers of each row."""
    script = "(all) => all.map((tr) => [...tr.querySelectorAll('td')].map((td) => td.innerText))"
    rows = table.locator("tbody tr").evaluate_all(script)
    return [[float(cell) for cell in row if cell.strip()] for row in rows]


@pytest.mark.random
def test_hours_by_weekdays_are_averages_of_those_that_are_over(fresh: Look, filled: Web) -> None:
    now = datetime.now(UTC)
    oracle = counted(filled, now)
    last = now.astimezone(ZONE).date()
    first = last - timedelta(days=DAYS - 1)
    page = fresh.page
    page.clock.set_fixed_time(now)  # the next hour may begin meanwhile
    page.goto(f"/#/counter/map.hours?range=custom&from={first}&to={last}")
    page.get_by_text("By weekday and hour").click()
    table = page.get_by_role("table", name="Averages by weekday and hour")
    expect(table.get_by_role("rowheader")).to_have_count(7)
    wide = cells(table)
    for weekday in range(7):
        for hour in range(24):
            amounts = oracle[weekday, hour]
            average = sum(amounts) / len(amounts)
            assert abs(wide[weekday][hour] - average) <= (0.5 if average >= 10 else 0.0501)
    assert faults(page, "light", ".hours") == []
    # On a phone it is turned, and fits.
    page.set_viewport_size({"width": 360, "height": 740})
    expect(table.get_by_role("rowheader")).to_have_count(24)
    assert cells(table) == [[wide[day][hour] for day in range(7)] for hour in range(24)]
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    clipped = "(one) => one.scrollWidth > one.clientWidth"
    assert not page.locator(".map").evaluate(clipped)
    # Of several, the first of the week.
    most = max(sorted(oracle), key=lambda one: sum(oracle[one]) / len(oracle[one]))
    expect(page.get_by_text(f"Most: {WEEKDAYS[most[0]]} {most[1]:02}:00")).to_be_visible()
    # In another time zone they are other hours.
    page.goto(
        f"/#/counter/map.hours?range=custom&from={first + timedelta(days=1)}"
        f"&to={first + timedelta(days=8)}&zone=Asia/Tokyo"
    )
    expect(page.locator(".hours p").last).to_have_text(re.compile("Asia/Tokyo"))


def test_a_counter_by_day_says_why_it_has_none(look: Look, filled: Web) -> None:
    filled.count("map.days")
    look.page.goto("/#/counter/map.days")
    look.page.get_by_text("By weekday and hour").click()
    expect(look.page.get_by_text("counted by day, so its hours are not known")).to_be_visible()

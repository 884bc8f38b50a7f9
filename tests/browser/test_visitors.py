"""How many different visitors the view of a counter shows beside the total of its days, and why it
does not where salts are renewed. Sightings come through the queue.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from countersink.database.connection import connect
from countersink.schedules.jobs.move import open_tables
from tests.browser.axe import faults
from tests.browser.chromium import Look
from tests.support.examples import MANY
from tests.support.roll_up import roll_up
from tests.web.serving import Web

LATER_MS = 12_000
"""Longer than the page waits before it asks again for what live numbers do not tell."""
MEMBERS = 3_000 if MANY else 300
"""More members than are told exactly."""


def last_days(number: int) -> str:
    """The range, in a page's address, of so many days with today."""
    today = datetime.now(UTC).date()
    return f"range=custom&from={today - timedelta(days=number - 1)}&to={today}"


def saw(web: Web, counter: str, members: Iterable[int], days_ago: int = 0, key: str = "/") -> None:
    """Let a page be seen by each of these once."""
    at = datetime.now(UTC) - timedelta(days=days_ago)
    web.apply()  # a worker publishes the salts
    for member in members:
        web.producer.seen(counter, key, str(member), at=at)
    web.apply()


def figure(page: Page, name: str) -> Locator:
    """A total with what stands beside it."""
    return page.locator(".figure", has=page.locator("dt", has_text=name))


def told(web: Web, counter: str) -> dict[str, Any]:
    """What the server tells of all visitors."""
    answer = web.ask("GET", f"/v1/counters/{counter}/totals?by=total&unique=true")
    (row,) = answer.json()["rows"]
    assert isinstance(row, dict)
    return row


def test_different_visitors_stand_beside_the_total_of_the_days(timed: Look, filled: Web) -> None:
    filled.store.counters.set("visitors", resolution="hour", salt_days=0)
    saw(filled, "visitors", range(3), days_ago=1)
    saw(filled, "visitors", range(2, 5))
    saw(filled, "visitors", range(1), key="/only")
    filled.count("visitors.none", "/")
    page = timed.at(f"/#/counter/visitors?{last_days(2)}")
    days = figure(page, "These days")
    expect(days.locator(".visitors")).to_have_text("5 different visitors")
    expect(days.locator("dd > span")).to_have_text("7")
    expect(days.locator(".visitors [title]")).to_have_count(0)
    page.goto(f"/#/counter/visitors?{last_days(1)}&exclude_key=/only")
    expect(days.locator(".visitors")).to_have_text("3 different visitors")
    page.goto(f"/#/counter/visitors?{last_days(2)}&key=/only")
    expect(days.locator(".visitors")).to_have_text("1 different visitor")
    page.goto(f"/#/counter/visitors?{last_days(2)}&key=/nothing")
    expect(days.locator(".visitors")).to_have_text("0 different visitors")
    page.goto("/#/counter/visitors?range=all")
    expect(figure(page, "In all").locator(".visitors")).to_have_text("5 different visitors")
    expect(page.locator(".visitors")).to_have_count(1)
    # Who comes now is told without a reload.
    page.goto("/#/counter/visitors?range=7")
    expect(figure(page, "Last 7 days").locator(".visitors")).to_have_text("5 different visitors")
    saw(filled, "visitors", [7])
    expect(figure(page, "Today").locator(".now")).to_have_text("5")
    page.clock.fast_forward(LATER_MS)
    expect(figure(page, "Last 7 days").locator(".visitors")).to_have_text("6 different visitors")
    # With several lines there are no totals to stand beside.
    asked = len(timed.requests)
    page.goto("/#/counter/visitors?with=visitors.none")
    expect(page.locator(".lines li")).to_have_count(2)
    expect(page.locator(".visitors")).to_be_hidden()
    page.goto("/#/counter/visitors.none")
    expect(figure(page, "In all").locator("dd")).to_have_text("1")
    expect(page.locator(".keys li")).to_have_count(1)
    expect(page.locator(".visitors")).to_be_hidden()
    assert not [one for one in timed.requests[asked:] if "unique" in one]


@pytest.mark.random
def test_an_estimate_says_so_and_its_bounds_can_be_seen_and_heard(look: Look, filled: Web) -> None:
    filled.store.counters.set("visitors.many", salt_days=0)
    saw(filled, "visitors.many", range(MEMBERS))
    row = told(filled, "visitors.many")
    assert row["estimate"] is True
    bounds = f"{row['low']:,} to {row['high']:,}, with 95 %"
    look.page.set_viewport_size({"width": 360, "height": 740})
    look.page.goto("/#/counter/visitors.many")
    line = figure(look.page, "Last 30 days").locator(".visitors span[title]")
    expect(line).to_have_text(f"≈ {row['total']:,} different visitors ({bounds})")
    expect(line).to_have_attribute("title", bounds)
    expect(line.locator(".unseen")).to_have_text(f"({bounds})")
    assert look.page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.random
def test_of_days_with_several_salts_the_reason_is_told_and_of_one_day_the_number(
    look: Look, filled: Web
) -> None:
    filled.store.counters.set("visitors.salts", resolution="minute", salt_days=1)
    # As if it had been set yesterday.
    of = "WHERE counter = 'visitors.salts'"
    with connect(filled.options.mysql_url) as session:
        session.execute(f"UPDATE visitor_salt SET ends = ends - 1440, begins = begins - 1440 {of}")
        session.execute(
            f"UPDATE visitor_salt SET begins = -2147483648 {of} ORDER BY begins LIMIT 1"
        )
    saw(filled, "visitors.salts", range(3), days_ago=1)
    saw(filled, "visitors.salts", range(4))
    reason = (
        "Different visitors over all of these days are not known, as salts are renewed each day."
        " Choose a single day"
    )
    page = look.at(f"/#/counter/visitors.salts?{last_days(1)}")
    days = figure(page, "These days")
    expect(days.locator(".visitors")).to_have_text("4 different visitors")
    page.goto(f"/#/counter/visitors.salts?{last_days(2)}")
    expect(days.locator(".visitors")).to_have_text(f"{reason}.")
    expect(days.locator("dd > span")).to_have_text("7")
    assert faults(page, "light", ".figures") == []
    page.emulate_media(color_scheme="dark")
    assert faults(page, "dark", ".figures") == []
    page.goto("/#/counter/visitors.salts?range=all")
    expect(figure(page, "In all").locator(".visitors")).to_have_text(f"{reason}.")
    # Days of another zone have parts of two days. In this one it is the same day as in UTC.
    zone = "Asia/Kolkata" if datetime.now(UTC).hour < 12 else "America/New_York"
    page.goto(f"/#/counter/visitors.salts?{last_days(2)}&zone={zone}")
    expect(days.locator(".visitors")).to_have_text(f"{reason} in UTC.")
    # What is refused is a 422, which Chromium writes to the console.
    look.excused.append("422")


def test_visitors_of_hours_that_are_rolled_up_are_said_to_be_of_all_days(
    look: Look, filled: Web
) -> None:
    filled.store.counters.set("visitors.hours", resolution="hour", keep="hour=2d", salt_days=0)
    saw(filled, "visitors.hours", range(3), days_ago=5)
    saw(filled, "visitors.hours", range(2, 4))
    roll_up(partial(open_tables, filled.options.mysql_url), rows=2_000)
    look.page.goto("/#/counter/visitors.hours?range=7&by=hour")
    hours = figure(look.page, "Hours shown")
    expect(hours.locator("dd > span")).to_have_text("2")
    expect(hours.locator(".visitors")).to_have_text("4 different visitors on all of these days")


def test_a_sketch_that_cannot_be_read_takes_no_other_number_away(look: Look, filled: Web) -> None:
    filled.store.counters.set("visitors.damaged", salt_days=0)
    saw(filled, "visitors.damaged", range(3))
    with connect(filled.options.mysql_url) as session:
        session.execute("UPDATE visitor_slot SET checksum = 1 WHERE counter = 'visitors.damaged'")
    page = look.at("/#/counter/visitors.damaged?range=7")
    line = figure(page, "Last 7 days").locator(".visitors")
    expect(line).to_have_text(re.compile("'visitors.damaged', '/' in the bucket"))
    expect(figure(page, "Last 7 days").locator("dd > span")).to_have_text("3")
    expect(page.locator(".notice")).to_have_count(0)
    look.excused.append("500")

"""How many different visitors the view of a counter shows beside the total of its days, and why it
does not where salts are renewed. Sightings come through the queue.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from countersink.schedules.jobs.move import open_tables
from countersink.schedules.jobs.retention import roll_up
from countersink.store.connection import Session
from tests.browser.axe import faults
from tests.browser.chromium import looking
from tests.web.serving import Web

LATER_MS = 12_000
"""Longer than the page waits before it asks again for what live numbers do not tell."""
MANY = 3_000
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


def test_different_visitors_stand_beside_the_total_of_the_days(browser: Browser, web: Web) -> None:
    web.store.counters.set("visitors", resolution="hour", salt_days=0)
    saw(web, "visitors", range(3), days_ago=1)
    saw(web, "visitors", range(2, 5))
    saw(web, "visitors", range(1), key="/only")
    web.producer.increment("plain", "/")
    web.apply()
    with looking(browser, web.url) as look:
        page = look.page
        page.clock.install()
        page.goto(f"/#/counter/visitors?{last_days(2)}")
        days = figure(page, "These days")
        expect(days.locator(".visitors")).to_have_text("5 different visitors")
        expect(days.locator("dd > span")).to_have_text("7")
        expect(days.locator(".visitors [title]")).to_have_count(0)
        # Without a comparison there is no gap in its place.
        assert days.locator("small").first.evaluate("(note) => note.offsetHeight") == 0
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
        expect(figure(page, "Last 7 days").locator(".visitors")).to_have_text(
            "5 different visitors"
        )
        saw(web, "visitors", [7])
        expect(figure(page, "Today").locator(".now")).to_have_text("5")
        page.clock.fast_forward(LATER_MS)
        expect(figure(page, "Last 7 days").locator(".visitors")).to_have_text(
            "6 different visitors"
        )
        # With several lines there are no totals to stand beside.
        asked = len(look.requests)
        page.goto("/#/counter/visitors?with=plain")
        expect(page.locator(".lines li")).to_have_count(2)
        expect(page.locator(".visitors")).to_be_hidden()
        page.goto("/#/counter/plain")
        expect(figure(page, "In all").locator("dd")).to_have_text("1")
        expect(page.locator(".keys li")).to_have_count(1)
        expect(page.locator(".visitors")).to_be_hidden()
        assert not [one for one in look.requests[asked:] if "unique" in one]


def test_an_estimate_says_so_and_its_bounds_can_be_seen_and_heard(
    browser: Browser, web: Web
) -> None:
    web.store.counters.set("visitors", salt_days=0)
    saw(web, "visitors", range(MANY))
    row = told(web, "visitors")
    assert row["estimate"] is True
    bounds = f"{row['low']:,} to {row['high']:,}, with 95 %"
    with looking(browser, web.url, viewport={"width": 360, "height": 740}) as look:
        look.page.goto("/#/counter/visitors")
        line = figure(look.page, "Last 30 days").locator(".visitors span[title]")
        expect(line).to_have_text(f"≈ {row['total']:,} different visitors ({bounds})")
        expect(line).to_have_attribute("title", bounds)
        expect(line.locator(".unseen")).to_have_text(f"({bounds})")
        assert look.page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_of_days_with_several_salts_the_reason_is_told_and_of_one_day_the_number(
    browser: Browser, web: Web, session: Session, scheme: str
) -> None:
    web.store.counters.set("visitors", resolution="minute", salt_days=1)
    # As if it had been set yesterday.
    session.execute("UPDATE visitor_salt SET ends = ends - 1440, begins = begins - 1440")
    session.execute("UPDATE visitor_salt SET begins = -2147483648 ORDER BY begins LIMIT 1")
    saw(web, "visitors", range(3), days_ago=1)
    saw(web, "visitors", range(4))
    reason = (
        "Different visitors over all of these days are not known, as salts are renewed each day."
        " Choose a single day"
    )
    with looking(browser, web.url, color_scheme=scheme, reduced_motion="reduce") as look:
        page = look.page
        days = figure(page, "These days")
        page.goto(f"/#/counter/visitors?{last_days(1)}")
        expect(days.locator(".visitors")).to_have_text("4 different visitors")
        page.goto(f"/#/counter/visitors?{last_days(2)}")
        expect(days.locator(".visitors")).to_have_text(f"{reason}.")
        expect(days.locator("dd > span")).to_have_text("7")
        assert faults(page, scheme) == []
        page.goto("/#/counter/visitors?range=all")
        expect(figure(page, "In all").locator(".visitors")).to_have_text(f"{reason}.")
        # Days of another zone have parts of two days. In this one it is the same day as in UTC.
        zone = "Asia/Kolkata" if datetime.now(UTC).hour < 12 else "America/New_York"
        page.goto(f"/#/counter/visitors?{last_days(2)}&zone={zone}")
        expect(days.locator(".visitors")).to_have_text(f"{reason} in UTC.")
        # What is refused is a 422, which Chromium writes to the console.
        look.complaints[:] = [one for one in look.complaints if "422" not in one]


def test_visitors_of_hours_that_are_rolled_up_are_said_to_be_of_all_days(
    browser: Browser, web: Web
) -> None:
    web.store.counters.set("visitors", resolution="hour", keep="hour=2d", salt_days=0)
    saw(web, "visitors", range(3), days_ago=5)
    saw(web, "visitors", range(2, 4))
    roll_up(partial(open_tables, web.options.mysql_url), rows=2_000)
    with looking(browser, web.url) as look:
        look.page.goto("/#/counter/visitors?range=7&by=hour")
        hours = figure(look.page, "Hours shown")
        expect(hours.locator("dd > span")).to_have_text("2")
        expect(hours.locator(".visitors")).to_have_text("4 different visitors on all of these days")


def test_a_sketch_that_cannot_be_read_takes_no_other_number_away(
    browser: Browser, web: Web, session: Session
) -> None:
    web.store.counters.set("visitors", salt_days=0)
    saw(web, "visitors", range(3))
    session.execute("UPDATE visitor_slot SET checksum = 1")
    with looking(browser, web.url) as look:
        page = look.page
        page.goto("/#/counter/visitors?range=7")
        line = figure(page, "Last 7 days").locator(".visitors")
        expect(line).to_have_text(re.compile("'visitors', '/' in the bucket"))
        expect(figure(page, "Last 7 days").locator("dd > span")).to_have_text("3")
        expect(page.locator(".notice")).to_have_count(0)
        look.complaints[:] = [one for one in look.complaints if "500" not in one]

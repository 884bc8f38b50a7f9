"""What was counted of late: the last hour of a counter, and its keys of the last 24 hours against
the 24 hours before. The window moves with the server's clock while it is looked at, so every row is
compared with what was counted at its own time.
"""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Literal
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Locator, Page, expect

from countersink.schedules.jobs.move import open_tables
from tests.browser.axe import faults
from tests.browser.chromium import Look
from tests.support.roll_up import roll_up
from tests.web.serving import Web

ZONE = ZoneInfo("Asia/Kolkata")
LATER_MS = 12_000
"""Longer than the page waits before it asks for the last hour, or for keys, again."""
BUCKETS: Final[tuple[Literal["hour", "day"], ...]] = ("hour", "day")


def count(web: Web, counter: str, minutes: int, keys: Sequence[str] = ("a", "b")) -> Counter[str]:
    """Count something in most of the last minutes; amounts by the minute, as ZONE writes it."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    oracle = Counter[str]()
    for back in range(minutes):
        if back % 4 == 3:
            continue
        at = now - timedelta(minutes=back)
        for place, key in enumerate(keys):
            amount = back * 7919 % 53 + place + 1
            web.producer.increment(counter, key, amount, at=at)
            oracle[f"{at.astimezone(ZONE):%H:%M}"] += amount
    web.apply()
    return oracle


def retain(web: Web) -> None:
    """Run the job of retention once."""
    roll_up(partial(open_tables, web.options.mysql_url), rows=2_000)


def panel(page: Page, title: str) -> Locator:
    """One of the parts that can be opened."""
    return page.locator("details.recent", has=page.get_by_text(title, exact=True))


def last_hour(page: Page) -> dict[str, int]:
    """The table of the last hour, by the time of day."""
    part = panel(page, "The last hour")
    part.get_by_text("The last hour as a table").click()
    rows = part.get_by_role("region", name="The numbers of the last hour").locator("tbody tr")
    expect(rows.first).to_be_visible()
    texts = part.locator("tbody").evaluate(
        "(body) => [...body.rows].map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    part.get_by_text("The last hour as a table").click()
    return {when[-5:]: int(total.replace(",", "")) for when, total in texts}


def trends(page: Page) -> Locator:
    """The rows of keys."""
    return panel(page, "Trending in the last 24 hours").locator("tbody tr")


def test_the_last_hour_is_shown_by_minute_and_moves_on(timed: Look, filled: Web) -> None:
    filled.store.counters.set("recent.minutes", resolution="minute", time_zone=ZONE.key)
    oracle = count(filled, "recent.minutes", 120)
    page = timed.at("/#/counter/recent.minutes")
    expect(page.get_by_text("Counted by minute in Asia/Kolkata")).to_be_visible()
    chart = page.get_by_role("slider", name="Walk through the last hour")
    expect(chart).to_have_attribute("aria-valuemax", "59")
    shown = last_hour(page)
    assert len(shown) == 60
    asked = [one for one in timed.requests if "/minutely" in one]
    assert len(asked) == 1, asked
    counted = {when: oracle[when] for when in shown}
    # A minute that began since then has nothing.
    assert shown == counted
    assert sum(shown.values()) > 0
    assert 0 in shown.values()
    note = panel(page, "The last hour").locator(".legend p.soft")
    expect(note).to_contain_text(f"{sum(shown.values()):,} since {min_label(shown)}")
    expect(note).to_contain_text("The last minute is not over.")
    # What is counted now is drawn without a reload.
    with page.expect_response(re.compile("/minutely.*last=1h")) as answer:
        filled.count("recent.minutes", "a", 1_000_000)
        expect(page.locator(".now")).to_have_text(re.compile(r"1,\d{3},\d{3}"))
        page.clock.fast_forward(LATER_MS)
    assert answer.value.status == 200
    chart.press("Home")
    expect(note).to_contain_text(re.compile(r"1,\d{3},\d{3} since"))


def min_label(shown: dict[str, int]) -> str:
    """The first minute of a table whose latest row is the first."""
    return list(shown)[-1]


def test_a_counter_of_wider_buckets_says_why_there_is_no_last_hour(look: Look, filled: Web) -> None:
    page = look.page
    for resolution in BUCKETS:
        filled.store.counters.set(f"recent.{resolution}", resolution=resolution)
        filled.producer.increment_many(f"recent.{resolution}", {"a": 1, "b": 2})
    filled.apply()
    for resolution in BUCKETS:
        page.goto(f"/#/counter/recent.{resolution}")
        expect(page.locator(".keys li")).to_have_count(2)
        part = panel(page, "The last hour")
        expect(part).not_to_have_attribute("open", "")
        part.get_by_text("The last hour", exact=True).click()
        expect(part).to_contain_text(f"counted by {resolution}, so its minutes are not known")
        expect(part.get_by_role("slider")).to_have_count(0)
    panel(page, "Trending in the last 24 hours").locator("summary").click()
    expect(page.get_by_text("so its last 24 hours are not known")).to_be_visible()
    asked = [one for one in look.requests if "last=1h" in one]
    assert not [one for one in asked if "recent.hour" in one or "recent.day" in one]


def test_minutes_that_are_rolled_up_are_left_out_and_told_of(look: Look, filled: Web) -> None:
    filled.store.counters.set("recent.rolled", resolution="minute", time_zone=ZONE.key)
    filled.store.counters.set("recent.rolled", keep="minute=10m,quarter=2d")
    oracle = count(filled, "recent.rolled", 60)
    retain(filled)
    page = look.at("/#/counter/recent.rolled")
    expect(page.get_by_text("keeping minutes for 10 minutes, quarters for 2")).to_be_visible()
    note = panel(page, "The last hour").locator(".legend p.soft")
    expect(note).to_contain_text("are rolled up to wider buckets, and left out")
    # Of the keys there are quarters and minutes: whole quarters of them.
    expect(trends(page)).to_have_count(2)
    shown = last_hour(page)
    assert 10 <= len(shown) <= 26
    assert shown == {when: oracle[when] for when in shown}


def test_hours_that_are_rolled_up_are_no_zeros(fresh: Look, filled: Web) -> None:
    filled.store.counters.set("recent.hours", resolution="hour", keep="hour=3d")
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for back in range(1, 24 * 10):
        filled.producer.increment("recent.hours", "a", 7, at=now - timedelta(hours=back))
    filled.apply()
    retain(filled)
    page = fresh.page
    page.clock.set_fixed_time(now + timedelta(minutes=1))
    first = (now - timedelta(days=3)).date()  # retention ran within this hour or the next
    last = now.date()
    week = f"range=custom&from={last - timedelta(days=7)}&to={last}"
    page.goto(f"/#/counter/recent.hours?{week}&by=hour&compare=1")
    shown = page.locator(".panel .note").first
    expect(shown).to_contain_text("are rolled up to wider buckets, and left out")
    expect(shown).to_contain_text("Hours of the other period are rolled up to wider buckets.")
    expect(page.locator(".figure dt").nth(1)).to_have_text("Hours shown")
    hours = (last - first).days * 24 + now.hour
    expect(page.locator(".figure dd > span").nth(1)).to_have_text(f"{hours * 7:,}")
    expect(page.locator(".figure small").nth(1)).to_have_text("")
    page.get_by_text("By weekday and hour").click()
    table = page.get_by_role("table", name="Averages by weekday and hour")
    expect(table).to_be_visible()
    cells = [one for one in table.locator("td").all_inner_texts() if one.strip()]
    assert set(cells) == {"7", "–"}
    assert cells.count("7") == hours
    expect(page.locator(".hours p").last).to_contain_text("left out")
    # Nor is a part of the day that today is compared with.
    page.goto("/#/counter/recent.hours?range=7&compare=1")
    expect(page.locator(".figure small").nth(1)).to_contain_text("without today 1,008")
    # Of days before that there is nothing to tell, which is not that nothing happened.
    gone = f"range=custom&from={last - timedelta(days=9)}&to={last - timedelta(days=6)}"
    page.goto(f"/#/counter/recent.hours?{gone}")
    expect(page.locator(".hours p").first).to_contain_text("are rolled up to wider buckets")
    expect(table.get_by_role("cell", name="7", exact=True)).to_have_count(0)


@pytest.mark.random
def test_keys_of_the_last_day_stand_beside_those_of_the_day_before(
    timed: Look, filled: Web
) -> None:
    filled.store.counters.set("recent.keys", resolution="hour")
    now = datetime.now(UTC)
    recent, before, older = (now - timedelta(hours=back) for back in (2, 30, 60))
    for key, *amounts in (("up", 12, 5, 90), ("new", 9, 0, 90), ("", 8, 16, 0), ("old", 0, 99, 9)):
        for at, amount in zip((recent, before, older), amounts, strict=True):
            if amount:
                filled.producer.increment("recent.keys", str(key), int(amount), at=at)
    filled.apply()
    page = timed.at("/#/counter/recent.keys")
    rows = trends(page)
    expect(rows).to_have_text(
        [
            re.compile(r"new\s*9\s*0\s*new"),
            re.compile(r"up\s*12\s*5\s*\+140%"),
            re.compile(r"\(no key\)\s*8\s*16\s*-50%"),
        ]
    )
    assert faults(page, "light", ".recent") == []
    with page.expect_download() as download:
        page.get_by_role("link", name="Trending keys as CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert lines == ['"key","total","previous"', '"up",12,5', '"new",9,0', '"",8,16']
    filled.count("recent.keys", "new", 10)
    expect(page.locator(".now")).to_have_text(re.compile(r"\d"))
    page.clock.fast_forward(LATER_MS)
    expect(rows.first).to_have_text(re.compile(r"new\s*19\s*0\s*new"))
    # The choice of keys is for these, too; several lines have no keys.
    rows.first.get_by_role("link", name="new").click()
    expect(page.locator(".chip")).to_have_count(1)
    expect(rows).to_have_count(1)
    page.goto("/#/counter/recent.keys?key=up&key=new&each=1")
    expect(page.locator(".lines li")).to_have_count(2)
    for title in ("The last hour", "Trending in the last 24 hours"):
        expect(panel(page, title)).to_be_hidden()


def test_a_day_before_that_cannot_be_told_is_no_zero(look: Look, filled: Web) -> None:
    # It is about noon there, so that the window before begins within a day that is rolled up.
    now = datetime.now(UTC)
    ahead = 12 - now.hour
    filled.store.counters.set(
        "recent.before", resolution="hour", time_zone=f"Etc/GMT{-ahead:+}", keep="hour=1d"
    )
    for back in (2, 30, 45):
        filled.producer.increment("recent.before", "a", back, at=now - timedelta(hours=back))
    filled.apply()
    retain(filled)
    look.page.goto("/#/counter/recent.before")
    expect(trends(look.page)).to_have_text([re.compile(r"a\s*2\s*–\s*–")])
    expect(look.page.get_by_text("The 24 hours before are not known")).to_be_visible()

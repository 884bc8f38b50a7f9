"""Counters and keys side by side, their ratio, other periods, other time zones, filters.

Each number is held against sums of what was counted."""

import csv
import re
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.chromium import Look, looking
from tests.browser.compared import BERLIN, KEYS, NOW, Event, by_day, counted, fill
from tests.browser.conftest import DESK, server
from tests.support.servers import MySQLServer
from tests.web.serving import Web

TODAY = NOW.date()
DAYS = (date(2025, 1, 10), date(2025, 2, 8))
RANGE = f"range=custom&from={DAYS[0]}&to={DAYS[1]}"
LEAP = date(2024, 2, 29)


@pytest.fixture(scope="module")
def compared(servers_directory: Path, mysql_server: MySQLServer) -> Iterator[Web]:
    """A server with the events of `tests.browser.compared`."""
    with server(servers_directory / "redis-compared", mysql_server) as served:
        fill(served)
        yield served


@pytest.fixture(scope="module")
def window(browser: Browser, compared: Web) -> Iterator[Look]:
    """A page whose clock says NOW, in New York."""
    options: dict[str, Any] = {"viewport": DESK, "reduced_motion": "reduce"}
    with looking(browser, compared.url, timezone_id="America/New_York", **options) as look:
        look.page.clock.set_fixed_time(NOW)
        yield look


@pytest.fixture
def page(window: Look, compared: Web) -> Iterator[Page]:
    """The page, at a view that has nothing of the test before."""
    window.page.goto("/#/system")
    yield window.page
    # What a counter cannot be told in is a 422, which Chromium writes to the console.
    window.excused.append("422")
    window.settle(compared.url)


def legend(page: Page) -> dict[str, str]:
    """The totals of the legend, by name."""
    expect(page.locator(".panel:not([aria-busy]) .lines li").first).to_be_visible()
    items = page.locator(".lines li")
    return {
        one.locator(".name-of").inner_text(): one.locator(".number").inner_text()
        for one in items.all()
    }


def rows(page: Page) -> list[list[str]]:
    """The rows of the table of the chart, the earliest first."""
    table = page.get_by_role("region", name="The numbers of the chart")
    if not table.is_visible():
        page.get_by_text("The numbers as a table").click()
    expect(table.locator("tbody tr").first).to_be_visible()
    script = "all => all.map((tr) => [...tr.cells].map((td) => td.textContent))"
    found: list[list[str]] = table.locator("tbody tr").evaluate_all(script)
    return found[::-1]


def walk(page: Page) -> Locator:
    return page.get_by_role("slider", name="Walk through the chart")


def hours_beside(page: Page, day: str, other: str, *, last: int) -> list[list[str]]:
    """The rows of the hours of a day beside those of another one."""
    hours = f"range=custom&from={day}&to={day}&by=hour"
    page.goto(f"/#/counter/visits?{hours}&compare=own&other_from={other}")
    expect(walk(page)).to_have_attribute("aria-valuemax", f"{last}")
    return rows(page)


def sum_note(page: Page) -> Any:
    return page.locator(".figure small").nth(1)


def of_key(key: str) -> int:
    """The sum of a key of `visits` over DAYS."""
    return counted("visits", *DAYS, BERLIN, lambda event: event.key == key)


def in_hour(day: date, hour: int) -> int:
    """The sum of `visits` in an hour of Berlin's clocks."""
    zone = ZoneInfo(BERLIN)
    return counted("visits", day, day, BERLIN, lambda one: one.at.astimezone(zone).hour == hour)


def up_to_three(last: date) -> Callable[[Event], bool]:
    """What was counted before 15:00 of the last day, in Berlin."""

    def wanted(event: Event) -> bool:
        at = event.at.astimezone(ZoneInfo(BERLIN))
        return at.date() < last or at.hour < 15

    return wanted


def percent(now: int, before: int) -> str:
    """As JavaScript writes it: at most one digit, and a sign."""
    change = round((now / before - 1) * 1000) / 10
    return f"{change:+,.1f}%".replace(".0%", "%") if change else "no change"


def test_counters_stand_side_by_side_in_days_that_all_can_be_told_in(page: Page) -> None:
    page.goto(f"/#/counter/visits?{RANGE}")
    own = f"{counted('visits', *DAYS, BERLIN):,}"
    expect(page.locator(".figure dd > span").nth(1)).to_have_text(own)
    page.get_by_text("Choose keys, or add a counter").click()
    page.get_by_label("Kind of filter").select_option("with")
    field = page.get_by_label("Key, prefix of keys, or counter")
    field.fill("bu")
    expect(page.locator("#offered option")).to_have_count(1)
    field.fill("buys")
    field.press("Enter")
    expect(page.locator(".lines li")).to_have_count(2)
    sums = {name: counted(name, *DAYS, "UTC") for name in ("visits", "buys")}
    assert legend(page) == {name: f"{n:,}" for name, n in sums.items()}
    expect(page.locator(".note")).to_contain_text("Days of UTC.")
    days = [by_day(name, *DAYS, "UTC") for name in ("visits", "buys")]
    assert [row[1:] for row in rows(page)] == [
        [f"{a:,}", f"{b:,}"] for a, b in zip(*(one.values() for one in days), strict=True)
    ]
    dashes = page.locator(".lines line").evaluate_all(
        "all => all.map((one) => one.getAttribute('stroke-dasharray'))"
    )
    assert len(set(dashes)) == 2  # to be told apart without colours, too
    chart = walk(page)
    chart.press("Home")
    first = [one[DAYS[0]] for one in days]
    expected = f"Fri, 10 Jan 2025: visits {first[0]}, buys {first[1]}"
    expect(chart).to_have_attribute("aria-valuetext", expected)
    expect(page).to_have_url(re.compile("with=buys"))
    page.reload()
    assert legend(page) == {name: f"{n:,}" for name, n in sums.items()}
    page.get_by_role("button", name="Remove: together with buys").click()
    expect(page.locator(".figure dd > span").nth(1)).to_have_text(own)
    page.go_back()
    assert legend(page) == {name: f"{n:,}" for name, n in sums.items()}


def test_a_ratio_has_gaps_where_there_is_nothing_to_divide_by(page: Page) -> None:
    page.goto(f"/#/counter/visits?{RANGE}&with=buys")
    page.get_by_role("button", name="buys ÷ visits").click()
    visits, buys = (by_day(name, *DAYS, "UTC") for name in ("visits", "buys"))
    expect(page.locator(".lines li")).to_have_count(3)
    ratio = sum(buys.values()) / sum(visits.values())
    written = legend(page)["buys ÷ visits"]
    assert float(written.rstrip("%")) / 100 == pytest.approx(ratio, rel=1e-3)
    gaps = [day for day, n in visits.items() if not n]
    assert gaps
    assert [day for day, n in buys.items() if not n and visits[day]]  # a 0, and no gap
    for row, day in zip(rows(page), visits, strict=True):
        if day in gaps:
            assert row[1] == "–", day
        else:
            assert float(row[1].rstrip("%")) / 100 == pytest.approx(
                buys[day] / visits[day], rel=1e-3
            )
        assert row[2:] == [f"{visits[day]:,}", f"{buys[day]:,}"]
    expect(page.locator(".note")).to_contain_text("Where visits is 0, there is no ratio.")
    chart = walk(page)
    chart.press("Home")
    for _ in range((gaps[0] - DAYS[0]).days):
        chart.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuetext", re.compile(": –$"))
    page.get_by_role("button", name="visits ÷ buys").click()
    expect(page.locator(".lines li").last).to_contain_text("visits ÷ buys")
    other = legend(page)["visits ÷ buys"]
    assert float(other) == pytest.approx(1 / ratio, rel=1e-3)  # no percent: it is above 1
    page.go_back()
    expect(page.locator(".lines li").last).to_contain_text("buys ÷ visits")


def test_keys_of_one_counter_have_a_line_each(page: Page) -> None:
    page.goto(f"/#/counter/visits?{RANGE}&key=/blog/a&key=&key=/shop")
    page.get_by_label("A line for each key").check()
    expect(page.locator(".lines li")).to_have_count(3)
    keys = ("/blog/a", "", "/shop")
    assert legend(page) == {key or "(no key)": f"{of_key(key):,}" for key in keys}
    expect(page.get_by_role("button", name="Ratio")).to_have_attribute("aria-disabled", "true")
    page.get_by_role("button", name="Remove: only (no key)").click()
    expect(page.get_by_role("button", name="/blog/a ÷ /shop")).to_be_enabled()


def test_keys_are_picked_by_name_by_prefix_and_left_out(page: Page) -> None:
    page.goto(f"/#/counter/visits?{RANGE}")
    page.get_by_text("Choose keys, or add a counter").click()
    kind = page.get_by_label("Kind of filter")
    field = page.get_by_label("Key, prefix of keys, or counter")
    everything = (date(2024, 1, 1), TODAY)
    picked: list[str] = []

    def choose(by: str, text: str) -> None:
        kind.select_option(by)
        field.fill(text)
        field.press("Enter")

    def agree() -> None:
        sums = [
            counted("visits", *days, BERLIN, lambda event: event.key in picked)
            for days in (DAYS, everything)
        ]
        for place, total in zip((1, 2), sums, strict=True):
            expect(page.locator(".figure dd > span").nth(place)).to_have_text(f"{total:,}")
        totals = {key: of_key(key) for key in picked}
        ranked = sorted(totals, key=lambda key: -totals[key])
        expect(page.locator(".keys .total")).to_have_text([f"{totals[key]:,}" for key in ranked])
        expect(page.locator(".keys .key")).to_have_text([key or "(no key)" for key in ranked])
        with page.expect_download() as download:
            page.locator(".panel").get_by_role("link", name="Download as CSV").click()
        with download.value.path().open() as file:
            assert sum(int(row["total"]) for row in csv.DictReader(file)) == sums[0]

    choose("prefix", "/blog/")
    picked[:] = ["/blog/a", "/blog/b"]
    agree()
    kind.select_option("key")
    field.fill("(no key)")
    page.get_by_role("button", name="Add", exact=True).click()
    picked[:] = ["/blog/a", "/blog/b", ""]
    agree()
    choose("exclude_key", "/blog/b")
    picked[:] = ["/blog/a", ""]
    agree()
    page.go_back()
    picked[:] = ["/blog/a", "/blog/b", ""]
    agree()
    page.get_by_role("button", name="Remove all").click()
    expect(page.locator(".chip")).to_have_count(0)
    choose("exclude_prefix", "/blog")
    picked[:] = [key for key in KEYS if not key.startswith("/blog")]
    agree()
    assert page.evaluate("location.hash").count("exclude_prefix=") == 1


def test_days_are_those_of_a_time_zone_that_is_chosen(page: Page) -> None:
    page.goto(f"/#/counter/visits?{RANGE}")
    select = page.get_by_label("Time zone")
    offered = [
        f"{BERLIN} (the counter’s)",
        "America/New_York (this browser’s)",
        "UTC",
    ]
    expect(select.locator("> option")).to_have_text(offered)
    totals = {}
    for zone in ("America/New_York", "Australia/Adelaide", "UTC"):
        select.select_option(zone)
        expect(page).to_have_url(re.compile(zone.replace("/", "%2F")))
        total = totals[zone] = counted("visits", *DAYS, zone)
        expect(page.locator(".figure dd > span").nth(1)).to_have_text(f"{total:,}")
        expect(page.locator(".note")).to_contain_text(f"Days of {zone}.")
        days = [f"{n:,}" for n in by_day("visits", *DAYS, zone).values()]
        assert [row[1] for row in rows(page)] == days
    assert len(set(totals.values())) == 3
    page.go_back()
    expect(select).to_have_value("Australia/Adelaide")
    page.goto("/#/counter/visits?zone=Pacific/Auckland&range=7")  # where it is tomorrow already
    auckland = NOW.astimezone(ZoneInfo("Pacific/Auckland")).date()
    assert auckland != TODAY
    expect(page.get_by_label("Last day")).to_have_value(str(auckland))


def test_what_days_of_a_time_zone_cannot_be_told_in_is_said_in_words(page: Page) -> None:
    page.goto(f"/#/counter/buys?{RANGE}&zone=America/New_York")
    total = counted("buys", *DAYS, "UTC")
    expect(page.locator(".figure dd > span").nth(1)).to_have_text(f"{total:,}")
    words = page.locator(".notice.warn")
    expect(words).to_contain_text("Days in America/New_York are not available. 'buys' is counted")
    expect(words).to_contain_text("The chart has days in UTC.")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_label("Time zone").select_option(label="UTC (the counter’s)")
    expect(words).to_have_count(0)


def test_an_unfinished_day_is_compared_up_to_the_same_moment(page: Page) -> None:
    """In Berlin it is 15:35: both last days count up to 15:00."""

    def told(counter: str, zone: str, days: int, last: date = TODAY) -> tuple[str, str]:
        start = TODAY - timedelta(days=days - 1)
        sums = []
        for back in (timedelta(), timedelta(days=days)):
            asked = (counter, start - back, last - back, zone)
            sums.append(counted(*asked, up_to_three(TODAY - back)))
            assert (sums[-1] < counted(*asked)) is (last == TODAY)
        mine, before = sums
        return percent(mine, before), f"{mine:,}, before {before:,}"

    page.goto("/#/counter/visits?range=7&compare=1")
    change, sums = told("visits", BERLIN, 7)
    said = f"{change} · up to 15:00 {sums}"
    expect(sum_note(page)).to_have_text(said)
    page.get_by_role("button", name="Hours").click()
    expect(walk(page)).to_have_attribute("aria-valuemax", "167")
    expect(sum_note(page)).to_have_text(said)
    page.goto("/#/counter/visits?range=90&compare=1&by=month")
    change, sums = told("visits", BERLIN, 90)
    expect(sum_note(page)).to_have_text(f"{change} · up to 15:00 {sums}")
    expect(page.locator(".note")).to_contain_text("This month is not over.")
    # Of a counter by day that day is left out.
    page.goto("/#/counter/buys?range=30&compare=1")
    yesterday = TODAY - timedelta(days=1)
    change, sums = told("buys", "UTC", 30, yesterday)
    expect(sum_note(page)).to_have_text(f"{change} · without today {sums}")
    expect(page.locator(".note")).to_contain_text("Today is not over.")
    chart = walk(page)
    chart.press("End")
    expect(chart).to_have_attribute("aria-valuetext", re.compile(r"Mar 2025 \(not over\): "))


def test_keys_of_today_stand_beside_yesterday_up_to_the_same_time(page: Page) -> None:
    page.goto("/#/counter/visits?range=1")
    told = {}
    for key in KEYS:

        def of_day(day: date, wanted: Callable[[Event], bool], key: str = key) -> int:
            return counted("visits", day, day, BERLIN, lambda one: one.key == key and wanted(one))

        days = TODAY, TODAY - timedelta(days=1)
        mine, before = (of_day(day, up_to_three(day)) for day in days)
        if of_day(TODAY, lambda event: True):
            new = "new" if mine else "–"
            told[key or "(no key)"] = percent(mine, before) if before else new
    assert {"new", "–"} < set(told.values())
    shown = page.locator(".keys li")
    expect(shown).to_have_count(len(told))
    expect(shown.locator(".change").first).to_have_text(re.compile(r"%|–|new"))
    assert {
        one.locator(".key").inner_text(): one.locator(".change").inner_text() for one in shown.all()
    } == told
    said = "Mon, 10 Mar 2025 up to 15:00 against Sun, 9 Mar 2025 up to 15:00."
    expect(page.locator(".top-keys .explained").first).to_contain_text(said)
    page.goto("/#/counter/buys?range=1")  # by day: what yesterday had by now cannot be told
    expect(page.locator(".keys li").first).to_be_visible()
    expect(page.locator(".keys .change").first).to_have_text("")


def test_the_year_before_is_day_by_day_and_29_february_stands_alone(page: Page) -> None:
    start, end = date(2025, 2, 20), date(2025, 3, 6)
    page.goto(f"/#/counter/visits?range=custom&from={start}&to={end}")
    page.get_by_label("Compare with").select_option("year")
    expect(page).to_have_url(re.compile("compare=year"))
    mine = counted("visits", start, end, BERLIN)
    then = (date(2024, 2, 20), date(2024, 3, 6))
    assert counted("visits", LEAP, LEAP, BERLIN)
    before = counted("visits", *then, BERLIN) - counted("visits", LEAP, LEAP, BERLIN)
    expect(sum_note(page)).to_have_text(f"{percent(mine, before)} · before {before:,}")
    note = page.locator(".note")
    expect(note).to_contain_text("Thu, 29 Feb 2024 of the other period: left out.")
    days = by_day("visits", start, end, BERLIN)
    years = [counted("visits", d, d, BERLIN) for d in (day.replace(year=2024) for day in days)]
    assert [row[1:] for row in rows(page)] == [
        [f"{n:,}", f"{m:,}"] for n, m in zip(days.values(), years, strict=True)
    ]
    # Whole weeks stand beside the same weekdays, 52 weeks before.
    last = end - timedelta(days=1)
    page.get_by_label("Last day").fill(str(last))
    weeks = timedelta(weeks=52)
    before = counted("visits", start - weeks, last - weeks, BERLIN)
    mine = counted("visits", start, last, BERLIN)
    expect(sum_note(page)).to_have_text(f"{percent(mine, before)} · before {before:,}")
    # Whole months have all their days.
    page.goto("/#/counter/visits?range=custom&from=2025-01-01&to=2025-02-28&compare=year&by=month")
    months = ((date(2024, 1, 1), date(2024, 1, 31)), (date(2024, 2, 1), LEAP))
    expect(sum_note(page)).to_contain_text(
        f"before {sum(counted('visits', *month, BERLIN) for month in months):,}"
    )
    assert [row[2] for row in rows(page)] == [
        f"{counted('visits', *month, BERLIN):,}" for month in months
    ]


def test_hours_are_compared_by_the_clock_when_clocks_are_changed(page: Page) -> None:
    """In Berlin clocks went forward on 31 March 2024: 2 o'clock is not there."""
    shown = hours_beside(page, "2024-03-31", "2024-03-30", last=22)
    found = {row[0].rpartition(", ")[2]: row[1:] for row in shown}
    assert "02:00" not in found
    assert len(found) == 23
    for hour, (now, then) in found.items():
        for day, written in ((31, now), (30, then)):
            total = in_hour(date(2024, 3, day), int(hour[:2]))
            assert written == f"{total:,}", (day, hour)


def test_an_hour_that_clocks_repeat_has_one_hour_beside_it(page: Page) -> None:
    """In Berlin clocks went back on 27 October 2024: 2 o'clock is there twice."""
    shown = hours_beside(page, "2024-10-27", "2024-10-26", last=24)
    found = [(int(row[0].rpartition(", ")[2][:2]), row[2]) for row in shown]
    assert [hour for hour, _ in found] == [0, 1, 2, 2, *range(3, 24)]
    then = [f"{in_hour(date(2024, 10, 26), hour):,}" for hour in range(24)]
    assert [written for _, written in found] == [*then[:3], "–", *then[3:]]


def test_months_stand_beside_months_whose_days_are_gone(page: Page) -> None:
    """What was counted up to a day of December is not known any more: no change is told."""
    page.goto("/#/counter/old?range=custom&from=2025-01-01&to=2025-03-10&by=month&compare=1")
    expect(page.locator(".figure dd > span").nth(1)).to_have_text("7")
    expect(sum_note(page)).to_have_text("before 310")
    expect(page.get_by_text("Counted by day in UTC, by month before 2025-01-01")).to_be_visible()
    assert page.get_by_role("alert").count() == 0


def test_a_period_of_ones_own_to_compare_with(page: Page) -> None:
    page.goto(f"/#/counter/visits?{RANGE}&compare=1")
    page.get_by_label("Compare with").select_option("own")
    page.get_by_label("Compared from").fill("2024-05-01")
    expect(page).to_have_url(re.compile("other_from=2024-05-01"))
    length = DAYS[1] - DAYS[0]
    other = (date(2024, 5, 1), date(2024, 5, 1) + length)
    mine, before = counted("visits", *DAYS, BERLIN), counted("visits", *other, BERLIN)
    expect(sum_note(page)).to_have_text(f"{percent(mine, before)} · before {before:,}")
    expect(page.get_by_label("Compared to")).to_have_value(str(other[1]))
    page.get_by_label("Compared to").fill("2024-05-10")
    short = (other[0], date(2024, 5, 10))
    alike = counted("visits", DAYS[0], DAYS[0] + timedelta(days=9), BERLIN)
    before = counted("visits", *short, BERLIN)
    expect(sum_note(page)).to_have_text(
        f"{percent(alike, before)} · days of both {alike:,}, before {before:,}"
    )
    expect(page.locator(".note")).to_contain_text("20 days: nothing to compare with.")


def test_numbers_that_javascript_cannot_hold_are_marked_in_the_legend_too(page: Page) -> None:
    page.goto("/#/counter/huge?with=hugest&range=7")
    about = "≈ 1,152,921,504,606,847,000"
    assert legend(page) == {"huge": about, "hugest": about}

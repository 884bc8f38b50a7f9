"""The dashboard as a person uses it: counters, one counter, its days and its keys."""

import re
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Page, expect

from countersink.database.sessions import open_tables
from countersink.web.http import answers
from tests.browser.chromium import UNLOADED, Look, looking, routed, row
from tests.browser.filled import fill_keys
from tests.support.roll_up import roll_up
from tests.support.waiting import eventually
from tests.web.serving import Web

BERLIN = ZoneInfo("Europe/Berlin")
KEYS = 10_000


def number(text: str) -> int:
    return int(text.replace(",", ""))


def total(web: Web, start: date, end: date) -> int:
    return web.store.totals.total("page_views", start=start, end=end)


def test_the_first_visit_says_how_to_begin_and_the_first_event_shows_up(
    browser: Browser, web: Web
) -> None:
    with looking(browser, web.url) as look:
        page = look.at("/")
        expect(page.get_by_role("heading", level=1)).to_have_text("Nothing has been counted yet")
        expect(page.get_by_role("tabpanel")).to_contain_text(f"{web.url}/v1/increments")
        page.get_by_role("tab", name="curl").press("ArrowRight")
        expect(page.get_by_role("tab", name="Python")).to_be_focused()
        expect(page.get_by_role("tabpanel")).to_contain_text("Producer.from_env()")
        page.get_by_role("button", name="Send one from here").click()
        expect(page.get_by_text("A worker counts it in a moment")).to_be_visible()
        web.apply()
        cells = page.locator(f"{row('hello')} td.number")
        # No change to tell yet; the small print is for phones.
        expect(cells).to_have_text(["–", "11 in all", "1"])
        web.count("hello", "again", 41)
        expect(page.locator(f"{row('hello')} td.all")).to_have_text("42")
        expect(page.locator(f"{row('hello')} .now")).to_have_text("42")


def test_days_without_counts_say_when_something_was_counted(browser: Browser, web: Web) -> None:
    day = date(2026, 3, 2)
    noon = datetime.combine(day, time(12), UTC)
    web.producer.increment("backfilled", "a", 3, at=noon)
    web.producer.increment("backfilled", "a", 4, at=noon - timedelta(days=90))
    web.producer.increment("smaller", "a", 2, at=noon - timedelta(days=900))
    web.apply()
    with looking(browser, web.url) as look:
        page = look.at("/#/?range=7")
        said = "Nothing counted in the last 7 days; the last event{} was on Mon, 2 Mar 2026."
        expect(page.locator(".notice")).to_contain_text(said.format(" of backfilled"))
        page.get_by_role("link", name="backfilled", exact=True).click()
        expect(page.locator(".notice")).to_contain_text(said.format(""))
        page.goto("/#/counter/backfilled?range=1")
        expect(page.locator(".notice")).to_contain_text("Nothing counted today;")
        page.get_by_role("button", name="7 days").click()
        expect(page.locator(".notice")).to_contain_text("in the last 7 days;")
        page.get_by_role("link", name="Show that time").click()
        expect(page.get_by_label("First day")).to_have_value("2026-02-24")
        expect(page.get_by_label("Last day")).to_have_value("2026-03-02")
        expect(page.locator(".figure dd > span")).to_have_text(["0", "3", "7"])
        expect(page.locator(".notice")).to_have_count(0)
        # Days that are months by now have no last day.
        web.store.counters.set("backfilled", keep="day=1d")
        roll_up(partial(open_tables, web.options.mysql_url), rows=100)
        page.goto("/#/counter/backfilled?range=7")
        expect(page.locator(".notice")).to_contain_text("the last event was in March 2026.")
        page.get_by_role("link", name="Show that time").click()
        expect(page.get_by_label("Last day")).to_have_value("2026-03-31")
        page.goto("/#/")
        expect(page.locator(".notice")).to_contain_text("in the last 30 days;")
        web.count("smaller", "a", 1)
        expect(page.locator(".notice")).to_have_count(0)


def test_copies_of_the_browser_are_not_taken_for_the_numbers_of_now(
    browser: Browser, filled: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "FRESH_S", 3_600)
    with looking(browser, filled.url) as look:
        page = look.at("/")
        expect(page.locator(".counters tbody a").first).to_be_visible()
        filled.count("page_views.copied", "world")
        expect(page.locator(f"{row('page_views.copied')} td.all")).to_have_text("1")


def test_numbers_tick_without_reloading(look: Look, filled: Web) -> None:
    page = look.at("/#/counter/signups")
    figures = page.locator(".figure dd > span")
    expect(figures).to_have_text([re.compile(r"\d")] * 3)
    before = [number(one) for one in figures.all_inner_texts()]
    assert before[0] < before[1] < before[2]
    filled.count("signups", "web", 1_000)
    for figure, then in zip(figures.all(), before, strict=True):
        expect(figure).to_have_text(f"{then + 1_000:,}")
    expect(page.locator("#fresh")).to_have_class("fresh good")


def hours(last: date, days: int) -> int:
    """How many hours so many days have in Berlin."""
    first, end = last - timedelta(days=days - 1), last + timedelta(days=1)
    begins, ends = (datetime.combine(day, time(), BERLIN) for day in (first, end))
    return int((ends.astimezone(UTC) - begins.astimezone(UTC)).total_seconds()) // 3600


def test_another_range_another_unit_and_the_period_before(look: Look, filled: Web) -> None:
    page = look.at("/#/counter/page_views")
    today = datetime.now(BERLIN).date()
    expect(page.locator(".figure dt").nth(1)).to_have_text("Last 30 days")
    page.get_by_role("button", name="7 days").click()
    week = total(filled, today - timedelta(days=6), today)
    expect(page.locator(".figure dd > span").nth(1)).to_have_text(f"{week:,}")
    expect(page).to_have_url(re.compile(r"range=7"))
    page.get_by_label("Compare with").select_option("1")
    expect(page.locator(".figure small").nth(1)).to_contain_text(re.compile(r"before [\d,]+"))
    page.get_by_label("Last day").fill((today - timedelta(days=1)).isoformat())
    before = total(filled, today - timedelta(days=12), today - timedelta(days=7))
    expect(page.locator(".figure small").nth(1)).to_contain_text(f"before {before:,}")
    page.get_by_role("button", name="7 days").click()
    page.get_by_role("button", name="Hours").click()
    chart = page.get_by_role("slider")
    expect(chart).to_have_attribute("aria-valuemax", str(hours(today, 7) - 1))
    page.get_by_label("First day").fill((today - timedelta(days=2)).isoformat())
    expect(chart).to_have_attribute("aria-valuemax", str(hours(today, 3) - 1))
    page.go_back()
    expect(chart).to_have_attribute("aria-valuemax", str(hours(today, 7) - 1))
    page.get_by_role("button", name="All", exact=True).click()
    expect(page.get_by_label("Compare with")).to_be_disabled()


def test_the_chart_is_there_as_a_table_and_as_csv(look: Look) -> None:
    page = look.at("/#/counter/signups?range=7")
    page.get_by_text("The numbers as a table").click()
    table = page.get_by_role("region", name="The numbers of the chart")
    expect(table.locator("tbody tr")).to_have_count(7)
    page.get_by_text("The numbers as a table").click()
    with page.expect_download() as download:  # the link is there whether the table is or not
        page.locator(".panel").get_by_role("link", name="Download as CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0] == '"day","total"'
    assert len(lines) == 8


def test_ten_thousand_keys_are_searched_and_shown_as_they_are_scrolled_to(
    look: Look, filled: Web
) -> None:
    fill_keys(filled, KEYS)
    page = look.at("/#/counter/downloads?range=7")
    keys = page.locator(".keys li")
    expect(keys).to_have_count(25)
    page.get_by_label("Find keys").fill("file-0123")
    expect(keys).to_have_count(10)
    expect(page.locator("#announce")).to_have_text("10 keys found")
    page.get_by_label("Find keys").fill("there is no such key")
    expect(page.get_by_text("No key has “there is no such key” in it.")).to_be_visible()
    page.get_by_label("Find keys").fill("")
    more = page.locator(".top-keys").get_by_role("button", name="Show more")
    for shown in (100, 400):
        more.click()
        expect(keys).to_have_count(shown)
    for _ in range(3):
        more.dispatch_event("click")  # it moves down as rows come: no pointer would surely hit it
    expect(page.get_by_text(f"The {KEYS:,} largest keys.")).to_be_visible()
    drawn = keys.count()
    assert drawn < KEYS  # the others come when they are scrolled to
    keys.last.scroll_into_view_if_needed()
    eventually(lambda: keys.count() > drawn)


def test_one_key_alone(look: Look, filled: Web) -> None:
    page = look.at("/#/counter/page_views?range=30")
    page.get_by_role("button", name="/blog/2026/émile").click()
    total = filled.store.totals.total("page_views", key="/blog/2026/émile")
    expect(page.locator(".figure dd > span").nth(2)).to_have_text(f"{total:,}")
    page.goto("/#/counter/page_views?range=30&key=")
    empty = filled.store.totals.total("page_views", key="")
    expect(page.locator(".figure dd > span").nth(2)).to_have_text(f"{empty:,}")
    page.get_by_role("button", name="Remove: only (no key)").click()
    expect(page.locator(".chip")).to_have_count(0)
    expect(page.locator(".figure dd > span").nth(2)).not_to_have_text(f"{total:,}")


def test_counters_are_found_and_sorted(look: Look, filled: Web) -> None:
    page = look.at("/#/")
    links = page.locator(".counters tbody a")
    expect(links).to_have_text(sorted(filled.store.totals.counters()))
    expect(page.locator(".counters tbody td.all").first).to_have_text(re.compile(r"\d"))
    page.get_by_role("button", name="In all").click()
    expect(links.first).to_have_text("api:requests")
    page.get_by_role("button", name="In all").click()
    expect(links.last).to_have_text("api:requests")
    expect(page.get_by_role("columnheader", name="In all")).to_have_attribute(
        "aria-sort", "ascending"
    )
    page.get_by_label("Find a counter").fill("up")
    expect(links).to_have_text(["signups"])
    page.get_by_label("Find a counter").fill("<b>")
    expect(page.get_by_text("No counter has “<b>” in its name.")).to_be_visible()


def test_a_server_that_is_away_is_told_of_and_its_numbers_stay(look: Look) -> None:
    page = look.at("/#/counter/signups")
    expect(page.locator(".keys li")).to_have_count(2)
    expect(page.locator("#fresh.good")).to_be_visible()
    total = page.locator(".figure dd > span").nth(2).inner_text()
    with routed(page, "**/v1/**", lambda route: route.abort()):
        page.get_by_role("button", name="7 days").click()
        expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
        assert page.locator(".figure dd > span").nth(2).inner_text() == total
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuemax", "6")
    look.excused.append(UNLOADED)


def test_everything_is_done_with_the_keyboard_alone(look: Look) -> None:
    page = look.at("/")
    expect(page.locator(".counters tbody a").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "signups":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("signups")
    expect(page.locator("main")).to_be_focused()
    chart = page.get_by_role("slider")
    expect(chart).to_have_attribute("aria-valuemax", "29")
    for _ in range(30):
        if page.evaluate("document.activeElement.getAttribute('role')") == "slider":
            break
        page.keyboard.press("Tab")
    expect(chart).to_be_focused()
    page.keyboard.press("Home")
    expect(chart).to_have_attribute("aria-valuenow", "0")
    page.keyboard.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuenow", "1")
    expect(chart).to_have_attribute("aria-valuetext", re.compile(r"^\w+, \d+ \w+ \d{4}: [\d,]+$"))


def test_the_highest_of_what_is_below_zero_is_not_zero(look: Look, filled: Web) -> None:
    for amount in (-5, -3):
        filled.producer.increment("debts", "a", amount)
    filled.producer.increment("mixed", "a", -4, at=datetime.now(UTC) - timedelta(days=1))
    filled.producer.increment("mixed", "a", 9)
    filled.apply()
    page = look.at("/#/counter/debts")
    chart = page.get_by_role("slider")
    expect(page.locator(".readout")).to_have_text(re.compile(r"^Lowest: -8, "))
    expect(chart).to_have_attribute("aria-valuetext", re.compile(r"Lowest: -8, "))
    page.goto("/#/counter/mixed")
    expect(page.locator(".readout")).to_have_text(re.compile(r"^Highest: 9, .*; lowest: -4, "))


def test_top_keys_say_how_they_have_changed_and_which_are_new(look: Look, filled: Web) -> None:
    now = datetime.now(UTC)

    def add(key: str, amount: int, back: int) -> None:
        filled.producer.increment("top_keys", key, amount, at=now - timedelta(days=back))

    for key, week, before in (("grown", 60, 40), ("shrunk", 30, 60), ("new", 20, 0)):
        add(key, week, 3)
        add(key, before, 8)
        add(key, 1_000, 0)  # today is not over
        add(key, 5_000, 15)  # too long ago
    filled.apply()
    page = look.at("/#/counter/top_keys?range=7")
    items = page.locator(".keys li")
    expect(items).to_have_count(3)
    shown = {one.split("\n")[1]: one for one in items.all_inner_texts()}
    assert "+50%" in shown["grown"]
    assert "-50%" in shown["shrunk"]
    assert "new" in shown["new"].split("\n")[2]
    expect(page.get_by_text("today is not over, and left out")).to_be_visible()
    page.goto("/#/counter/top_keys?range=all")
    expect(page.locator(".keys .total").first).to_have_text("6,100")
    expect(page.locator(".keys .change").first).to_have_text("")


def test_figures_say_how_they_have_changed_without_being_asked(look: Look, filled: Web) -> None:
    now = datetime.now(UTC)
    for back in range(1, 7):
        filled.producer.increment("steady", "a", 30, at=now - timedelta(days=back))
        filled.producer.increment("steady", "a", 20, at=now - timedelta(days=back + 7))
        filled.producer.increment("fresh", "a", 5, at=now - timedelta(days=back))
    filled.apply()
    page = look.at("/#/counter/steady?range=7")
    note = page.locator(".figure small").nth(1)
    expect(note).to_have_text("+50% · without today 180, before 120")
    expect(note.locator(".gain")).to_have_text("+50%")
    expect(page.get_by_label("Compare with")).to_have_value("")  # nothing is drawn beside it
    page.goto("/#/counter/steady?range=7&with=fresh")
    expect(page.locator(".lines .change")).to_have_text(["+50%", "new"])
    page.goto("/#/counter/fresh?range=7")
    expect(note).to_have_text("new · without today 30, before 0")
    last = (now - timedelta(days=1)).date()
    page.goto(f"/#/counter/steady?range=custom&from={last}&to={last}")
    expect(note).to_have_text("no change · before 30")


def test_the_change_in_the_list_is_of_the_days_that_are_chosen(look: Look, filled: Web) -> None:
    now = datetime.now(UTC)
    for back, amount in ((3, 60), (8, 40), (20, 100), (40, 100), (70, 50), (100, 700), (0, 9)):
        filled.producer.increment("turning", "a", amount, at=now - timedelta(days=back))
    filled.apply()
    page = look.at("/#/")
    for days, change, way in ((30, "+100%", "gain"), (7, "+50%", "gain"), (90, "-50%", "loss")):
        page.get_by_role("button", name=f"{days} days").click()
        expect(page.locator("[data-sort=change]")).to_have_text(f"{days}-day change")
        cell = page.locator("tr:has-text('turning') td.change")
        expect(cell).to_have_text(change)
        expect(cell).to_have_class(re.compile(way))
        expect(page.locator(".explained")).to_contain_text(f"the last {days} complete days")
    # By 90 days it has lost most, which by 7 or 30 it has not.
    for _ in range(2):
        page.get_by_role("button", name="90-day change").click()
    expect(page.locator(".counters tbody a").first).to_have_text("turning")
    page.get_by_role("button", name="30 days").click()
    expect(page.locator(".counters tbody a").first).not_to_have_text("turning")


def stripes(page: Page, day: int, days: int) -> int:
    """How many colours a column of pixels has within the bar of a day."""
    script = """(canvas, part) => {
        const plot = canvas.parentElement.querySelector(".u-over");
        const ratio = canvas.width / canvas.clientWidth;
        const x = Math.round((plot.offsetLeft + part * plot.clientWidth) * ratio);
        const y = Math.round((plot.offsetTop + plot.clientHeight) * ratio);
        const pixels = canvas.getContext("2d").getImageData(x, y - 44, 1, 40).data;
        return new Set(Array.from({ length: 40 }, (_, i) => pixels.slice(4 * i, 4 * i + 4).join()))
            .size;
    }"""
    part = (day + 0.6) / (days + 0.2)
    found: int = page.locator(".plot canvas").first.evaluate(script, part)
    return found


def test_what_is_not_over_is_hatched_and_dashed(look: Look, filled: Web) -> None:
    now = datetime.now(UTC)
    for back in range(7):
        filled.producer.increment("even", "a", 40, at=now - timedelta(days=back))
    filled.apply()
    page = look.at("/#/counter/even?range=7")
    expect(page.locator(".plot canvas")).to_have_count(1)
    eventually(lambda: stripes(page, 3, 7) == 1)
    assert stripes(page, 6, 7) > 2
    page.goto("/#/?range=7")
    dashed = page.locator(f"{row('even').replace('even', 'even?range=7')} .spark .running")
    expect(dashed).to_have_css("stroke-dasharray", "2px, 3px")


def test_the_days_stay_from_counter_to_counter_and_back(look: Look) -> None:
    page = look.at("/#/")
    page.get_by_role("button", name="7 days").click()
    expect(page.get_by_role("columnheader", name="Last 7 days")).to_be_visible()
    signups = page.get_by_role("link", name="signups", exact=True)
    expect(signups).to_have_attribute("href", re.compile(r"\?range=7$"))
    signups.click()
    chosen = page.get_by_role("button", name="7 days")
    expect(chosen).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="90 days").click()
    expect(page.locator(".figure dt").nth(1)).to_have_text("Last 90 days")
    page.get_by_role("link", name="System").click()
    page.get_by_role("link", name="Counters", exact=True).click()
    expect(page.get_by_role("columnheader", name="Last 90 days")).to_be_visible()
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.locator(".figure dt").nth(1)).to_have_text("Last 90 days")
    page.get_by_role("link", name="← All counters").click()
    expect(page).to_have_url(re.compile(r"/#/\?range=90$"))
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")


def test_a_counter_without_keys_has_no_lists_of_them(look: Look, filled: Web) -> None:
    filled.store.counters.set("keyless", resolution="hour")
    filled.count("keyless", "", 5)
    page = look.at("/#/counter/keyless")
    expect(page.locator(".figure dd > span")).to_have_text(["5", "5", "5"])
    with page.expect_response(re.compile("last=24h")):
        page.reload()
    expect(page.get_by_role("heading", name="Top keys")).to_be_hidden()
    expect(page.get_by_text("Trending in the last 24 hours")).to_be_hidden()
    filled.count("keyless", "a key", 1)
    page.reload()
    expect(page.locator(".keys li")).to_have_count(2)
    expect(page.locator(".trends tbody tr")).to_have_count(2)


def test_wide_windows_have_two_columns(look: Look, filled: Web) -> None:
    for number in range(12):
        filled.producer.increment(f"column.{number}")
    filled.apply()
    parts = {"/#/counter/page_views": (".top-keys", ".hours"), "/#/": ("tbody tr", "tbody tr")}
    for place, (left, right) in parts.items():
        page = look.at(place)
        expect(page.locator(f"{left} .key, td.all").first).to_have_text(re.compile("[/0-9]"))
        for width, beside in ((1599, False), (1600, True)):
            page.set_viewport_size({"width": width, "height": 900})
            first, last = page.locator(left).first, page.locator(right).last
            ends = first.evaluate("(one) => one.getBoundingClientRect().right")
            assert (last.evaluate("(one) => one.getBoundingClientRect().left") > ends) is beside

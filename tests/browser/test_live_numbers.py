"""Numbers on the screen while events, answers and people cross each other."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.chromium import Look, came, held, looking, routed, row
from tests.support.waiting import eventually
from tests.web.serving import Web

LATER_MS = 6_000
"""Longer than the page waits before it asks for hours again, or a server that failed."""

TOLD = """total => new Promise((done) => {
  const live = new EventSource("/v1/live?counter=hello");
  live.onmessage = ({ data }) => {
    if (JSON.parse(data).today.hello?.total !== total) return;
    live.close();
    done();
  };
})"""
"""Comes to its end when the live stream has told a total of today."""


def number(page: Page, counter: str, kind: str) -> Locator:
    """A number in the list of all counters."""
    return page.locator(f"{row(counter)} {kind}")


def figures(page: Page) -> Locator:
    """Today's, these days', and all."""
    return page.locator(".figure dd > span")


def count(web: Web, counter: str, amount: int = 1) -> None:
    """So many events of it, in the database."""
    web.producer.increment(counter, "a", amount)
    web.apply()


@contextmanager
def failed_at_first(browser: Browser, web: Web, place: str, asked: str) -> Iterator[Page]:
    """A page at ``place`` which said that requests of ``asked`` failed, and may ask again."""
    with looking(browser, web.url) as look:
        page = look.page
        page.clock.install()
        with routed(page, asked, lambda route: route.fulfill(status=503, body="{}")):
            page.goto(place)
            expect(page.get_by_role("alert")).to_contain_text("503")
            expect(page.get_by_role("button", name="Try again")).to_be_visible()
        page.clock.fast_forward(LATER_MS)
        yield page
        expect(page.get_by_role("alert")).to_have_count(0)
        look.complaints.clear()  # Chromium writes to the console what could not be loaded


def test_a_list_that_fails_at_first_says_so_and_comes_by_itself(browser: Browser, web: Web) -> None:
    count(web, "hello")
    with failed_at_first(browser, web, "/", "**/v1/counters?**") as page:
        expect(number(page, "hello", ".all")).to_have_text("1")


def test_a_counter_that_fails_at_first_comes_by_itself(browser: Browser, web: Web) -> None:
    count(web, "hello")
    with failed_at_first(browser, web, "/#/counter/hello", "**/v1/counters/hello") as page:
        expect(figures(page)).to_have_text(["1", "1", "1"])


def test_a_counter_that_is_to_come_shows_up(browser: Browser, web: Web) -> None:
    with looking(browser, web.url) as look:
        page = look.page
        page.clock.install()
        page.goto("/#/counter/hello")
        expect(page.get_by_text("Nothing has been counted as hello.")).to_be_visible()
        count(web, "hello", 3)
        page.clock.fast_forward(LATER_MS)
        expect(figures(page)).to_have_text(["3", "3", "3"])
        look.complaints.clear()


def test_an_event_just_after_the_hours_came_is_drawn(browser: Browser, web: Web) -> None:
    web.store.counters.set("hello", resolution="hour")
    count(web, "hello")
    with looking(browser, web.url) as look:
        page = look.page
        page.clock.install()
        page.goto("/#/counter/hello?range=1")
        expect(figures(page)).to_have_text(["1", "1", "1"])
        count(web, "hello", 100)
        expect(figures(page).first).to_have_text("101")
        page.clock.fast_forward(LATER_MS)
        expect(figures(page)).to_have_text(["101", "101", "101"])
        expect(page.locator(".keys .total")).to_have_text("101")


def test_keys_follow_the_days(browser: Browser, web: Web) -> None:
    count(web, "hello")
    with looking(browser, web.url) as look:
        page = look.page
        page.clock.install()
        page.goto("/#/counter/hello")
        expect(page.locator(".keys .total")).to_have_text("1")
        count(web, "hello", 9)
        expect(figures(page)).to_have_text(["10", "10", "10"])
        page.clock.fast_forward(2 * LATER_MS)
        expect(page.locator(".keys .total")).to_have_text("10")


def test_an_event_before_the_first_figures_is_not_lost(browser: Browser, web: Web) -> None:
    count(web, "hello", 2)
    with looking(browser, web.url) as look:
        page = look.page
        with held(page, re.compile(r"/daily\?from=\d{4}-\d\d-\d\d&to=\d{4}-\d\d-\d\d$")) as waiting:
            page.goto("/#/counter/hello?range=all")
            came(page, waiting)
            (route,) = waiting
            old = route.fetch()
            count(web, "hello", 10)
            page.evaluate(TOLD, 12)
            waiting.clear()
            route.fulfill(response=old)
        expect(figures(page)).to_have_text(["12", "12", "12"])


def test_a_late_list_does_not_undo_what_was_heard(browser: Browser, web: Web) -> None:
    count(web, "hello", 12)
    with looking(browser, web.url) as look:
        page = look.page
        page.clock.install()
        page.goto("/")
        expect(number(page, "hello", ".now")).to_have_text("12")
        expect(number(page, "hello", ".all")).to_have_text("12")
        with held(page, re.compile(r"/v1/counters\?.*totals=false")) as waiting:
            page.clock.fast_forward(61_000)
            came(page, waiting)
            old = waiting[0].fetch()
            count(web, "hello")
            expect(number(page, "hello", ".now")).to_have_text("13")
            with page.expect_response(re.compile(r"/v1/counters\?.*days=1$")):
                waiting.pop(0).fulfill(response=old)
        expect(number(page, "hello", ".all")).to_have_text("13")
        expect(number(page, "hello", ".now")).to_have_text("13")


def test_more_counters_stay_asked_for_when_another_comes(browser: Browser, web: Web) -> None:
    for index in range(150):
        web.producer.increment(f"c{index:03}")
    web.apply()
    with looking(browser, web.url) as look:
        page = look.page
        page.goto("/")
        rows = page.locator(".counters tbody tr")
        expect(rows).to_have_count(100)
        with held(page, re.compile(r"/v1/counters\?.*limit=200")) as waiting:
            page.get_by_role("button", name="Show more").click()
            came(page, waiting)
            count(web, "another")
            eventually(lambda: page.evaluate("1") and len(waiting) > 1)
        expect(rows).to_have_count(151)


def test_a_date_is_typed(look: Look) -> None:
    page = look.page
    page.goto("/#/counter/page_views")
    field = page.get_by_label("First day")
    expect(field).not_to_have_value("")
    field.focus()
    day = datetime.now(UTC).date() - timedelta(days=40)
    field.press_sequentially(f"{day:%m%d%Y}")
    expect(page).to_have_url(re.compile(f"from={day.isoformat()}"))
    expect(field).to_have_value(day.isoformat())
    expect(field).to_be_focused()


def test_who_walks_through_keys_or_the_chart_stays_there(browser: Browser, web: Web) -> None:
    web.store.counters.set("hello", resolution="hour")
    web.producer.increment("hello", "b", 5)
    count(web, "hello")
    with looking(browser, web.url) as look:
        page = look.page
        page.clock.install()
        page.goto("/#/counter/hello?range=1")
        key = page.get_by_role("button", name="a", exact=True)
        key.focus()
        count(web, "hello", 10)  # the other one's place
        page.clock.fast_forward(LATER_MS)
        expect(page.locator(".keys .key").first).to_have_text("a")
        expect(key).to_be_focused()
        chart = page.get_by_role("slider")
        chart.press("Home")
        chart.press("ArrowRight")
        expect(chart).to_have_attribute("aria-valuenow", "1")
        count(web, "hello", 10)
        page.clock.fast_forward(LATER_MS)
        expect(figures(page).nth(1)).to_have_text("26")
        expect(chart).to_have_attribute("aria-valuenow", "1")


def test_the_day_after_begins_without_taking_from_the_total(browser: Browser, web: Web) -> None:
    count(web, "hello", 5)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    news = {
        "counters": 1,
        "complete_up_to": None,
        "today": {"hello": {"day": tomorrow, "total": 0}},
    }
    with looking(browser, web.url) as look:
        page = look.page
        page.route("**/v1/live**", lambda route: route.abort())
        page.goto("/#/counter/hello")
        expect(figures(page)).to_have_text(["5", "5", "5"])
        stream = f"retry: 100000\ndata: {json.dumps(news)}\n\n"
        page.route(
            "**/v1/live**",
            lambda route: route.fulfill(content_type="text/event-stream", body=stream),
        )
        with page.expect_response("**/v1/live**"):
            page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")
        expect(figures(page).nth(2)).to_have_text("5")
        look.complaints.clear()  # Chromium writes to the console what could not be loaded


def test_a_view_that_was_left_asks_for_nothing_more(look: Look) -> None:
    page = look.page
    with held(page, re.compile(r"/v1/counters/signups$")) as waiting:
        page.goto("/#/counter/signups")
        came(page, waiting)
        page.goto("/#/counter/orders")
        expect(page.locator("#announce")).to_have_text(re.compile("orders"))
        look.requests.clear()
    with page.expect_response("**/v1/system"):
        page.get_by_role("link", name="System").click()
    assert not [one for one in look.requests if "/counters/signups" in one]


def test_lines_beside_each_other_follow_what_is_counted(look: Look, filled: Web) -> None:
    page = look.page
    page.goto("/#/counter/signups?with=votes")
    totals = page.locator(".lines .number")
    expect(totals).to_have_count(2)
    expect(page.locator("#fresh.good")).to_be_visible()
    signups, votes = (int(one.replace(",", "")) for one in totals.all_inner_texts())
    filled.producer.increment("votes", "a", 1_000)
    filled.apply()
    expect(totals).to_have_text([f"{signups:,}", f"{votes + 1_000:,}"])

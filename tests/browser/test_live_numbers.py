"""Numbers on the screen while events, answers and people cross each other."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.chromium import UNLOADED, Look, came, held, routed, row
from tests.web.serving import Web

LATER_MS = 6_000
"""Longer than the page waits before it asks for hours again, or a server that failed."""

TOLD = """total => new Promise((done) => {
  const live = new EventSource("/v1/live?counter=live.first");
  live.onmessage = ({ data }) => {
    if (JSON.parse(data).today["live.first"]?.total !== total) return;
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


@pytest.mark.parametrize(
    ("place", "asked"),
    [("/#/", "**/v1/counters?**"), ("/#/counter/live.failed", "**/v1/counters/live.failed")],
)
def test_what_fails_at_first_says_so_and_comes_by_itself(
    timed: Look, filled: Web, place: str, asked: str
) -> None:
    filled.count("live.failed", "a")
    total = filled.store.totals.total("live.failed")
    page = timed.page
    with routed(page, asked, lambda route: route.fulfill(status=503, body="{}")):
        page.goto(place)
        expect(page.get_by_role("alert")).to_contain_text("503")
        expect(page.get_by_role("button", name="Try again")).to_be_visible()
    page.clock.fast_forward(LATER_MS)
    if place == "/#/":
        expect(number(page, "live.failed", ".all")).to_have_text(f"{total}")
    else:
        expect(figures(page)).to_have_text([f"{total}"] * 3)
    expect(page.get_by_role("alert")).to_have_count(0)
    timed.excused.append(UNLOADED)


def test_a_counter_that_is_to_come_shows_up(timed: Look, filled: Web) -> None:
    page = timed.at("/#/counter/live.to_come")
    expect(page.get_by_text("Nothing has been counted as live.to_come.")).to_be_visible()
    filled.count("live.to_come", "a", 3)
    page.clock.fast_forward(LATER_MS)
    expect(figures(page)).to_have_text(["3", "3", "3"])
    timed.excused.append(UNLOADED)


def test_an_event_just_after_the_hours_came_is_drawn(timed: Look, filled: Web) -> None:
    filled.store.counters.set("live.hours", resolution="hour")
    filled.count("live.hours", "a")
    page = timed.at("/#/counter/live.hours?range=1")
    expect(figures(page)).to_have_text(["1", "1", "1"])
    filled.count("live.hours", "a", 100)
    expect(figures(page).first).to_have_text("101")
    page.clock.fast_forward(LATER_MS)
    expect(figures(page)).to_have_text(["101", "101", "101"])
    expect(page.locator(".keys .total")).to_have_text("101")


def test_an_event_before_the_first_figures_is_not_lost(look: Look, filled: Web) -> None:
    filled.count("live.first", "a", 2)
    page = look.page
    with held(page, re.compile(r"/daily\?from=\d{4}-\d\d-\d\d&to=\d{4}-\d\d-\d\d$")) as waiting:
        page.goto("/#/counter/live.first?range=all")
        came(page, waiting)
        (route,) = waiting
        old = route.fetch()
        filled.count("live.first", "a", 10)
        page.evaluate(TOLD, 12)
        waiting.clear()
        route.fulfill(response=old)
    expect(figures(page)).to_have_text(["12", "12", "12"])


def test_a_late_list_does_not_undo_what_was_heard(timed: Look, filled: Web) -> None:
    filled.count("live.late", "a", 12)
    page = timed.at("/#/")
    expect(number(page, "live.late", ".now")).to_have_text("12")
    expect(number(page, "live.late", ".all")).to_have_text("12")
    with held(page, re.compile(r"/v1/counters\?.*totals=false")) as waiting:
        page.clock.fast_forward(61_000)
        came(page, waiting)
        old = waiting[0].fetch()
        filled.count("live.late", "a")
        expect(number(page, "live.late", ".now")).to_have_text("13")
        with page.expect_response(re.compile(r"/v1/counters\?.*days=1$")):
            waiting.pop(0).fulfill(response=old)
    expect(number(page, "live.late", ".all")).to_have_text("13")
    expect(number(page, "live.late", ".now")).to_have_text("13")


def test_who_walks_through_keys_or_the_chart_stays_there(timed: Look, filled: Web) -> None:
    filled.store.counters.set("live.walked", resolution="hour")
    filled.producer.increment("live.walked", "b", 5)
    filled.count("live.walked", "a")
    page = timed.at("/#/counter/live.walked?range=1")
    key = page.get_by_role("button", name="a", exact=True)
    key.focus()
    filled.count("live.walked", "a", 10)  # the other one's place
    page.clock.fast_forward(LATER_MS)
    expect(page.locator(".keys .key").first).to_have_text("a")
    expect(key).to_be_focused()
    chart = page.get_by_role("slider")
    chart.press("Home")
    chart.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuenow", "1")
    filled.count("live.walked", "a", 10)
    page.clock.fast_forward(LATER_MS)
    expect(figures(page).nth(1)).to_have_text("26")
    expect(chart).to_have_attribute("aria-valuenow", "1")


def test_keys_follow_each_event_between_two_loads(timed: Look, filled: Web) -> None:
    filled.count("live.keys", "a")
    page = timed.at("/#/counter/live.keys?range=1")
    amount = page.locator(".keys .total").first
    for total in (11, 21, 31):
        filled.count("live.keys", "a", 10)
        expect(figures(page).nth(0)).to_have_text(f"{total}")
        page.clock.fast_forward(10_500)
        expect(amount).to_have_text(f"{total}")


def test_the_day_after_begins_without_taking_from_the_total(fresh: Look, filled: Web) -> None:
    filled.count("live.tomorrow", "a", 5)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    news = {
        "counters": 1,
        "complete_up_to": None,
        "today": {"live.tomorrow": {"day": tomorrow, "total": 0}},
    }
    page = fresh.page
    page.route("**/v1/live**", lambda route: route.abort())
    page.goto("/#/counter/live.tomorrow")
    expect(figures(page)).to_have_text(["5", "5", "5"])
    stream = f"retry: 100000\ndata: {json.dumps(news)}\n\n"
    page.route(
        "**/v1/live**",
        lambda route: route.fulfill(content_type="text/event-stream", body=stream),
    )
    with page.expect_response("**/v1/live**"):
        page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")
    expect(figures(page).nth(2)).to_have_text("5")
    fresh.excused.append(UNLOADED)

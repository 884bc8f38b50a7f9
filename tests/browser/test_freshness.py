"""The line that says how fresh the numbers are, where nothing new is counted."""

import json
import re
import time

from playwright.sync_api import Browser, Page, Route, expect

from countersink.stream.connection import connect
from countersink.stream.entry import new_entry_id
from countersink.stream.names import stream_key
from tests.browser.chromium import Look, looking
from tests.support.waiting import eventually
from tests.web.serving import Web

NO_EVENTS = "window.EventSource = class { close() {} };"
"""So that what the page says is from answers."""
CLOCK = """{
    const Own = Date;
    window.Date = class extends Own {
        constructor(...given) {
            given.length ? super(...given) : super(Own.now() + AHEAD_MS);
        }
        static now() {
            return Own.now() + AHEAD_MS;
        }
    };
}"""
"""The clock of somebody who looks, so many milliseconds ahead."""
WRONG_MS = 3_600_000
GOOD = re.compile(r"^Live · complete up to \d\d:\d\d:\d\d$")


def said(page: Page) -> str:
    line = page.locator("#fresh .text")
    expect(line).to_have_text(GOOD)
    return line.inner_text()


def back_and_forth(page: Page) -> None:
    """Ask for the list anew."""
    for path in ("#/system", "#/"):
        with page.expect_response("**/v1/system" if path == "#/system" else "**/v1/counters?*"):
            page.evaluate("(hash) => { location.hash = hash; }", path)


def test_an_answer_that_has_not_changed_is_as_fresh_as_it_was_asked_for(
    fresh: Look, filled: Web
) -> None:
    page = fresh.page
    page.add_init_script(NO_EVENTS)
    page.goto("/")
    before = said(page)
    unchanged = filled.services.answers[304]

    def renewed() -> bool:
        back_and_forth(page)
        return filled.services.answers[304] > unchanged and said(page) != before

    eventually(renewed)
    # An answer that has been long on its way takes nothing of that back.
    page.route("**/v1/**", _long_ago)
    back_and_forth(page)
    assert said(page)
    page.unroute_all(behavior="wait")  # an answer that is still on its way would fail


def _long_ago(route: Route) -> None:
    answer = route.fetch()
    then = {"countersink-complete-up-to": "2020-01-01T00:00:00.000Z"}
    route.fulfill(response=answer, headers={**answer.headers, **then})


def test_a_wrong_clock_of_who_looks_is_neither_a_backlog_nor_hides_one(
    browser: Browser, web: Web
) -> None:
    with looking(browser, web.url) as one, looking(browser, web.url) as other:
        for look, ahead in ((one, WRONG_MS), (other, -WRONG_MS)):
            look.page.add_init_script(CLOCK.replace("AHEAD_MS", str(ahead)))
            look.page.goto("/")
            expect(look.page.locator("#fresh.good")).to_be_visible()
            assert GOOD.match(said(look.page))
        left_waiting(web)
        for look in (one, other):
            look.page.reload()
            expect(look.page.locator("#fresh .text")).to_have_text(re.compile(r": 2\d min behind"))


def left_waiting(web: Web) -> None:
    """Put an entry into the queue that has waited for twenty minutes."""
    then = int(time.time() * 1000) - 20 * 60_000
    rows = json.dumps([["orders", "a", then // 60_000, 1]])
    with connect(web.options.redis_url) as client:
        fields = {"v": 1, "id": new_entry_id(then), "at": then, "rows": rows}
        client.xadd(stream_key(0), fields, id=f"{then}-0")

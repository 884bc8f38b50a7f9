"""The line that says how fresh the numbers are, where nothing new is counted."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.chromium import Look
from tests.support.waiting import eventually
from tests.web.serving import Web

NO_EVENTS = "window.EventSource = class { close() {} };"
"""So that what the page says is from answers."""
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
    look: Look, filled: Web
) -> None:
    page = look.page
    page.add_init_script(NO_EVENTS)
    page.goto("/")
    before = said(page)
    unchanged = filled.services.answers[304]

    def renewed() -> bool:
        back_and_forth(page)
        return said(page) != before

    eventually(renewed)
    assert filled.services.answers[304] > unchanged
    # An answer that has been long on its way takes nothing of that back.
    now = said(page)
    page.evaluate(
        """async () => {
            const app = document.querySelector("script[src$='app.js']").src;
            const { fresh } = await import(app.replace("app.js", "freshness.js"));
            fresh("2020-01-01T00:00:00.000Z");
        }"""
    )
    assert said(page) == now

"""The list of all counters in narrow windows: no digit of a number is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.browser.chromium import looking, row
from tests.web.serving import Web

HEIGHT = 740
LARGE = {"at_most": 2**63 - 1, "at_least": -(2**63), "billion": 1_000_000_000, "few": 7}
CUT = """() => [...document.querySelectorAll(".sheet, .sheet td, .sheet th")]
    .filter((one) => one.scrollWidth > one.clientWidth)
    .map((one) => `${one.className}: ${one.innerText}`)"""


@pytest.fixture
def large(web: Web) -> Web:
    """A server with numbers as large, and as far below 0, as they can be."""
    for counter, amount in LARGE.items():
        web.producer.increment(counter, "a", amount)
    web.apply()
    return web


@contextmanager
def listed(browser: Browser, large: Web, width: int) -> Iterator[Page]:
    """The list with all its numbers, in a window of this width."""
    window = ViewportSize(width=width, height=HEIGHT)
    with looking(browser, large.url, viewport=window) as look:
        page = look.page
        page.goto("/")
        expect(page.locator(".counters tbody tr")).to_have_count(len(LARGE))
        expect(page.locator("td.all", has_text="…")).to_have_count(0)
        yield page


def test_no_digit_of_a_large_number_is_cut_off(browser: Browser, large: Web) -> None:
    with listed(browser, large, 320) as page:
        for width in (320, 360, 412, 1200):
            page.set_viewport_size({"width": width, "height": HEIGHT})
            assert page.evaluate(CUT) == [], width
            assert page.evaluate("document.documentElement.scrollWidth") == width


def test_where_two_large_numbers_have_no_room_they_are_scrolled_to(
    browser: Browser, large: Web
) -> None:
    with listed(browser, large, 600) as page:
        total = page.locator(f"{row('at_least')} td.all span")
        expect(total).not_to_be_in_viewport(ratio=1)
        page.locator(".sheet thead").hover()
        page.mouse.wheel(1_000, 0)
        expect(total).to_be_in_viewport(ratio=1)

"""Narrow windows: no digit is cut off, names keep their room, nothing covers anything."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.browser.chromium import looking, row
from tests.web.serving import Web

HEIGHT = 740
WIDTHS: Final = (320, 360, 390, 1200)
LARGE = {
    "at_most": 2**63 - 1,
    "at_least": -(2**63),
    "eleven.digits": 98_765_432_101,
    "few": 7,
    "a_name_of_some_length": 12,
}
CUT = """() => [...document.querySelectorAll(".sheet, .sheet td, .sheet th, .figures, .figure dd")]
    .concat([...document.querySelectorAll(".keys, .keys .number, .keys .key, .readout, td, th")])
    .filter((one) => {
        const box = one.getBoundingClientRect();
        return one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0
            || box.width > 0 && (box.left < 0 || box.right > innerWidth + 0.5);
    })
    .map((one) => `${one.className}: ${one.innerText}`)"""
CLOSE = """() => {
    const boxes = [...document.querySelectorAll(".keys li")].flatMap((one) => {
        const [key, total] = [one.querySelector(".key"), one.querySelector(".total")];
        return key.getBoundingClientRect().right > total.getBoundingClientRect().left + 1
            ? [one.innerText] : [];
    });
    return boxes;
}"""


@pytest.fixture
def large(web: Web) -> Web:
    """A server with numbers as large, and as far below 0, as they can be."""
    for counter, amount in LARGE.items():
        web.producer.increment(counter, "/a/key/of/some/length", amount)
    web.apply()
    return web


@contextmanager
def window(browser: Browser, large: Web) -> Iterator[Page]:
    with looking(browser, large.url, viewport=ViewportSize(width=320, height=HEIGHT)) as look:
        yield look.page


def test_no_digit_is_cut_off_and_names_keep_their_room_in_the_list(
    browser: Browser, large: Web
) -> None:
    with window(browser, large) as page:
        page.goto("/")
        expect(page.locator(".counters tbody tr")).to_have_count(len(LARGE))
        expect(page.locator("td.all", has_text="…")).to_have_count(0)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": HEIGHT})
            assert page.evaluate(CUT) == [], width
            assert page.evaluate("document.documentElement.scrollWidth") == width
            # The longest name has two lines on a phone, whatever the numbers beside it.
            name = page.locator(f"{row('a_name_of_some_length')} a")
            lines = "(one) => new Set([...one.getClientRects()].map((box) => box.top)).size"
            assert name.evaluate(lines) <= (3 if width == 320 else 2), width


@pytest.mark.parametrize("counter", LARGE)
def test_no_digit_is_cut_off_on_the_page_of_a_counter(
    browser: Browser, large: Web, counter: str
) -> None:
    with window(browser, large) as page:
        page.goto(f"/#/counter/{counter}")
        expect(page.locator(".keys li")).to_have_count(1)
        expect(page.locator(".figure dd > span").nth(2)).to_have_text(re.compile(r"\d"))
        page.get_by_text("The numbers as a table").click()
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": HEIGHT})
            assert page.evaluate(CUT) == [], width
            assert page.evaluate(CLOSE) == [], width
            assert page.evaluate("document.documentElement.scrollWidth") == width


def test_the_button_that_copies_covers_no_code(browser: Browser, web: Web) -> None:
    with window(browser, web) as page:
        page.goto("/")
        for width in (360, 390, 1200):
            page.set_viewport_size({"width": width, "height": HEIGHT})
            code = page.locator(".snippet pre").bounding_box()
            button = page.get_by_role("button", name="Copy").bounding_box()
            assert code
            assert button
            beside = button["x"] >= code["x"] + code["width"]
            assert beside or button["y"] >= code["y"] + code["height"], width

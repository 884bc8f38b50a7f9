"""Narrow windows: no digit is cut off, names keep their room, nothing covers anything."""

import re
from collections.abc import Iterator
from typing import Final

from playwright.sync_api import Browser, expect

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


def test_no_digit_is_cut_off_and_names_keep_their_room(browser: Browser, web: Web) -> None:
    """In the list, and on the page of each counter."""
    for counter, amount in LARGE.items():
        web.producer.increment(counter, "/a/key/of/some/length", amount)
    web.apply()
    with looking(browser, web.url) as look:
        page = look.page

        def fits(*scripts: str) -> Iterator[int]:
            """Nothing is cut off in any width; each of them."""
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": HEIGHT})
                for script in scripts:
                    assert page.evaluate(script) == [], (page.url, width)
                assert page.evaluate("document.documentElement.scrollWidth") == width, page.url
                yield width

        page.goto("/")
        expect(page.locator(".counters tbody tr")).to_have_count(len(LARGE))
        expect(page.locator("td.all", has_text="…")).to_have_count(0)
        for width in fits(CUT):
            # The longest name has two lines on a phone, whatever the numbers beside it.
            name = page.locator(f"{row('a_name_of_some_length')} a")
            lines = "(one) => new Set([...one.getClientRects()].map((box) => box.top)).size"
            assert name.evaluate(lines) <= (3 if width == 320 else 2), width
        for counter in LARGE:
            page.goto(f"/#/counter/{counter}")
            expect(page.get_by_role("heading", level=1)).to_have_text(counter)
            expect(page.locator(".keys li")).to_have_count(1)
            expect(page.locator(".figure dd > span").nth(2)).to_have_text(re.compile(r"\d"))
            page.get_by_text("The numbers as a table").click()
            assert len(list(fits(CUT, CLOSE))) == len(WIDTHS)

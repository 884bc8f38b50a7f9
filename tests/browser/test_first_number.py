"""What a browser has to wait for before the first number is there.

The clock says nothing here: counted are answers that wait for one another, and bytes. On a line of
400 ms and 400 kbit/s each answer more costs 0.4 s, and 20 kB do.
"""

import re
from typing import Final

import pytest
import requests
from playwright.sync_api import Browser, Route, expect

from tests.browser.chromium import UNLOADED, looking
from tests.support.waiting import eventually
from tests.web.serving import Web

MOST_BYTES: Final = 50_000
"""Of all that comes before the first number: a second at 400 kbit/s."""
COUNTERS: Final = 8
"""Of the list of them: so many as the database is filled with, whatever tests have added."""
FILES: Final = {"css/dashboard.css", "js/dashboard.js"}
NUMBER: Final = re.compile(r"^[\d,]+$")


def _path(url: str, web: Web) -> str:
    return re.sub(r"^/static/[0-9a-f]+/", "", url.removeprefix(web.url))


@pytest.mark.parametrize(
    ("place", "data", "number"),
    [
        (
            "/",
            {"/v1/whoami", "/v1/counters?search=&after=&limit=100&days=30&totals=false"},
            "tr:has(a[href='#/counter/signups']) .now",
        ),
        (
            "/#/counter/signups",
            {
                "/v1/whoami",
                "/v1/counters/signups",
                "/v1/counters/signups/totals?by=total",
            },
            ".figure:nth-child(3) dd > span",
        ),
    ],
)
def test_the_first_number_waits_for_the_page_and_for_one_round_of_answers(
    browser: Browser, filled: Web, place: str, data: set[str], number: str
) -> None:
    with looking(browser, filled.url) as look:
        page = look.page
        wanted = FILES | data
        waiting: dict[str, Route] = {}

        def hold(route: Route) -> None:
            path = _path(route.request.url, filled)
            if path == "/":
                route.continue_()
            else:
                waiting.setdefault(path, route)

        page.route("**/*", hold)
        page.goto(place, wait_until="commit")
        # All of them are asked for while none is answered yet ...
        eventually(lambda: page.evaluate("1") and wanted <= waiting.keys())
        assert not any("uplot" in path for path in waiting)
        for path in wanted:
            waiting.pop(path).continue_()
        # ... and with these answers, and no other one, the number is there.
        expect(page.locator(number)).to_have_text(NUMBER)
        few = {one.replace("limit=100", f"limit={COUNTERS}") for one in data}
        assert _bytes(filled, "/", *few, *FILES) < MOST_BYTES
        page.unroute_all(behavior="ignoreErrors")
        page.goto("about:blank")
        look.excused.append(UNLOADED)  # of what was not answered


def test_nothing_is_asked_for_twice_and_only_the_page_s_own_scripts_run(
    browser: Browser, filled: Web
) -> None:
    policy = requests.get(filled.url, timeout=20).headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    with looking(browser, filled.url) as look:
        look.page.goto("/#/counter/signups")
        expect(look.page.locator(".keys li")).to_have_count(2)
        expect(look.page.locator(".plot canvas")).to_have_count(1)
        asked = [one for one in look.requests if "/v1/live" not in one]
        assert len(asked) == len(set(asked)), asked
        look.page.evaluate(
            """() => {
                const script = document.createElement("script");
                script.textContent = "window.foreign = 1";
                document.head.append(script);
            }"""
        )
        assert look.page.evaluate("window.foreign") is None
        assert any("Content Security Policy" in one for one in look.complaints)
        look.complaints.clear()


def _bytes(web: Web, *paths: str) -> int:
    """What the bodies and heads of these answers have, as a browser gets them."""
    page = requests.get(web.url, timeout=20).text
    found = re.search(r"/static/[0-9a-f]+/", page)
    assert found is not None
    total = 0
    for path in paths:
        url = web.url + (path if path.startswith("/") else found[0] + path)
        asked = {"Accept-Encoding": "gzip", "Sec-Fetch-Site": "same-origin"}
        with requests.get(url, headers=asked, stream=True, timeout=20) as answer:
            total += len(answer.raw.read(decode_content=False))
            total += sum(len(name) + len(value) + 4 for name, value in answer.headers.items())
    return total

"""A headless Chromium for the tests, and what they all look at in it."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Route,
    sync_playwright,
)

from tests.support.waiting import eventually

NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first one takes half the time of the others for a page."""
ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--process-per-site",  # pages of one server share a process: scripts are compiled once
)
TIMEOUT_MS: Final = 20_000
UNLOADED: Final = "Failed to load resource"
"""Console messages of Chromium about answers that are errors, and about failed requests."""


def program() -> str | None:
    """The program, or None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def running(path: str) -> Iterator[Browser]:
    """A browser until the end of the block."""
    with sync_playwright() as playwright:
        environment: dict[str, str | float | bool] = {
            name: value for name, value in os.environ.items() if "proxy" not in name.lower()
        }
        browser = playwright.chromium.launch(
            executable_path=path, args=list(ARGUMENTS), env=environment
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Look:
    """A page, and what it did besides being looked at.

    Attributes:
        page: Playwright's.
        requests: every URL that it asked for.
        complaints: what it wrote to the console as an error, and exceptions that nobody caught.
        excused: parts of what is no complaint in this test.
    """

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    excused: list[str] = field(default_factory=list)

    def at(self, place: str) -> Page:
        """The page, at an address of the server."""
        self.page.goto(place)
        return self.page

    def elsewhere(self, url: str) -> list[str]:
        """Requests to another host than that of ``url``."""
        return [one for one in self.requests if not one.startswith((f"{url}/", "data:", "blob:"))]

    def begin(self) -> None:
        """What was asked and complained of, and what was excused, is of the test before."""
        for noted in (self.requests, self.complaints, self.excused):
            noted.clear()

    def settle(self, url: str) -> None:
        """It has asked nobody but ``url`` and complained of nothing that was not excused."""
        if self.excused:
            self.page.goto("about:blank")  # no complaint of this test comes in the next one
        left = [one for one in self.complaints if not any(part in one for part in self.excused)]
        assert not left, left
        assert not self.elsewhere(url), self.elsewhere(url)
        self.begin()


@contextmanager
def looking(browser: Browser, url: str, **context: Any) -> Iterator[Look]:
    """A page in a context of its own; afterwards it has asked nobody else and complained of
    nothing.

    Args:
        browser: where.
        url: the server's, which relative addresses are of.
        context: options of Playwright's ``new_context``.
    """
    with browser.new_context(base_url=url, **context) as opened, looking_in(opened, url) as look:
        yield look


@contextmanager
def looking_in(context: BrowserContext, url: str) -> Iterator[Look]:
    """The same in a context that others use, too: what it has loaded is not loaded again."""
    with context.new_page() as page:
        page.set_default_timeout(TIMEOUT_MS)
        look = Look(page)

        def asked(request: Request) -> None:
            look.requests.append(request.url)

        def said(message: ConsoleMessage) -> None:
            if message.type == "error":
                look.complaints.append(f"{message.text} ({message.location.get('url')})")

        page.on("request", asked)
        page.on("console", said)
        look.page.on("pageerror", lambda error: look.complaints.append(str(error)))
        yield look
        look.settle(url)


@contextmanager
def routed(
    page: Page, url: str | re.Pattern[str], handler: Callable[[Route], object]
) -> Iterator[None]:
    """Requests of this URL go to a handler until the end of the block, afterwards to the server.

    The route itself stays: Playwright's ``unroute`` now and then loses a request that the page
    makes in that moment, which then is never answered.
    """
    inside = True
    page.route(url, lambda route: handler(route) if inside else route.continue_())
    try:
        yield
    finally:
        inside = False


@contextmanager
def held(page: Page, url: str | re.Pattern[str]) -> Iterator[list[Route]]:
    """Requests of this URL wait until the end of the block."""
    waiting: list[Route] = []
    with routed(page, url, waiting.append):
        yield waiting
    for route in waiting:
        route.continue_()


def came(page: Page, waiting: list[Route]) -> None:
    """Wait until a request waits."""
    eventually(lambda: page.evaluate("1") and waiting)


def log_in(page: Page, key: str) -> None:
    """Show a key to the login, which is open."""
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()


def row(counter: str) -> str:
    """The row of a counter in the list of all."""
    return f"tr:has(a[href='#/counter/{counter}'])"

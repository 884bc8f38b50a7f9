"""A browser and a server with a filled database for all tests of one process, a page for a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, BrowserContext, ViewportSize, expect

from countersink.database.migrate import migrate
from countersink.web.auth import register
from countersink.web.endpoints import live
from tests.browser.chromium import NAMES, TIMEOUT_MS, Look, looking_in, program, running
from tests.browser.filled import fill
from tests.support.databases import dropped, new_name
from tests.support.servers import MySQLServer, RedisServer
from tests.web.serving import Web, serving

DESK: Final = ViewportSize(width=1200, height=900)

expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium, headless. For the tests of this directory alone: as long as Playwright has its
    event loop in this thread, no other test can have one.
    """
    path = program()
    if path is None:
        pytest.skip(f"no Chromium is installed (looked for {', '.join(NAMES)})")
    with running(path) as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Live numbers come more often than to others, and new keys are looked for at once: nobody is
    to wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "EVERY_S", 0.2)
        patch.setattr(live, "RECONNECT_MS", 200)
        patch.setattr(register, "READ_PAUSE_S", 0.0)
        yield


@pytest.fixture
def web(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """A server in front of an empty database."""
    with serving(redis_url, mysql_url) as served:
        yield served


@pytest.fixture
def keyed(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """The same that takes keys alone."""
    with serving(redis_url, mysql_url, without_keys=False) as served:
        yield served


@contextmanager
def server(directory: Path, mysql_server: MySQLServer, **options: Any) -> Iterator[Web]:
    """A server in front of an empty database, with a Redis of its own in ``directory``.

    ``options`` are those of :func:`serving`.
    """
    with RedisServer(directory) as redis_server, dropped(mysql_server, new_name()) as mysql_url:
        migrate(mysql_url)
        with serving(redis_server.url, mysql_url, **options) as served:
            yield served


@pytest.fixture(scope="session")
def filled(servers_directory: Path, mysql_server: MySQLServer) -> Iterator[Web]:
    """A server with weeks of numbers. Tests may add counters of their own names, and count on
    nothing that others add."""
    with server(servers_directory / "redis-browser", mysql_server) as served:
        fill(served)
        yield served


@pytest.fixture(scope="module")
def context(browser: Browser, filled: Web) -> Iterator[BrowserContext]:
    """A window of the filled server."""
    with browser.new_context(base_url=filled.url, viewport=DESK, reduced_motion="reduce") as opened:
        yield opened


@pytest.fixture(scope="module")
def window(context: BrowserContext, filled: Web) -> Iterator[Look]:
    """A page for the tests of a file."""
    with looking_in(context, filled.url) as opened:
        yield opened


@pytest.fixture
def look(window: Look, filled: Web) -> Iterator[Look]:
    """The page of the file, at a view that has nothing of the test before: whoever goes to another
    one of it loads no document."""
    window.page.goto("/#/system")
    window.begin()
    yield window
    window.page.set_viewport_size(DESK)
    window.page.emulate_media(color_scheme="light")
    window.settle(filled.url)


@pytest.fixture(scope="module")
def timed_window(context: BrowserContext, filled: Web) -> Iterator[Look]:
    """Another one, whose clock can be moved."""
    with looking_in(context, filled.url) as opened:
        opened.page.clock.install()
        yield opened


@pytest.fixture
def timed(timed_window: Look, filled: Web) -> Iterator[Look]:
    """As `look`; the clock begins at the time that it is."""
    timed_window.page.clock.set_system_time(datetime.now(UTC))
    timed_window.page.goto("/#/system")
    timed_window.begin()
    yield timed_window
    timed_window.page.set_viewport_size(DESK)
    timed_window.settle(filled.url)


@pytest.fixture
def fresh(context: BrowserContext, filled: Web) -> Iterator[Look]:
    """A page for one test, which may change what a page has for good."""
    with looking_in(context, filled.url) as opened:
        yield opened

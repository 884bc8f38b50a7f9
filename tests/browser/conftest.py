"""A browser for the tests of one file, a server with a filled database for those of one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ViewportSize, expect

from countersink.cli.servers import MySQLServer, RedisServer
from countersink.store.migrate import migrate
from countersink.web.endpoints import live
from tests.browser.chromium import NAMES, TIMEOUT_MS, Look, looking_in, program, running
from tests.browser.filled import fill
from tests.support.databases import dropped, new_name
from tests.web.serving import Web, serving

KEYS = 10_000
"""Keys of the counter ``downloads`` in the filled database."""

expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, headless. Not for longer than a file: as long as Playwright has its event loop in
    this thread, no other test can have one.
    """
    path = program()
    if path is None:
        pytest.skip(f"no Chromium is installed (looked for {', '.join(NAMES)})")
    with running(path) as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Live numbers come more often than to others: nobody is to wait for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "EVERY_S", 0.2)
        patch.setattr(live, "RECONNECT_MS", 200)
        yield


@pytest.fixture
def web(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """A server in front of an empty database."""
    with serving(redis_url, mysql_url) as served:
        yield served


@pytest.fixture(scope="session")
def filled(servers_directory: Path, mysql_server: MySQLServer) -> Iterator[Web]:
    """A server with weeks of numbers and 10,000 keys. Tests may add to it, and count on nothing
    that others add."""
    name = new_name()
    with (
        RedisServer(servers_directory / "redis-browser") as redis_server,
        dropped(mysql_server, name) as mysql_url,
    ):
        migrate(mysql_url)
        with serving(redis_server.url, mysql_url) as served:
            fill(served, keys=KEYS)
            yield served


@pytest.fixture(scope="module")
def context(browser: Browser, filled: Web) -> Iterator[BrowserContext]:
    """A window of the filled server."""
    viewport = ViewportSize(width=1200, height=900)
    with browser.new_context(base_url=filled.url, viewport=viewport) as opened:
        yield opened


@pytest.fixture
def look(context: BrowserContext, filled: Web) -> Iterator[Look]:
    """A page of the filled server."""
    with looking_in(context, filled.url) as opened:
        yield opened

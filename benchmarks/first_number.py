"""Seconds until the dashboard's first number on a slow line: ``python -m benchmarks.first_number``.

Chromium's own network emulation, 400 ms from a request to the first byte of its answer and
400 kbit/s both ways: the "slow 3G" of Lighthouse and WebPageTest (400 ms RTT, 400 kbit/s). What is
emulated is an answer's latency and the bandwidth; a real line costs 400 ms more for the first
connection, and once more where a second one is opened beside it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from playwright.sync_api import Browser

from countersink.database.migrate import migrate
from tests.browser.chromium import program, running
from tests.browser.filled import fill
from tests.support.servers import FAST, MySQLServer, RedisServer
from tests.support.templates import SMALL, template
from tests.web.serving import serving

LATENCY_MS: Final = 400
BYTES_PER_S: Final = 400_000 / 8
RUNS: Final = 5
COUNTERS: Final = 200
VIEWS: Final = {
    "all counters": ("/", "tr .now"),
    "one counter": ("/#/counter/signups", ".figure:nth-child(3) dd > span"),
}
_WAIT: Final = """([selector]) => new Promise((done) => {
    const look = () => {
        const found = document.querySelector(selector);
        if (found && /\\d/.test(found.textContent)) done(performance.now() / 1000);
        else requestAnimationFrame(look);
    };
    look();
})"""


def seconds(browser: Browser, url: str, path: str, selector: str) -> float:
    """From the beginning of the navigation to the first number, with nothing in any cache."""
    with browser.new_context(base_url=url) as context, context.new_page() as page:
        session = context.new_cdp_session(page)
        session.send("Network.enable")
        session.send(
            "Network.emulateNetworkConditions",
            {
                "offline": False,
                "latency": LATENCY_MS,
                "downloadThroughput": BYTES_PER_S,
                "uploadThroughput": BYTES_PER_S,
            },
        )
        page.goto(path, wait_until="commit")
        found: float = page.evaluate(_WAIT, [selector])
        return found


def main() -> None:
    """Measure, with servers of its own."""
    path = program()
    if path is None:
        sys.exit("install chromium first")
    kind: Final = "mariadb"
    with tempfile.TemporaryDirectory(prefix="csk-") as temporary:
        data = Path(temporary)
        mysql = MySQLServer(
            data / "mysql", kind=kind, template=template(kind), extra=(*FAST, *SMALL[kind])
        )
        with RedisServer(data / "redis") as redis_server, mysql:
            mysql_url = mysql.url_for("first")
            migrate(mysql_url)
            with serving(redis_server.url, mysql_url) as web, running(path) as browser:
                for number in range(COUNTERS):
                    web.producer.increment(f"area.{number % 7}.counter_{number}", "a", number)
                fill(web)
                for view, (place, selector) in VIEWS.items():
                    found = [seconds(browser, web.url, place, selector) for _ in range(RUNS)]
                    print(
                        f"{view}: {median(found):.2f} s (of {RUNS}: {min(found):.2f} to"
                        f" {max(found):.2f})"
                    )


if __name__ == "__main__":
    main()

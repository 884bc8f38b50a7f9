"""The pictures of docs/images: ``python -m tests.browser.pictures docs/images``."""

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page, expect

from countersink.database.migrate import migrate
from tests.browser.chromium import looking, program, running
from tests.browser.filled import fill, fill_keys, fill_minutes, spoil
from tests.support.processes import Children
from tests.support.servers import FAST, MySQLServer, RedisServer
from tests.support.templates import SMALL, template
from tests.web.serving import Web, serving

DESK: Final = {"viewport": {"width": 1120, "height": 760}}
TALL: Final = {"viewport": {"width": 1120, "height": 860}}
PHONE: Final = {
    "viewport": {"width": 360, "height": 740},
    "is_mobile": True,
    "has_touch": True,
    "device_scale_factor": 1.5,
}
PICTURES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "counters": ("/", DESK),
    "counter": ("/#/counter/page_views?compare=1", TALL),
    "recent": ("/#/counter/checkouts", {"viewport": {"width": 1120, "height": 820}}),
    "comparison": ("/#/counter/page_views?with=mail.sent&with=votes&range=90", TALL),
    "system-dark": ("/#/system", {**DESK, "color_scheme": "dark"}),
    "counter-phone": ("/#/counter/page_views?range=7", PHONE),
}


def main(directory: Path) -> None:
    """Fill servers of its own, look at them and write the pictures."""
    path = program()
    if path is None:
        sys.exit("install chromium first")
    with tempfile.TemporaryDirectory(prefix="csk-") as temporary:
        kind: Final = "mariadb"
        data = Path(temporary)
        mysql = MySQLServer(
            data / "mysql", kind=kind, template=template(kind), extra=(*FAST, *SMALL[kind])
        )
        with RedisServer(data / "redis") as redis_server, mysql, Children() as children:
            mysql_url = mysql.url_for("pictures")
            migrate(mysql_url)
            with serving(redis_server.url, mysql_url) as web, running(path) as browser:
                fill(web)
                fill_keys(web, 200)
                fill_minutes(web)
                spoil(web)
                servers = {
                    "COUNTERSINK_REDIS_URL": redis_server.url,
                    "COUNTERSINK_MYSQL_URL": mysql_url,
                }
                children.worker(redis_server.url, mysql_url)
                children.worker(redis_server.url, mysql_url)
                children.countersink("scheduler", environment=servers)
                children.countersink("jobs", environment=servers)
                for name, (place, context) in PICTURES.items():
                    with looking(browser, web.url, reduced_motion="reduce", **context) as look:
                        take(look.page, web, place)
                        look.page.screenshot(path=directory / f"dashboard-{name}.png")


def take(page: Page, web: Web, place: str) -> None:
    """Wait until everything is there."""
    page.goto(place)
    expect(page.locator("#fresh.good")).to_be_visible()
    if place == "/#/system":
        expect(page.get_by_role("region", name="Workers").locator("tbody tr")).to_have_count(2)
        letters = page.get_by_role("region", name="Dead letters")
        expect(letters.get_by_role("listitem")).to_have_count(3)
    elif place == "/":
        expect(page.locator("td.all", has_text="…")).to_have_count(0)
    else:
        expect(page.locator(".keys li").first).to_be_visible()
        expect(page.locator(".panel:not([aria-busy]) .u-over").first).to_be_attached()
    if place == "/#/counter/checkouts":
        expect(page.locator(".trends tbody tr")).to_have_count(4)
        expect(page.locator(".recent .u-over")).to_be_attached()
        page.locator("details.recent").first.evaluate("(part) => part.scrollIntoView()")
    page.wait_for_load_state("load")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

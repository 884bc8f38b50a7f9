"""What axe-core finds on the views, light or dark, where nothing is moved for those who asked for
rest."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import looking
from tests.browser.filled import spoil
from tests.support.examples import MANY
from tests.web.serving import Web

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RANGE = "" if MANY else "range=7&"
VIEWS = (
    "/",
    f"/#/counter/page_views?{RANGE}compare=1",
    f"/#/counter/signups?{RANGE}with=page_views&with=orders&exclude_key=app",
    "/#/boards",
    "/#/system",
    "/login?wrong=1",
)


def faults(page: Page, scheme: str = "light", part: str | None = None) -> list[str]:
    """What axe-core complains of, each with the first element that it is about; of a part of the
    page, a selector, where the whole page is looked at elsewhere. `make test-long` looks at all.
    """
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    # What asks the server once it is open is there.
    expect(page.locator("details.hours[open]:not([hidden]) > div:empty")).to_have_count(0)
    # In the dark only the colours differ.
    rules = TAGS if scheme == "light" else ["color-contrast"]
    options = {"runOnly": rules, "resultTypes": ["violations"]}
    found = Axe().run(page, None if MANY else part, options).response["violations"]
    return [f"{one['impact']} {one['id']}: {one['nodes'][0]['html']}" for one in found]


def every_view(browser: Browser, filled: Web, scheme: str) -> None:
    """Nothing, on any view of a filled server."""
    with looking(browser, filled.url, color_scheme=scheme, reduced_motion="reduce") as look:
        page = look.page
        for path in VIEWS:
            page.goto(path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            if path != "/login?wrong=1":
                expect(page.locator("#fresh.good")).to_be_visible()
            assert faults(page, scheme) == [], path


def nothing_yet_and_dead_letters(browser: Browser, web: Web, scheme: str) -> None:
    """Nothing where nothing was counted, nor where something could not be; on empty tables."""
    with looking(browser, web.url, color_scheme=scheme, reduced_motion="reduce") as look:
        page = look.page
        page.goto("/")
        expect(page.get_by_role("tab", name="curl")).to_be_visible()
        assert faults(page, scheme) == []
        spoil(web)
        page.goto("/#/system")
        expect(page.locator(".letters li")).to_have_count(3)
        assert faults(page, scheme) == []
        page.get_by_role("button", name="Drop…").first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert faults(page, scheme) == []

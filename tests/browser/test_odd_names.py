"""Names that every object of JavaScript has, numbers that none of it can hold, a browser that lacks
a language."""

from playwright.sync_api import expect

from tests.browser.chromium import UNLOADED, Look
from tests.web.serving import Web

INHERITED = ("constructor", "__proto__")


def test_what_objects_inherit_is_a_name_like_any_other(look: Look, filled: Web) -> None:
    page = look.page
    for name in INHERITED:
        page.goto(f"/#/{name}")  # no view: the first one
        expect(page.get_by_role("link", name="ad_clicks")).to_be_visible()
        page.goto(f"/#/counter/{name}")
        expect(page.get_by_role("link", name="All counters").last).to_be_visible()
        filled.producer.increment(name, "a", 5)
    filled.apply()
    for name in INHERITED:
        page.goto(f"/#/counter/signups?by={name}&range=7")
        expect(page.get_by_role("slider")).to_have_attribute("aria-valuemax", "6")
        page.goto(f"/#/counter/{name}")
        expect(page.locator(".figure .now")).to_have_text("5")
    look.excused.append(UNLOADED)


def test_numbers_and_days(look: Look) -> None:
    page = look.at("/")
    shown = page.evaluate(
        """async () => {
            const Own = Intl.DateTimeFormat;
            // A browser without Canadian English takes its own language instead.
            Intl.DateTimeFormat = function (locale, options) {
                return new Own(String(locale).startsWith("en-CA") ? "en-US" : locale, options);
            };
            const own = document.querySelector("script[src$='dashboard.js']").src;
            const { today, whole } = await import(own.replace("dashboard.js", "format.js?anew"));
            const day = () => new Date().toISOString().slice(0, 10);
            const before = day();
            const said = today("UTC");
            const numbers = JSON.parse("[9007199254740991, 9007199254740993, -1e18, 1234.5, null]");
            return [[before, day()].includes(said), numbers.map(whole)];
        }"""
    )
    numbers = (
        "9,007,199,254,740,991  ≈ 9,007,199,254,740,992  ≈ -1,000,000,000,000,000,000  1,234.5  –"
    )
    assert shown == [True, numbers.split("  ")]

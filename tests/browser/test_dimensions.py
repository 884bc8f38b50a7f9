"""Panels of a counter with dimensions: their values filter the chart and the other panels."""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.axe import faults
from tests.browser.chromium import Look
from tests.browser.test_phone import CLOSE, CUT
from tests.web.serving import Web

NAMES = ("page", "country", "device")
EVENTS = {
    ("/", "DE", "phone"): 50,
    ("/", "AT", "desktop"): 30,
    ("/about", "DE", "desktop"): 12,
    ("/a/long/page/of/many/parts/index.html", "", "phone"): 7,
}
"""Amounts of yesterday, by the values of NAMES; a week before there was half of each."""


@pytest.fixture(scope="module", autouse=True)
def visits(filled: Web) -> None:
    """Count them; no breakdown has pages together with devices."""
    filled.store.counters.set(
        "dimensions.visits",
        dimensions=NAMES,
        breakdowns=["page,country", "device", "country,device"],
        better="down",
    )
    now = datetime.now(UTC)
    for values, amount in EVENTS.items():
        names = {name: value for name, value in zip(NAMES, values, strict=True) if value}
        for back, part in ((1, amount), (8, amount // 2)):
            at = now - timedelta(days=back)
            filled.producer.increment("dimensions.visits", names, part, at=at)
    filled.apply()


def totals(name: str, where: Mapping[str, str] = {}) -> dict[str, int]:
    """The total of each value of a dimension, of events with the values in ``where``."""
    found: Counter[str] = Counter()
    for values, amount in EVENTS.items():
        event = dict(zip(NAMES, values, strict=True))
        if where.items() <= event.items():
            found[event[name] or f"(no {name})"] += amount
    return dict(found.most_common())


def panel(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=f"By {name}")


def expect_rows(page: Page, name: str, wanted: Mapping[str, int]) -> None:
    expect(panel(page, name).locator(".key")).to_have_text([*wanted])
    shown = [f"{total:,}" for total in wanted.values()]
    expect(panel(page, name).locator(".total")).to_have_text(shown)


def period_sum(page: Page) -> Locator:
    return page.locator(".figure dd > span").nth(1)


def test_events_with_dimensions_are_not_listed_as_a_key(look: Look, filled: Web) -> None:
    filled.store.counters.set(
        "dimensions.keys", resolution="hour", dimensions=["page"], breakdowns=["page"]
    )
    filled.producer.increment("dimensions.keys", {"page": "/"}, 5)
    filled.producer.increment("dimensions.keys", "/before", 2)
    filled.apply()
    page = look.at("/#/counter/dimensions.keys")
    expect(page.locator(".top-keys:not(.values) .key")).to_have_text(["/before"])
    expect(page.locator(".trends tbody th")).to_have_text(["/before"])
    expect(panel(page, "page").locator(".key")).to_have_text(["/"])


def test_a_value_filters_the_chart_and_all_other_panels(look: Look) -> None:
    page = look.at("/#/counter/dimensions.visits?range=7")
    for name in NAMES:
        expect_rows(page, name, totals(name))
    expect(panel(page, "country").locator(".share")).to_have_text(["62.6%", "30.3%", "7.1%"])
    expect(panel(page, "country").locator(".change")).to_have_text(["+100%", "+100%", "+133.3%"])
    expect(page.get_by_text("(no key)")).to_be_hidden()
    expect(page.get_by_role("heading", name="Top keys")).to_be_hidden()
    germany = panel(page, "country").get_by_role("button", name="DE")
    germany.press("Enter")
    expect(page).to_have_url(re.compile("where=country%3DDE"))
    german = {"country": "DE"}
    expect(period_sum(page)).to_have_text("62")
    expect_rows(page, "page", totals("page", german))
    expect_rows(page, "device", totals("device", german))
    expect_rows(page, "country", totals("country"))
    expect(germany).to_have_attribute("aria-pressed", "true")
    expect(germany).to_be_focused()
    # Another value of the same dimension takes its place; of another one it is a further filter.
    panel(page, "country").get_by_role("button", name="(no country)").click()
    expect(period_sum(page)).to_have_text("7")
    expect_rows(page, "page", totals("page", {"country": ""}))
    page.go_back()
    panel(page, "page").get_by_role("button", name="/about").click()
    expect(period_sum(page)).to_have_text("12")
    expect(page.locator(".chip")).to_have_text(
        [re.compile("only country DE"), re.compile("/about")]
    )
    expect(panel(page, "device")).to_contain_text("--breakdowns page,country device country,device")
    expect(panel(page, "device").locator("li")).to_have_count(0)
    page.get_by_role("button", name="Remove: only page /about").click()
    expect(period_sum(page)).to_have_text("62")
    germany.click()
    expect(page.locator(".chip")).to_have_count(0)
    expect(period_sum(page)).to_have_text("99")
    look.excused.append("422")


def test_panels_fit_a_phone_and_are_read_in_all_colours(look: Look) -> None:
    page = look.at("/#/counter/dimensions.visits?range=7&where=country%3DDE")
    expect_rows(page, "page", totals("page", {"country": "DE"}))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert faults(page, scheme, ".values-of, .chosen-keys, .figures") == []
    for width in (320, 390, 1920):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate(CUT) == page.evaluate(CLOSE) == [], width
        assert page.evaluate("document.documentElement.scrollWidth") == width
    first, second = (panel(page, name).bounding_box() for name in ("page", "country"))
    assert first
    assert second
    assert first["y"] == second["y"]


def test_a_rise_has_the_colour_that_the_counter_says(look: Look, filled: Web) -> None:
    page = look.at("/#/counter/dimensions.visits?range=7")
    for place in (
        page.locator(".figure small .change").last,
        panel(page, "page").locator(".change"),
    ):
        expect(place.first).to_have_class(re.compile("loss"))
    filled.store.counters.set("dimensions.visits", better="none")
    page.reload()
    expect(panel(page, "page").locator(".change").first).to_have_class(
        re.compile("^change number$")
    )
    filled.store.counters.set("dimensions.visits", better="down")
    page.goto("/#/?range=7")
    row = page.get_by_role("row", name="dimensions.visits")
    expect(row.locator("td.change.loss")).to_have_text(re.compile(r"^\+\d"))

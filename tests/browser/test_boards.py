"""Boards in Chromium: made, changed and deleted in the page; shared, embedded, and taken as CSV."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from countersink.database.sessions import open_tables
from countersink.store import boards, links
from countersink.store.boards import BoardItem
from tests.browser.axe import faults
from tests.browser.chromium import Look, came, held, log_in, looking
from tests.browser.visits import shop
from tests.support.waiting import eventually
from tests.web.serving import Web, serving


def counted(web: Web) -> None:
    """Three days of two counters."""
    now = datetime.now(UTC)
    for counter in ("shop.orders", "shop.views"):
        for days in (0, 1, 2):
            web.producer.increment(counter, f"/{days}", 5 + days, at=now - timedelta(days=days))
    web.apply()


def last_point(part: Locator) -> Locator:
    """What the chart says of its last point."""
    part.locator(".chart").press("End")
    return part.locator(".readout")


def says_last(part: Locator, text: str) -> None:
    """Wait until the chart says this of its last point: it may be drawn anew after a choice."""
    eventually(lambda: text in last_point(part).inner_text())


def test_a_board_is_made_changed_and_deleted(look: Look, filled: Web) -> None:
    counted(filled)
    page = look.at("/#/boards")
    page.get_by_role("button", name="New board…").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name").fill("shop")
    form.get_by_role("combobox", name="Counter").fill("shop.nothing")
    form.get_by_role("button", name="Save").click()
    look.excused.append("404")
    expect(form.get_by_role("alert")).to_contain_text("There is no counter 'shop.nothing'")
    form.get_by_role("combobox", name="Counter").fill("shop.orders")
    form.get_by_label("Top keys").fill("2")
    assert faults(page, "light", "dialog") == []
    form.get_by_role("button", name="Save").click()
    part = page.get_by_role("region", name="shop.orders")
    expect(part.locator(".sum")).to_have_text("18")
    expect(part.locator(".keys li")).to_have_text(["1/27", "2/16"])
    says_last(part, "(not over): 5")
    page.get_by_role("button", name="Running totals").click()
    says_last(part, "(not over): 18")
    assert page.url.endswith("#/board/shop?cumulative=1")
    filled.count("shop.orders", "/live", 2)
    expect(part.locator(".sum")).to_have_text("20")
    page.get_by_role("button", name="Change…").click()
    form.get_by_role("button", name="Add a counter").click()
    form.get_by_role("combobox", name="Counter").last.fill("shop.views")
    form.get_by_role("button", name="Move up").last.click()
    form.get_by_role("button", name="Save").click()
    parts = page.locator(".board .panel")
    expect(parts.locator("h2 a")).to_have_text(["shop.views", "shop.orders"])
    for width in (390, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width
    for scheme in ("light", "dark"):
        assert faults(page, scheme, "main") == []
    page.get_by_role("button", name="Delete…").click()
    form.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("There is none yet.")).to_be_visible()


def test_what_a_board_asks_for_and_what_it_says_of_what_is_gone(look: Look, filled: Web) -> None:
    filled.count("shop.slow", "/a", 18)
    filled.store.counters.set("shop.old", resolution="day")
    items = [BoardItem("shop.slow"), BoardItem("shop.slow", 7), BoardItem("shop.old")]
    with open_tables(filled.options.mysql_url) as session:
        boards.create(session, "gone", items)
    filled.store.counters.delete("shop.old")
    look.excused.append("404")
    daily = re.compile("/v1/counters/shop.slow/daily")
    page = look.page
    with held(page, daily) as waiting:
        look.at("/#/board/gone")
        gone = page.get_by_role("region", name="shop.old")
        expect(gone).to_contain_text("Nothing is counted as shop.old any more: it was deleted.")
        came(page, waiting)
        filled.count("shop.slow", "/live", 2)  # heard, but the answers are waited for
        expect(page.locator("#fresh.good")).to_be_visible()
    parts = page.get_by_role("region", name="shop.slow")
    expect(parts.locator(".sum")).to_have_text(["20", "20"])
    asked = [url for url in look.requests if url.endswith("/v1/counters/shop.slow")]
    assert len(asked) == 1
    assert len({url for url in look.requests if daily.search(url)}) == 2  # none of days before
    page.goto("/#/board/none")
    expect(page.get_by_role("alert")).to_have_text("There is no board 'none'")
    expect(page.locator("main").get_by_role("button", name="…")).to_have_count(0)


def test_running_totals_of_a_counter_move_on(look: Look, filled: Web) -> None:
    filled.count("running", "/a", 5)
    filled.count("running", "/a", 3, datetime.now(UTC) - timedelta(days=1))
    page = look.at("/#/counter/running")
    page.get_by_role("button", name="Running totals").click()
    expect(page.locator(".readout").first).to_contain_text("Highest: 8")
    filled.count("running", "/a", 2)
    expect(page.locator(".readout").first).to_contain_text("Highest: 10")


def made(web: Web) -> str:
    """The token of a link to a new board."""
    with open_tables(web.options.mysql_url) as session:
        boards.create(session, "shop", [BoardItem("shop.orders")])
        ends = datetime.now(UTC) + timedelta(hours=1)
        return links.create_to_board(session, "shop", ends)[1]


def saved(page: Page, part: Locator) -> str:
    """The file that is saved by a click."""
    with page.expect_download() as download:
        part.get_by_role("link", name="Download as CSV").first.click()
    return f"{download.value.suggested_filename}: {Path(download.value.path()).read_text()}"


@pytest.mark.random
def test_a_link_shows_a_board_with_running_totals_and_csv(browser: Browser, keyed: Web) -> None:
    counted(keyed)
    token, key = made(keyed), keyed.key("admin", name="Ada")
    with looking(browser, keyed.url) as look:
        log_in(look.at("/"), key)  # the cookie changes nothing of what a link opens
        expect(look.page.get_by_role("link", name="Boards")).to_be_visible()
        with look.page.expect_request("**/v1/boards/shop") as asked:
            page = look.at(f"/shared#/board/shop?link={token}")
        assert "cookie" not in asked.value.all_headers()
        part = page.get_by_role("region", name="shop.orders")
        expect(part.locator(".sum")).to_have_text("18")
        page.get_by_role("button", name="Running totals").click()
        says_last(part, "(not over): 18")
        assert saved(page, part).startswith('shop.orders-day.csv: "day","total"\n')
        expect(page.get_by_role("link")).to_have_text(["Skip to the content", "Download as CSV"])
        buttons = page.locator("main").get_by_role("button")
        expect(buttons).to_have_text(["Totals", "Running totals"])
        page.goto(f"/shared#/boards?link={token}")
        expect(page.locator("main")).to_contain_text("This address names no counter")
        look.excused += ["404", "403"]
        made_link = keyed.ask("POST", "/v1/links", key, json={"counter": "shop.views"}).json()
        page.goto("about:blank")
        page.goto(made_link["path"])
        page.get_by_role("button", name="Running totals").click()
        says_last(page.locator("main"), "(not over): 18")
        assert 'shop.views-key.csv: "key","total"\n"/2",7' in saved(page, page.locator(".top-keys"))


@pytest.mark.parametrize("allowed", [True, False])
def test_a_shared_board_is_in_a_frame_where_that_is_allowed(
    browser: Browser, redis_url: str, mysql_url: str, allowed: bool
) -> None:
    with shop() as embedder, browser.new_page() as page:
        page.goto(embedder)
        with serving(redis_url, mysql_url, frame_ancestors=(embedder,) if allowed else ()) as web:
            counted(web)
            url = f"{web.url}/shared#/board/shop?link={made(web)}"
            with page.expect_event("framenavigated"):
                page.evaluate("(url) => (document.body.innerHTML = `<iframe src='${url}'>`)", url)
            shown = page.frame_locator("iframe").locator(".sum")
            expect(shown).to_have_text(["18"] if allowed else [])

"""Logging in to the dashboard, and out."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, Error, Route, expect

from countersink.database.sessions import open_tables
from countersink.store import api_keys
from tests.browser.chromium import UNLOADED, Look, log_in, looking, routed
from tests.browser.conftest import server
from tests.browser.filled import set_aside
from tests.support.servers import MySQLServer
from tests.web.serving import Web

FAILURES = 3
"""Wrong keys that may be shown in a minute."""


@pytest.fixture(scope="module")
def guarded(servers_directory: Path, mysql_server: MySQLServer) -> Iterator[Web]:
    """A server that takes keys alone."""
    directory = servers_directory / "redis-login"
    options: dict[str, Any] = {"without_keys": False, "failures_per_minute": FAILURES}
    with server(directory, mysql_server, **options) as served:
        served.count("orders", "a", 5)
        yield served


@pytest.fixture(scope="module")
def window(browser: Browser, guarded: Web) -> Iterator[Look]:
    with looking(browser, guarded.url) as look:
        yield look


@pytest.fixture
def look(window: Look, guarded: Web) -> Iterator[Look]:
    """A page of somebody who is not logged in."""
    window.page.context.clear_cookies()
    yield window
    window.page.goto("/livez")
    window.settle(guarded.url)


def test_in_and_out(look: Look, guarded: Web) -> None:
    key = guarded.key("read", name="Ada")
    page = look.at("/")
    expect(page).to_have_url(re.compile("/login$"))
    log_in(page, "ck_nobody_nothing")
    expect(page.get_by_role("alert")).to_contain_text("This key does not open the dashboard")
    for _ in range(FAILURES):
        requests.post(f"{guarded.url}/login", data={"key": "ck_nobody_nothing"}, timeout=20)
    log_in(page, "ck_nobody_nothing")
    expect(page.get_by_role("alert")).to_contain_text("wait a minute")
    log_in(page, key)
    expect(page.get_by_role("heading", level=1)).to_contain_text("Counters")
    expect(page.locator(".counters tbody .now")).to_have_text("5")
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Log out Ada").click()
    expect(page).to_have_url(re.compile("/login$"))
    assert page.context.cookies() == []
    # A link to a view leads there over the login, also where a key was wrong.
    page.goto("/#/counter/orders?range=90")
    expect(page).to_have_url(re.compile("/login#"))
    log_in(page, "ck_nobody_nothing")
    expect(page.get_by_role("alert")).to_contain_text("wait a minute")
    log_in(page, key)
    expect(page).to_have_url(f"{guarded.url}/#/counter/orders?range=90")
    expect(page.get_by_role("button", name="90 days")).to_have_attribute("aria-pressed", "true")


def test_the_address_that_up_prints_logs_in(look: Look, guarded: Web) -> None:
    page = look.at(f"/login#key={guarded.key('admin')}")
    expect(page).to_have_url(f"{guarded.url}/")
    expect(page.locator(".counters tbody .now")).to_have_text("5")
    page.go_back()
    assert "key" not in page.url  # nor does it stand in the history
    page.goto("about:blank")
    page.goto(f"{guarded.url}/login#key=ck_nobody_nothing")
    expect(page.get_by_role("alert")).to_be_visible()


def test_a_login_ends_with_its_key_and_begins_where_it_ended(look: Look, guarded: Web) -> None:
    key = guarded.key("read", name="brief")
    page = look.at("/login")
    log_in(page, key)
    page.goto("/#/counter/orders?range=7")
    expect(page.locator(".figure .now")).to_have_text("5")
    # What the page asks by itself before the click would be answered 401, too.
    held = list[Route]()
    with routed(page, re.compile("/v1/(?!live)"), held.append):
        with open_tables(guarded.options.mysql_url) as session:
            api_keys.revoke(session, "brief")
        guarded.look_again()
        # The live stream ends, and what is asked next is answered 401.
        expect(page.locator("#fresh")).to_have_class(re.compile("warn|bad"))
        page.get_by_role("button", name="30 days").click()
    for route in held:  # what the click asks for may wait for what was asked before
        with suppress(Error):  # the page has gone to the login
            route.continue_()
    expect(page).to_have_url(re.compile("/login#/counter/orders"))
    log_in(page, guarded.key("read", name="another"))
    expect(page).to_have_url(re.compile("/#/counter/orders"))
    look.excused.append(UNLOADED)


def test_a_login_leads_to_views_alone(look: Look, guarded: Web) -> None:
    key = guarded.key("read")
    page = look.page
    for elsewhere in ("#@example.org/", "#key", "#//example.org/"):
        page.goto(f"/login{elsewhere}")
        log_in(page, key)
        expect(page.locator("#fresh.good")).to_be_visible()
        assert page.evaluate("[location.origin, location.pathname]") == [guarded.url, "/"]


def test_a_key_for_some_counters_is_offered_nothing_of_all_of_them(
    look: Look, guarded: Web
) -> None:
    set_aside(guarded, "a", 7)
    key = guarded.key("read", counters=["orders"])
    page = look.at("/#/system")
    log_in(page, key)
    # An address that somebody has sent leads to what there is.
    expect(page.locator(".counters tbody .now")).to_have_text("5")
    expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(["Counters", "Boards"])
    expect(page.get_by_role("link", name="Counters", exact=True)).to_have_attribute(
        "aria-current", "page"
    )
    expect(page.locator("#alert")).to_be_hidden()
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    asked = [one.removeprefix(guarded.url) for one in look.requests]
    assert not [one for one in asked if one.startswith(("/v1/system", "/v1/dead"))]


def test_the_page_fits_a_phone_with_the_longest_name_of_a_key(look: Look, guarded: Web) -> None:
    name = "n" * 64
    page = look.at("/login")
    log_in(page, guarded.key("admin", name=name))
    for width in (320, 360, 390, 560, 800, 1200):
        page.set_viewport_size({"width": width, "height": 740})
        out = page.get_by_role("button", name=f"Log out {name}")
        expect(out).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        box = out.bounding_box()
        assert box
        assert box["height"] < 50, width  # one line
        assert box["width"] >= (18 if width < 640 else 100), width

"""Logging in to the dashboard, and out."""

import re
from contextlib import suppress

import requests
from playwright.sync_api import Browser, Error, Route, expect

from countersink.store import api_keys
from countersink.store.sessions import open_tables
from tests.browser.chromium import Look, looking, routed
from tests.browser.filled import set_aside
from tests.web.serving import Web


def log_in(look: Look, key: str) -> None:
    look.page.get_by_label("API key").fill(key)
    look.page.get_by_role("button", name="Log in").click()


def test_in_and_out(browser: Browser, web: Web) -> None:
    web.producer.increment("orders", "a", 5)
    web.apply()
    key = web.key("read", name="Ada")
    with looking(browser, web.url) as look:
        page = look.page
        page.goto("/")
        expect(page).to_have_url(re.compile("/login$"))
        log_in(look, "ck_nobody_nothing")
        expect(page.get_by_role("alert")).to_contain_text("This key does not open the dashboard")
        for _ in range(web.options.failures_per_minute):
            requests.post(f"{web.url}/login", data={"key": "ck_nobody_nothing"}, timeout=20)
        log_in(look, "ck_nobody_nothing")
        expect(page.get_by_role("alert")).to_contain_text("wait a minute")
        log_in(look, key)
        expect(page.get_by_role("heading", level=1)).to_contain_text("Counters")
        expect(page.locator(".counters tbody .now")).to_have_text("5")
        (cookie,) = page.context.cookies()
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Log out Ada").click()
        expect(page).to_have_url(re.compile("/login$"))
        assert page.context.cookies() == []
        page.goto("/")
        expect(page).to_have_url(re.compile("/login$"))


def test_a_login_ends_with_its_key_and_begins_where_it_ended(browser: Browser, web: Web) -> None:
    web.producer.increment("orders", "a", 5)
    web.apply()
    key = web.key("read")
    with looking(browser, web.url) as look:
        page = look.page
        page.goto("/login")
        log_in(look, key)
        page.goto("/#/counter/orders?range=7")
        expect(page.locator(".figure .now")).to_have_text("5")
        # What the page asks by itself before the click would be answered 401, too.
        held = list[Route]()
        with routed(page, re.compile("/v1/(?!live)"), held.append):
            with open_tables(web.options.mysql_url) as session:
                api_keys.revoke(session, "test")
            web.look_again()
            # The live stream ends, and what is asked next is answered 401.
            expect(page.locator("#fresh")).to_have_class(re.compile("warn|bad"))
            page.get_by_role("button", name="30 days").click()
        for route in held:  # what the click asks for may wait for what was asked before
            with suppress(Error):  # the page has gone to the login
                route.continue_()
        expect(page).to_have_url(re.compile("/login#/counter/orders"))
        log_in(look, web.key("read", name="another"))
        expect(page).to_have_url(re.compile("/#/counter/orders"))
        look.complaints.clear()  # Chromium writes each 401 to the console


def test_a_link_to_a_view_leads_there_over_the_login(browser: Browser, web: Web) -> None:
    web.producer.increment("orders", "a", 5)
    web.apply()
    key = web.key("read")
    with looking(browser, web.url) as look:
        page = look.page
        page.goto("/#/counter/orders?range=90")
        expect(page).to_have_url(re.compile("/login#"))
        log_in(look, "ck_nobody_nothing")
        expect(page.get_by_role("alert")).to_contain_text("This key does not open the dashboard")
        log_in(look, key)
        expect(page).to_have_url(f"{web.url}/#/counter/orders?range=90")
        expect(page.get_by_role("button", name="90 days")).to_have_attribute("aria-pressed", "true")


def test_a_login_leads_to_views_alone(browser: Browser, web: Web) -> None:
    key = web.key("read")
    with looking(browser, web.url) as look:
        page = look.page
        for elsewhere in ("#@example.org/", "#key", "#//example.org/"):
            page.goto("about:blank")
            page.goto(f"/login{elsewhere}")
            log_in(look, key)
            expect(page.locator("#fresh.good")).to_be_visible()
            assert page.evaluate("[location.origin, location.pathname]") == [web.url, "/"]


def test_a_key_for_some_counters_is_offered_nothing_of_all_of_them(
    browser: Browser, web: Web
) -> None:
    web.producer.increment_many("orders", {"a": 5})
    web.apply()
    set_aside(web, "a", 7)
    key = web.key("read", counters=["orders"])
    with looking(browser, web.url) as look:
        page = look.page
        page.goto("/#/system")
        log_in(look, key)
        # An address that somebody has sent leads to what there is.
        expect(page.locator(".counters tbody .now")).to_have_text("5")
        expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(["Counters"])
        expect(page.get_by_role("link", name="Counters", exact=True)).to_have_attribute(
            "aria-current", "page"
        )
        expect(page.locator("#alert")).to_be_hidden()
        expect(page.get_by_role("button", name="Try again")).to_have_count(0)
        asked = [one.removeprefix(web.url) for one in look.requests]
        assert not [one for one in asked if one.startswith(("/v1/system", "/v1/dead"))]

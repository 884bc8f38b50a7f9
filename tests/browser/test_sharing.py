"""Links that show one counter without a key, and notes on days, in Chromium."""

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from countersink.database.sessions import open_tables
from countersink.store import links
from tests.browser.axe import faults
from tests.browser.chromium import Look, log_in, looking
from tests.web.serving import Web

HOSTILE = '<img src=x onerror="document.title=1"> & "quotes"'


def counted(web: Web) -> None:
    now = datetime.now(UTC)
    for counter in ("shop.views", "shop.secret"):
        for days in (0, 1, 2):
            web.producer.increment(counter, "/a", 5 + days, at=now - timedelta(days=days))
    web.apply()


@pytest.mark.random
def test_a_link_is_made_opened_elsewhere_and_ended(browser: Browser, keyed: Web) -> None:
    web = keyed
    counted(web)
    key = web.key("read", name="Ada")
    with looking(browser, web.url) as look:
        log_in(look.at("/"), key)
        expect(look.page.get_by_role("link", name="Counters", exact=True)).to_be_visible()
        page = look.at("/#/counter/shop.views?range=7")
        with page.expect_response("**/v1/links"):
            page.get_by_role("button", name="Share…").click()
        page.get_by_role("button", name="Make a link").click()
        code = page.get_by_role("dialog").locator(".snippet code")
        expect(code).to_contain_text("/shared#/counter/shop.views?range=7&link=cl_")
        expect(page.get_by_role("dialog")).to_have_text(
            re.compile("Make a linkThe link, shown only now:")
        )
        link = code.inner_text()
        assert faults(page, "light", "dialog") == []
        with looking(browser, web.url) as other:  # without the cookie
            asked: list[str] = []
            other.page.on("request", lambda request: asked.append(request.url))
            other.page.goto(link)
            expect(other.page.get_by_role("heading", name="shop.views")).to_be_visible()
            expect(other.page.locator(".figure dd > span").nth(2)).to_have_text("18")
            expect(other.page.get_by_role("button", name="7 days")).to_have_attribute(
                "aria-pressed", "true"
            )
            assert faults(other.page, "light", "header, .head, .figures") == []
            other.page.get_by_role("button", name="30 days").click()
            expect(other.page.get_by_role("button", name="30 days")).to_have_attribute(
                "aria-pressed", "true"
            )
            for absent in ("Share…", "Log out", "Write a note"):
                expect(other.page.get_by_role("button", name=absent)).to_have_count(0)
            for hidden in ("Counters", "System", "Boards", "← All counters"):
                expect(other.page.get_by_role("link", name=hidden)).to_have_count(0)
            expect(other.page.locator("#fresh")).to_contain_text("omplete up to")
            other.page.reload()
            expect(other.page.locator(".figure dd > span").nth(2)).to_have_text("18")
            assert not any("cl_" in url.partition("#")[0] for url in asked)
            assert not any("/v1/live" in url or "shop.secret" in url for url in asked)
            page.get_by_role("button", name="End the link").click()
            expect(page.get_by_role("button", name="End the link")).to_have_count(0)
            other.page.reload()
            expect(other.page.get_by_role("alert").first).to_contain_text("This link has ended")
            other.excused.append("401")


@pytest.mark.random
def test_a_note_is_written_shown_in_chart_and_table_changed_and_deleted(
    look: Look, filled: Web
) -> None:
    counted(filled)
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    page = look.at("/#/counter/shop.views?range=7")
    page.get_by_role("button", name="Write a note on a day…").click()
    page.get_by_label("Day", exact=True).fill(yesterday)
    page.get_by_label("Note", exact=True).fill(HOSTILE)
    page.get_by_role("button", name="Save").click()
    notes = page.locator(".notes li")
    expect(notes).to_contain_text(HOSTILE)
    page.get_by_role("button", name="Write a note on a day…").click()
    assert faults(page, "light", ".notes") == []
    page.get_by_text("The numbers as a table").click()  # which was opened to be looked at
    assert page.title() == "shop.views · countersink"
    page.locator(".chart").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".readout")).to_contain_text(HOSTILE)
    page.get_by_text("The numbers as a table").click()
    expect(page.get_by_role("columnheader", name="Note")).to_be_visible()
    expect(page.get_by_role("cell", name=HOSTILE)).to_be_visible()
    page.get_by_role("button", name="Change the note of").click()
    page.get_by_label("Note", exact=True).fill("the newsletter")
    page.get_by_label("On all counters").check()
    page.get_by_role("button", name="Save").click()
    expect(notes).to_have_count(2)
    page.goto("/#/counter/shop.secret?range=7")
    expect(page.locator(".notes li")).to_contain_text("the newsletter")
    page.get_by_role("button", name="Delete the note of").click()
    expect(page.locator(".notes li")).to_have_count(0)
    with open_tables(filled.options.mysql_url) as session:
        ends = datetime.now(UTC) + timedelta(hours=1)
        _, token = links.create(session, "shop.views", ends)
    page.goto(f"/shared#/counter/{quote('shop.views')}?range=7&link={token}")
    expect(page.locator(".notes li")).to_contain_text(HOSTILE)
    expect(page.get_by_role("button", name="Delete the note")).to_have_count(0)

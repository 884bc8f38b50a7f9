"""The system's view: what waits, who works, dead letters and what is done about them."""

import re

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from countersink.store.apply.dead import count
from countersink.store.connection import connect
from tests.browser.chromium import looking
from tests.browser.filled import set_aside, spoil
from tests.support.processes import Children
from tests.web.serving import Web


def dead(web: Web) -> dict[str, int]:
    with connect(web.options.mysql_url) as session:
        return count(session)


def button(page: Page, name: str | re.Pattern[str]) -> None:
    page.get_by_role("button", name=name).first.click()


def test_dead_letters_are_retried_and_dropped(browser: Browser, web: Web) -> None:
    refs = [set_aside(web, key, 7) for key in ("a", "b", "c")]
    spoil(web)
    with looking(browser, web.url) as look:
        page = look.page
        page.goto("/#/system")
        letters = page.locator(".letters li")
        expect(letters).to_have_count(6)
        expect(page.locator("#alert")).to_have_text(re.compile(r"^7"))  # and no worker runs
        button(page, f"Retry {refs[1]}")
        expect(page.get_by_text("Counted 1 row.").last).to_be_visible()
        expect(letters).to_have_count(5)
        assert web.store.totals.many("orders", ["a", "b"]) == {"a": 0, "b": 7}
        button(page, "Retry all 5")
        expect(page.get_by_text("Counted 2 rows; 3 failed again and stay.").last).to_be_visible()
        expect(letters).to_have_count(3)
        assert web.store.totals.total("orders") == 21
        page.get_by_role("button", name="No key can be like this 1").click()
        expect(letters).to_have_count(1)
        expect(letters).to_contain_text("lone surrogate")
        button(page, "Drop…")
        page.get_by_role("button", name="Cancel").click()
        assert dead(web) == {"bad_key": 1, "bad_minute": 1, "newer_version": 1}
        button(page, "Drop…")
        page.get_by_role("dialog").get_by_role("button", name="Drop").click()
        expect(page.get_by_text("Dropped 1.").last).to_be_visible()
        expect(letters).to_have_count(2)
        assert dead(web) == {"bad_minute": 1, "newer_version": 1}


def test_a_late_answer_does_not_replace_what_was_chosen_after_it(
    browser: Browser, web: Web
) -> None:
    set_aside(web, "late", 1, reason="bad_amount")
    chosen = [set_aside(web, key, 1, reason="bad_counter") for key in ("a", "b", "c")]
    held: list[Route] = []
    with looking(browser, web.url) as look:
        page = look.page
        page.goto("/#/system")
        letters = page.locator(".letters li")
        expect(letters).to_have_count(4)
        page.route("**/v1/dead?reason=bad_amount*", lambda route: held.append(route))
        with page.expect_request("**/v1/dead?reason=bad_amount*"):
            button(page, "The amount is none 1")
        # Until there is an answer nothing is chosen that could be acted on.
        expect(page.get_by_role("button", name="Retry all 4")).to_be_disabled()
        button(page, "No counter can have this name 3")
        expect(letters).to_have_count(3)
        with page.expect_event("requestfinished", lambda one: one == held[0].request):
            held[0].continue_()
        page.evaluate("fetch('/v1/whoami').then((one) => one.json())")  # it has been read by then
        expect(
            page.get_by_role("button", name="No counter can have this name 3")
        ).to_have_attribute("aria-pressed", "true")
        assert {ref for ref in chosen if letters.filter(has_text=ref).count()} == set(chosen)
        expect(letters).to_have_count(3)


def test_what_comes_while_the_question_is_asked_is_not_dropped(browser: Browser, web: Web) -> None:
    for key in ("a", "b", "c"):
        set_aside(web, key, 1, reason="bad_counter")
    set_aside(web, "d", 1, reason="bad_amount")
    with looking(browser, web.url) as look:
        page = look.page
        page.goto("/#/system")
        button(page, "No counter can have this name 3")
        expect(page.locator(".letters li")).to_have_count(3)
        button(page, "Drop…")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Drop these 3 dead letters for good?")
        for key in ("unseen", "unseen too"):
            set_aside(web, key, 1, reason="bad_counter")
        dialog.get_by_role("button", name="Drop").click()
        expect(page.get_by_text("Dropped 3.").last).to_be_visible()
        assert dead(web) == {"bad_amount": 1, "bad_counter": 2}


def test_what_comes_after_the_list_is_not_retried(browser: Browser, web: Web) -> None:
    for key in ("a", "b"):
        set_aside(web, key, 1)
    with looking(browser, web.url) as look:
        page = look.page
        page.route("**/v1/system", lambda route: None)  # so nothing tells the page of another one
        page.goto("/#/system")
        shown = page.get_by_role("button", name="Retry all 2")
        expect(shown).to_be_visible()
        set_aside(web, "unseen", 1)
        shown.click()
        expect(page.get_by_text("Counted 2 rows.").last).to_be_visible()
        assert dead(web) == {"out_of_range": 1}


def test_what_may_be_counted_already_is_asked_about(browser: Browser, web: Web) -> None:
    set_aside(web, "old", 3, reason="too_old")
    set_aside(web, "new", 4)
    with looking(browser, web.url) as look:
        page = look.page
        page.goto("/#/system")
        button(page, "Retry all 2")
        expect(page.get_by_text("1 that may be counted already were left out").last).to_be_visible()
        assert web.store.totals.total("orders") == 4
        button(page, re.compile("^Retry it$"))
        expect(page.get_by_text("None: everything that came could be counted.")).to_have_count(0)


def test_who_may_only_read_cannot_retry(browser: Browser, web: Web) -> None:
    set_aside(web, "a", 1)
    key = web.key("read")
    with looking(browser, web.url, extra_http_headers={"Authorization": f"Bearer {key}"}) as look:
        look.page.goto("/#/system")
        expect(look.page.get_by_text("log in with a key of the scope admin")).to_be_visible()
        expect(look.page.get_by_role("button", name=re.compile("Retry|Drop"))).to_have_count(0)


@pytest.mark.timeout(60)
def test_workers_come_and_a_backlog_goes(browser: Browser, web: Web) -> None:
    assert web.producer.flush(20)
    web.producer.increment("orders", "a")
    assert web.producer.flush(20)
    with looking(browser, web.url) as look, Children() as children:
        page = look.page
        page.goto("/#/system")
        expect(page.locator("#headline")).to_contain_text("No worker runs, and 1 entries wait")
        children.worker(web.options.redis_url, web.options.mysql_url)
        expect(page.locator("#headline")).to_have_text("Everything is counted; nothing waits.")
        expect(page.get_by_role("region", name="Workers").locator("tbody tr")).to_have_count(1)

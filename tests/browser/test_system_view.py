"""The system's view: what waits, who works, dead letters and what is done about them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from countersink.counting.apply.dead import count
from countersink.database.connection import connect
from countersink.stream.connection import connect as connect_redis
from countersink.worker.report import WorkerFigures, heartbeat
from tests.browser.chromium import Look, looking, routed
from tests.browser.conftest import server
from tests.browser.filled import send, set_aside, spoil
from tests.support.processes import Children
from tests.support.servers import MySQLServer
from tests.support.waiting import eventually
from tests.web.serving import Web


@pytest.fixture(scope="module")
def system(servers_directory: Path, mysql_server: MySQLServer) -> Iterator[Web]:
    """A server for the tests of this file, which leave no dead letters and no counts."""
    with server(servers_directory / "redis-system", mysql_server) as served:
        yield served


@pytest.fixture(scope="module")
def window(browser: Browser, system: Web) -> Iterator[Look]:
    with looking(browser, system.url) as look:
        yield look


@pytest.fixture
def look(window: Look, system: Web) -> Iterator[Look]:
    """The list of counters, where the tests begin."""
    window.page.goto("/#/")
    yield window
    window.settle(system.url)
    with connect(system.options.mysql_url) as session:
        for table in ("dead_row", "counter_slot", "counter_ledger"):
            session.execute(f"DELETE FROM {table}")


def dead(web: Web) -> dict[str, int]:
    with connect(web.options.mysql_url) as session:
        return count(session)


def button(page: Page, name: str | re.Pattern[str], *answers: str) -> None:
    """Press a button, and in the dialog that it opens the button of each answer."""
    page.get_by_role("button", name=name).first.click()
    for answer in answers:
        page.get_by_role("dialog").get_by_role("button", name=answer).click()


def test_dead_letters_are_retried_and_dropped(look: Look, system: Web) -> None:
    refs = [set_aside(system, key, 7) for key in ("a", "b", "c")]
    spoil(system)
    # What was looked at just now is shown for a second; the number beside the view's name is asked
    # for where the page is loaded.
    eventually(lambda: system.ask("GET", "/v1/system").json()["dead"] == 6)
    page = look.at("/#/system")
    page.reload()
    letters = page.locator(".letters li")
    expect(letters).to_have_count(6)
    expect(page.locator("#alert")).to_have_text(re.compile(r"^7"))  # and no worker runs
    button(page, f"Retry {refs[1]}", "Cancel")
    button(page, f"Retry {refs[1]}", "Retry")
    expect(page.get_by_text("Counted 1 row.").last).to_be_visible()
    expect(letters).to_have_count(5)
    assert system.store.totals.many("orders", ["a", "b"]) == {"a": 0, "b": 7}
    assert page.locator("button.primary").count() == 0
    button(page, "Retry all 5", "Retry")
    expect(page.get_by_text("Counted 2 rows; 3 failed again and stay.").last).to_be_visible()
    expect(letters).to_have_count(3)
    assert system.store.totals.total("orders") == 21
    page.get_by_role("button", name="Invalid key 1").click()
    expect(letters).to_have_count(1)
    expect(letters).to_contain_text("lone surrogate")
    button(page, "Drop…")
    page.get_by_role("button", name="Cancel").click()
    assert dead(system) == {"bad_key": 1, "bad_minute": 1, "newer_version": 1}
    button(page, "Drop…")
    page.get_by_role("dialog").get_by_role("button", name="Drop").click()
    expect(page.get_by_text("Dropped 1.").last).to_be_visible()
    expect(letters).to_have_count(2)
    assert dead(system) == {"bad_minute": 1, "newer_version": 1}


def test_a_late_answer_does_not_replace_what_was_chosen_after_it(look: Look, system: Web) -> None:
    set_aside(system, "late", 1, reason="bad_amount")
    chosen = [set_aside(system, key, 1, reason="bad_counter") for key in ("a", "b", "c")]
    held: list[Route] = []
    page = look.at("/#/system")
    letters = page.locator(".letters li")
    expect(letters).to_have_count(4)
    with routed(page, "**/v1/dead?reason=bad_amount*", held.append):
        with page.expect_request("**/v1/dead?reason=bad_amount*"):
            button(page, "Invalid amount 1")
        # Until there is an answer nothing is chosen that could be acted on.
        expect(page.get_by_role("button", name="Retry all 4")).to_be_disabled()
        button(page, "Invalid counter name 3")
        expect(letters).to_have_count(3)
        with page.expect_event("requestfinished", lambda one: one == held[0].request):
            held[0].continue_()
    page.evaluate("fetch('/v1/whoami').then((one) => one.json())")  # it has been read by then
    expect(page.get_by_role("button", name="Invalid counter name 3")).to_have_attribute(
        "aria-pressed", "true"
    )
    assert {ref for ref in chosen if letters.filter(has_text=ref).count()} == set(chosen)
    expect(letters).to_have_count(3)


def test_what_comes_after_the_list_is_neither_dropped_nor_retried_unseen(
    look: Look, system: Web
) -> None:
    look.excused.append("409")
    for key in ("a", "b"):
        set_aside(system, key, 1)
    page = look.page
    page.goto("/#/system")
    button(page, "Drop…")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Drop these 2 dead letters for good?")
    set_aside(system, "unseen", 1)
    dialog.get_by_role("button", name="Drop").click()
    expect(
        page.get_by_text("has 3 dead letters now, more than 2: none was changed").last
    ).to_be_visible()
    assert dead(system) == {"bad_sketch": 3}
    button(page, "Retry all 3", "Retry")  # the list is there anew
    expect(page.get_by_text("Counted 3 rows.").last).to_be_visible()


def test_what_may_be_counted_already_is_asked_about(look: Look, system: Web) -> None:
    old = set_aside(system, "old", 3, reason="too_old")
    set_aside(system, "new", 4)
    page = look.at("/#/system")
    button(page, f"Retry {old}")
    expect(page.get_by_role("dialog")).to_contain_text("this row may be counted already. Count it")
    button(page, "Cancel")
    button(page, "Retry all 2", "Retry")
    expect(page.get_by_text("1 that may be counted already were left out").last).to_be_visible()
    assert system.store.totals.total("orders") == 4
    button(page, re.compile("^Retry it…$"), "Retry")
    expect(page.get_by_text("None: all rows could be counted.")).to_have_count(0)


def test_who_may_only_read_cannot_retry(browser: Browser, web: Web) -> None:
    set_aside(web, "a", 1)
    key = web.key("read")
    with looking(browser, web.url, extra_http_headers={"Authorization": f"Bearer {key}"}) as look:
        look.page.goto("/#/system")
        expect(look.page.get_by_text("log in with a key that has the scope admin")).to_be_visible()
        expect(look.page.get_by_role("button", name=re.compile("Retry|Drop"))).to_have_count(0)


@pytest.mark.timeout(60)
def test_workers_come_and_a_backlog_goes(browser: Browser, web: Web) -> None:
    assert web.producer.flush(20)
    web.producer.increment("orders", "a")
    assert web.producer.flush(20)
    with looking(browser, web.url) as look, Children() as children:
        page = look.at("/#/system")
        expect(page.locator("#headline")).to_contain_text("No worker runs, and 1 entry waits")
        children.worker(web.options.redis_url, web.options.mysql_url)
        expect(page.locator("#headline")).to_have_text("Everything is counted; nothing waits.")
        expect(page.get_by_role("region", name="Workers").locator("tbody tr")).to_have_count(1)
        with connect(web.options.mysql_url) as session:
            session.execute(
                "INSERT INTO job (name, cron, time_zone) VALUES ('verify', '0 3 * * *', 'UTC')"
            )
            session.execute(
                "INSERT INTO job_run (job, planned_at, state, due_at, ended_at, detail) VALUES"
                " ('verify', '2026-11-21', 'failed', '2026-11-21', '2026-11-21', 'orders: 7')"
            )
        expect(page.locator("#headline")).to_contain_text("The last verification failed")
        with connect_redis(web.options.redis_url) as client:
            client.config_set("maxmemory", 1)
            try:
                expect(page.locator("#headline")).to_contain_text("Redis is full")
            finally:
                client.config_set("maxmemory", 0)


def test_the_error_of_a_worker_has_its_time_and_is_red_until_it_is_over(
    look: Look, system: Web
) -> None:
    figures = WorkerFigures()
    figures.failed("MySQL is away")
    with connect_redis(system.options.redis_url) as client:
        beat = heartbeat(client, "one", figures)
        try:
            beat.publish(now=True)
            cell = look.at("/#/system").get_by_role("cell", name=re.compile("MySQL is away .* ago"))
            expect(cell).to_have_class("wrong")
            figures.state = "idle"
            beat.publish(now=True)
            expect(cell).to_have_class("soft")
        finally:
            beat.withdraw()


def test_dead_letters_say_what_and_what_to_do_and_show_what_cannot_be_seen(
    look: Look, system: Web
) -> None:
    with connect_redis(system.options.redis_url) as client:
        send(client, [["page\u202eviews", "a", 1, 1]])
        send(client, [["views", "k", -5, 1]])
    system.apply()
    page = look.at("/#/system")
    letter = page.locator(".letters li", has_text="Invalid counter name")
    expect(letter.get_by_text("Correct the sender")).to_be_visible()
    raw = letter.get_by_text("bad_counter")
    expect(raw).not_to_be_visible()
    letter.get_by_text("Details").click()
    expect(raw).to_be_visible()
    assert "\u202e" not in letter.inner_text()
    other = page.locator(".letters li", has_text="Invalid time")
    expect(other.get_by_text("before 1970")).to_be_visible()


def test_jobs_are_shown_paused_resumed_and_run(look: Look, system: Web) -> None:
    with connect(system.options.mysql_url) as session:
        session.execute(
            "INSERT INTO job (name, cron, time_zone, next_at)"
            " VALUES ('compact', '0 8 * * *', 'UTC', UTC_TIMESTAMP() + INTERVAL 1 DAY)"
        )
        session.execute(
            "INSERT INTO job_run (job, planned_at, state, due_at, started_at, ended_at, detail)"
            " VALUES ('compact', '2026-11-21 08:00:00', 'failed', UTC_TIMESTAMP(3),"
            " UTC_TIMESTAMP(3) - INTERVAL 75 SECOND, UTC_TIMESTAMP(3), '<b>it broke</b>')"
        )
        page = look.at("/#/system")
        table = page.get_by_role("region", name="The scheduled jobs as a table")
        expect(table).to_contain_text("<b>it broke</b>")
        expect(table).to_contain_text("failed")
        expect(table).to_contain_text("75 s")
        button(page, "Pause")
        expect(table).to_contain_text("paused")
        button(page, "Resume")
        expect(table).not_to_contain_text("paused")
        button(page, "Run now… compact", "Cancel")
        assert session.query("SELECT COUNT(*) FROM job_run WHERE state = 'planned'") == [(0,)]
        button(page, "Run now… compact")
        expect(page.get_by_role("dialog")).to_contain_text("It moves closed and crowded buckets")
        page.get_by_role("dialog").get_by_role("button", name="Run").click()
        expect(page.locator("[aria-live]").first).to_contain_text("compact is planned to run now.")
        assert session.query("SELECT COUNT(*) FROM job_run WHERE state = 'planned'") == [(1,)]
        for name in ("job", "job_run"):
            session.execute(f"DELETE FROM {name}")

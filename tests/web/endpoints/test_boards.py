"""Boards by HTTP: made, changed and deleted; who sees them; and links to them."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from countersink.counting.apply.guards import read_control
from countersink.counting.counters import deletion
from countersink.counting.counters.all_counters import is_used
from countersink.counting.counters.deletion import delete_counter
from countersink.counting.errors import UnknownCounter
from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.store import boards, links
from countersink.store.boards import BoardItem
from countersink.store.errors import BoardRefused
from tests.support.app_connection import wait_for_lock_wait
from tests.support.entries import applier, entry, once, row, says
from tests.support.proxies import MySQLProxy, Phase
from tests.web.serving import Web

BOARD = "/v1/boards/shop"
ITEMS = [{"counter": "orders", "days": 7, "top": 5}, {"counter": "views", "cumulative": True}]
FULL = [
    {"counter": "orders", "days": 7, "width": "half", "top": 5, "cumulative": False},
    {"counter": "views", "days": 30, "width": "half", "top": 0, "cumulative": True},
]


@pytest.fixture
def web(keyed: Web) -> Web:
    """A server that takes keys, with three counters."""
    for counter in ("orders", "views", "secret"):
        keyed.producer.increment(counter, "/a", 3)
    keyed.apply()
    return keyed


def made(web: Web, admin: str, **more: Any) -> dict[str, Any]:
    """A new board, or its answer."""
    body = {"board": "shop", "items": ITEMS, **more}
    answer = web.ask("POST", "/v1/boards", admin, json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def link(web: Web, key: str) -> str:
    answer = web.ask("POST", "/v1/links", key, json={"board": "shop"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["path"] == f"/shared#/board/shop?link={answer.json()['token']}"
    assert (answer.json()["board"], answer.json()["counter"]) == ("shop", None)
    return str(answer.json()["token"])


def test_a_board_is_made_listed_changed_and_deleted(web: Web) -> None:
    admin = web.key("admin", name="Ada")
    board = made(web, admin)
    assert (board["board"], board["author"], board["items"]) == ("shop", "Ada", FULL)
    assert web.ask("GET", "/v1/boards", admin).json() == {"rows": [board]}
    changed = web.ask("PUT", BOARD, admin, json={"items": [{"counter": "views", "days": None}]})
    assert [item["days"] for item in changed.json()["items"]] == [None]
    assert web.ask("GET", BOARD, admin).json() == changed.json()
    assert web.ask("DELETE", BOARD, admin).status_code == 204
    for method, body in (("GET", None), ("PUT", {"items": ITEMS}), ("DELETE", None)):
        assert web.ask(method, BOARD, admin, json=body).status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"board": "shop", "items": ITEMS}, 409),
        ({"board": "..", "items": ITEMS}, 422),
        ({"board": "a\n", "items": ITEMS}, 422),
        ({"board": "b", "items": []}, 422),
        ({"board": "b", "items": ITEMS * 13}, 422),
        ({"board": "b", "items": [{"counter": "nothing"}]}, 404),
        ({"board": "b", "items": [{"counter": "views\n"}]}, 404),
        ({"board": "b", "items": [{"counter": "views", "days": 8}]}, 422),
        ({"board": "b", "items": [{"counter": "views", "top": 26}]}, 422),
        ({"board": "b", "items": [{"counter": "views", "colour": "red"}]}, 422),
    ],
)
def test_what_cannot_be_a_board_is_refused(web: Web, body: dict[str, Any], status: int) -> None:
    admin = web.key("admin")
    made(web, admin)
    assert web.ask("POST", "/v1/boards", admin, json=body).status_code == status


def test_a_wrong_name_is_answered_in_words(web: Web) -> None:
    answer = web.ask("POST", "/v1/boards", web.key("admin"), json={"board": "..", "items": ITEMS})
    assert "Board name '..': use 1 to 64 characters of" in answer.json()["detail"]


@pytest.mark.servers("mariadb", "mysql")
def test_boards_are_few_however_many_are_made_at_once(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "MAX_BOARDS", 1)
    admin = web.key("admin")

    def make(number: int) -> tuple[int, bool]:
        body = {"board": f"b{number}", "items": ITEMS}
        answer = web.ask("POST", "/v1/boards", admin, json=body)
        return answer.status_code, "maximum of 1" in answer.text

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(make, range(8))) == [(201, False), *[(409, True)] * 7]


@pytest.mark.servers("mariadb", "mysql")
def test_nothing_is_made_of_a_counter_whose_deletion_commits_at_that_moment(web: Web) -> None:
    with (
        open_tables(web.options.mysql_url, isolation="REPEATABLE READ") as deleting,
        open_tables(web.options.mysql_url) as session,
        open_tables(web.options.mysql_url) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        boards.create(session, "shop", [BoardItem("orders")])
        soon = datetime.now(UTC) + timedelta(days=1)
        made: list[Future[object]] = []

        def reached(point: str) -> None:
            if is_used(deleting, "orders") or made:
                return  # not the last transaction
            made.append(pool.submit(boards.create, session, "b", [BoardItem("orders")]))
            made.append(pool.submit(links.create_to_board, other, "shop", soon))
            wait_for_lock_wait(deleting, 2)

        delete_counter(deleting, "orders", reached=reached)
        assert [type(one.exception()) for one in made] == [UnknownCounter, BoardRefused]


CHANGES: dict[str, Callable[[Session], object]] = {
    "INTO board": lambda session: boards.create(session, "shop", [BoardItem("orders")]),
    "UPDATE board": lambda session: boards.change(session, "shop", [BoardItem("orders", top=1)]),
    "INTO api_key": lambda session: links.create_to_board(
        session, "shop", datetime.now(UTC) + timedelta(days=1)
    ),
    "DELETE FROM board": lambda session: boards.delete(session, "shop"),
}
"""All changes of a board and its links in an order, by a statement of each."""


@pytest.mark.servers("mariadb", "mysql")
def test_a_board_is_not_made_until_the_one_before_it_is_among_those_counted(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "MAX_BOARDS", 1)
    url = web.options.mysql_url
    with (
        MySQLProxy.to(url) as proxy,
        open_tables(proxy.url(url)) as first,
        open_tables(url) as second,
        open_tables(url) as watching,
        ThreadPoolExecutor(1) as pool,
    ):
        made: list[Future[object]] = []

        def meanwhile() -> None:
            made.append(pool.submit(boards.create, second, "b", [BoardItem("views")]))
            wait_for_lock_wait(watching)

        once(proxy, says("INTO board"), meanwhile)
        CHANGES["INTO board"](first)
        assert [type(one.exception()) for one in made] == [BoardRefused]


@pytest.mark.servers("mariadb", "mysql")
def test_workers_count_while_a_board_is_saved_and_another_holds_the_control_row(web: Web) -> None:
    """Whoever waits to have that row alone holds up all who come later."""
    url = web.options.mysql_url
    with (
        open_tables(url) as holding,
        closing(applier(url)) as worker,
        MySQLProxy.to(url) as proxy,
        open_tables(proxy.url(url)) as session,
        holding.transaction(),
    ):
        read_control(holding)
        for statement, change in CHANGES.items():
            once(proxy, says(statement), lambda: worker.apply([entry([row("/a")])]), Phase.AFTER)
            change(session)
    assert web.store.totals.total("views") == 3 + len(CHANGES)


@pytest.mark.servers("mariadb", "mysql")
def test_no_counter_is_deleted_between_the_check_and_the_write_of_what_shows_it(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "ATTEMPTS", 1)
    url = web.options.mysql_url
    with (
        open_tables(url, isolation="REPEATABLE READ") as deleting,
        MySQLProxy.to(url) as proxy,
        open_tables(proxy.url(url)) as session,
    ):
        refused: list[Conflict] = []

        def delete() -> None:
            try:
                delete_counter(deleting, "orders")
            except Conflict as error:
                refused.append(error)

        shown = list(CHANGES)[:3]
        for statement in shown:
            once(proxy, says(statement), delete)
            CHANGES[statement](session)
        assert len(refused) == len(shown)
        delete_counter(deleting, "orders")
        assert links.list_links(session) == []


def test_a_key_for_some_counters_sees_boards_of_these_and_changes_none(web: Web) -> None:
    admin = web.key("admin")
    made(web, admin)
    for pattern, status in (("secret", 404), ("*", 200)):
        key = web.key("read", "admin", counters=["vie?s", pattern])
        assert len(web.ask("GET", "/v1/boards", key).json()["rows"]) == (status == 200)
        assert web.ask("GET", BOARD, key).status_code == status
        for method in ("PUT", "DELETE"):
            assert web.ask(method, BOARD, key, json={"items": ITEMS}).status_code == 403
        assert web.ask("POST", "/v1/links", key, json={"board": "shop"}).status_code == 403


def test_a_link_to_a_board_shows_its_counters_and_follows_its_changes(web: Web) -> None:
    admin, reader = web.key("admin"), web.key("read", name="reader")
    made(web, admin)
    made(web, admin, board="other", items=[{"counter": "secret"}])
    token = link(web, reader)

    def seen(*counters: str) -> list[int]:
        return [web.ask("GET", f"/v1/counters/{one}/top", token).status_code for one in counters]

    assert seen("orders", "views", "secret") == [200, 200, 403]
    shown = web.ask("GET", BOARD, token).json()
    assert (shown["items"], shown["author"]) == (FULL, None)  # names of keys are no numbers
    csv = web.ask("GET", "/v1/counters/orders/daily?format=csv", token)
    assert csv.text.startswith("day,total\r\n")
    for method, path in (
        *(("GET", "/v1/boards"), ("GET", "/v1/boards/other"), ("PUT", BOARD), ("DELETE", BOARD)),
        *(("GET", "/v1/links"), ("GET", "/v1/totals"), ("POST", "/v1/boards")),
    ):
        answer = web.ask(method, path, token, json={"items": ITEMS})
        assert answer.status_code == 403, (method, path)
    web.ask("PUT", BOARD, admin, json={"items": [{"counter": "secret"}]})
    assert seen("orders", "views", "secret") == [403, 403, 200]
    assert web.ask("DELETE", BOARD, admin).status_code == 204
    assert seen("secret") == [401]
    made(web, admin)  # a board of the same name is another one
    assert seen("orders") == [401]
    to_counter = web.ask("POST", "/v1/links", reader, json={"counter": "views"}).json()["token"]
    assert web.ask("GET", BOARD, to_counter).status_code == 403


@pytest.mark.servers("mariadb", "mysql")
def test_links_to_a_board_end_with_each_of_its_counters_and_are_its_readers_own(web: Web) -> None:
    admin, reader = web.key("admin"), web.key("read", name="reader")
    made(web, admin)
    first = link(web, reader)
    assert [one["board"] for one in web.ask("GET", "/v1/links", reader).json()["rows"]] == ["shop"]
    bound = web.key("admin", counters=["*"])
    assert web.ask("GET", "/v1/links", bound).json()["rows"] == []
    web.store.counters.delete("orders")
    web.look_again()
    assert web.ask("GET", "/v1/counters/views", first).status_code == 401
    refused = web.ask("POST", "/v1/links", reader, json={"board": "shop"})
    assert refused.status_code == 409
    assert "shows orders, which was deleted: change the board first" in refused.json()["detail"]
    for body in ({"board": "shop", "counter": "views"}, {"board": "none"}, {"board": "a b"}):
        assert web.ask("POST", "/v1/links", reader, json=body).status_code in (404, 422)
    with open_tables(web.options.mysql_url) as session:
        assert links.list_links(session) == []


def test_pages_of_links_may_be_embedded_where_the_setting_says_and_no_others(shared: Web) -> None:
    origins = ("https://intranet.example.com", "https://*.example.org:8443")
    ancestors = f"frame-ancestors {' '.join(origins)};"
    with shared.beside(frame_ancestors=origins) as framed:
        page = framed.ask("GET", "/shared")
        assert ancestors in page.headers["Content-Security-Policy"]
        assert "X-Frame-Options" not in page.headers
        kept = framed.ask("GET", "/shared", headers={"If-None-Match": page.headers["ETag"]})
        assert kept.status_code == 304
        assert ancestors in kept.headers["Content-Security-Policy"]
        for web, path in ((framed, "/"), (framed, "/login"), (shared, "/shared")):
            other = web.ask("GET", path)
            assert "frame-ancestors 'none'" in other.headers["Content-Security-Policy"], path
            assert other.headers["X-Frame-Options"] == "DENY", path

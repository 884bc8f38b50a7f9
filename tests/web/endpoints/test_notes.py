"""Notes on days by HTTP: who may read and write them, and what may be in them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
import requests

from countersink.database.sessions import open_tables
from countersink.store import notes
from tests.web.serving import Web, serving

VIEWS = "/v1/counters/views/notes"
COMMON = "/v1/notes"
NO_NOTES: tuple[tuple[str, object, int], ...] = (
    (f"{VIEWS}/2026-10-20", {"note": ""}, 422),
    (f"{VIEWS}/2026-10-20", {"note": " \u3000 "}, 422),
    (f"{VIEWS}/2026-10-20", {"note": "x" * 501}, 422),
    (f"{VIEWS}/2026-10-20", {"note": "two\nlines"}, 422),
    (f"{VIEWS}/2026-10-20", {"note": 7}, 422),
    (f"{VIEWS}/2026-10-20", {"note": "x", "day": "2026-10-21"}, 422),
    (f"{VIEWS}/2026-10-20", {}, 422),
    (f"{VIEWS}/2026-10-20", [], 422),
    (f"{VIEWS}/2026-02-30", {"note": "x"}, 422),
    (f"{VIEWS}/today", {"note": "x"}, 422),
    ("/v1/counters/nothing/notes/2026-10-20", {"note": "x"}, 404),
    ("/v1/counters/a%20b/notes/2026-10-20", {"note": "x"}, 404),
)


@pytest.fixture
def web(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """A server with two counters."""
    with serving(redis_url, mysql_url) as served:
        for counter in ("views", "sales"):
            served.producer.increment(counter, "/a", at=datetime(2026, 10, 20, 12, tzinfo=UTC))
        served.apply()
        yield served


def put(web: Web, path: str, note: object, key: str = "") -> requests.Response:
    return web.ask("PUT", path, key, json={"note": note})


def told(web: Web, path: str = VIEWS, key: str = "") -> list[tuple[str | None, str, str]]:
    rows = web.ask("GET", path, key).json()["rows"]
    return [(row["counter"], row["day"], row["note"]) for row in rows]


def test_what_is_no_note_is_refused_and_others_are_written_changed_listed_and_deleted(
    web: Web,
) -> None:
    for path, body, status in NO_NOTES:
        assert web.ask("PUT", path, json=body).status_code == status, (path, body)
    assert told(web) == []
    first = put(web, f"{VIEWS}/2026-10-20", "  The <b>newsletter</b> went out & more  ")
    assert first.status_code == 200
    assert first.json() == {
        "counter": "views",
        "day": "2026-10-20",
        "note": "The <b>newsletter</b> went out & more",
        "author": "everybody",
        "changed": first.json()["changed"],
    }
    put(web, f"{VIEWS}/2026-10-20", "Newsletter no. 7 🎉")
    put(web, f"{VIEWS}/2026-10-22", "New prices")
    put(web, f"{COMMON}/2026-10-22", "Servers moved")
    put(web, "/v1/counters/sales/notes/2026-10-20", "Another's")
    one, two = ("views", "2026-10-20", "Newsletter no. 7 🎉"), ("views", "2026-10-22", "New prices")
    everywhere = (None, "2026-10-22", "Servers moved")
    assert told(web) == [one, two, everywhere]
    assert told(web, f"{VIEWS}?from=2026-10-21") == [two, everywhere]
    assert told(web, f"{VIEWS}?from=2026-10-20&to=2026-10-20") == [one]
    assert told(web, COMMON) == [everywhere]
    assert web.ask("DELETE", f"{VIEWS}/2026-10-22").status_code == 204
    assert web.ask("DELETE", f"{VIEWS}/2026-10-22").status_code == 404
    assert web.ask("DELETE", f"{COMMON}/2026-10-22").status_code == 204
    assert told(web) == [one]


def test_a_note_fits_to_its_last_character_and_each_counter_has_room_of_its_own(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert put(web, f"{VIEWS}/2026-10-20", "🎉" * 500).status_code == 200
    monkeypatch.setattr(notes, "MAX_NOTES", 2)
    assert put(web, f"{VIEWS}/2026-10-21", "two").status_code == 200
    full = put(web, f"{VIEWS}/2026-10-22", "three")
    assert (full.status_code, "maximum of 2 notes" in full.json()["detail"]) == (409, True)
    assert put(web, f"{VIEWS}/2026-10-21", "in its place").status_code == 200
    assert put(web, f"{COMMON}/2026-10-22", "another's").status_code == 200
    assert [note for _, _, note in told(web)] == ["🎉" * 500, "in its place", "another's"]


def test_a_link_shows_what_is_of_its_counter_alone(web: Web) -> None:
    """Whose key may do what: ``tests/web/auth/test_scopes.py``."""
    admin = web.key("admin", name="Ada")
    reader = web.key("read", name="reader", counters=("views",))
    note, common = f"{VIEWS}/2026-10-20", f"{COMMON}/2026-10-20"
    assert put(web, note, "x", admin).json()["author"] == "Ada"
    assert put(web, common, "x", admin).status_code == 200
    assert len(told(web, VIEWS, reader)) == 2
    assert len(told(web, COMMON, reader)) == 1
    link = web.ask("POST", "/v1/links", reader, json={"counter": "views"}).json()["token"]
    assert told(web, VIEWS, link) == [("views", "2026-10-20", "x")]
    assert put(web, note, "y", link).status_code == 403


def test_notes_written_at_once_leave_one(web: Web) -> None:
    def write(number: int) -> int:
        return put(web, f"{VIEWS}/2026-10-20", f"by {number}").status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(write, range(16))) == {200}
    assert len(told(web)) == 1
    with open_tables(web.options.mysql_url) as session:
        assert session.query("SELECT COUNT(*) FROM day_note") == [(1,)]

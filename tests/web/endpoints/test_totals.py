"""`/v1/counters…` and `/v1/totals`: the totals of `countersink totals`, by HTTP."""

import csv
import io
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest
import requests

from countersink.database.sessions import open_tables
from countersink.producers import Producer
from countersink.runtime.texts import iso
from countersink.stream.connection import command
from countersink.stream.names import stream_key
from countersink.web.endpoints import totals as routes
from tests.support.ledger import post_planted
from tests.support.oracle import Oracle
from tests.support.roll_up import roll_up
from tests.web.serving import Web

DAYS = [
    (date(2026, 10, 18), "/a", 5),
    (date(2026, 10, 18), "/b", 2),
    (date(2026, 10, 20), "/a", 1),
    (date(2026, 10, 21), "/c", 5),
]
DAILY = [
    {"day": "2026-10-18", "total": 7},
    {"day": "2026-10-19", "total": 0},
    {"day": "2026-10-20", "total": 1},
    {"day": "2026-10-21", "total": 5},
]
VIEWS = "/v1/counters/views"


def noon(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


def count(producer: Producer, *events: tuple[date, str, int], counter: str = "views") -> None:
    for day, key, amount in events:
        producer.increment(counter, key, amount, at=noon(day))


def get(web: Web, path: str, **parameters: Any) -> requests.Response:
    return web.ask("GET", path, params=parameters)


def document(web: Web, path: str, **parameters: Any) -> Any:
    answer = get(web, path, **parameters)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    return answer.json()


def rows(web: Web, path: str, **parameters: Any) -> Any:
    return document(web, path, **parameters)["rows"]


def refused(web: Web, path: str, status: int, **parameters: Any) -> str:
    """What the problem says, each word of it."""
    answer = get(web, path, **parameters)
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["status"] == status
    return answer.text


def fill(web: Web) -> Web:
    """Two counters with known totals."""
    count(web.producer, *DAYS)
    count(web.producer, (date(2026, 10, 19), "", -4), counter="clicks")
    web.apply()
    return web


@pytest.fixture(scope="module")
def filled(shared: Web) -> Web:
    """Two counters with known totals, which no test changes."""
    return fill(shared)


@pytest.fixture
def changing(web: Web) -> Web:
    """The same for one test, which may change them."""
    return fill(web)


def test_all_counters(filled: Web) -> None:
    assert document(filled, "/v1/totals")["counter"] is None
    assert rows(filled, "/v1/totals") == [
        {"counter": "views", "total": 13},
        {"counter": "clicks", "total": -4},
    ]
    assert rows(filled, "/v1/totals", top=1) == [{"counter": "views", "total": 13}]
    assert rows(filled, "/v1/totals", by="day") == [
        {"counter": "clicks", "day": "2026-10-19", "total": -4},
        *({"counter": "views", **day} for day in DAILY),
    ]


def test_keys_by_prefix_and_by_what_is_in_them(web: Web) -> None:
    """As text, whatever it means in SQL."""
    day = date(2026, 10, 18)
    keys = ["/blog/100%", "/blog/a_b", "/Blog", "/shop/blog", "\\", "ü", "u\u0308"]
    count(web.producer, *((day, key, 10 - rank) for rank, key in enumerate(keys)))
    web.apply()

    def found(**parameters: Any) -> list[str]:
        return [row["key"] for row in rows(web, f"{VIEWS}/top", **parameters)]

    assert found(search="blog") == ["/blog/100%", "/blog/a_b", "/shop/blog"]
    assert found(prefix="/b", search="%") == ["/blog/100%"]
    assert found(search="a_b") == ["/blog/a_b"]
    assert found(search="\\") == ["\\"]
    assert found(search="ü") == ["ü"]
    assert found(search="'; DROP TABLE counter_slot; --") == []


def test_keys_that_are_no_utf_8_are_shown_as_they_are(changing: Web) -> None:
    with Oracle(changing.options.mysql_url) as oracle:
        oracle.rows(
            "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
            " VALUES ('views', '2026-10-18', UNHEX('2FFFFE'), 1, 9)"
        )
        post_planted(oracle)
    assert rows(changing, f"{VIEWS}/top", n=1) == [{"key": "/\udcff\udcfe", "total": 9}]
    answer = get(changing, f"{VIEWS}/top", n=1, format="csv")
    assert answer.content == b"key,total\r\n/\xff\xfe,9\r\n"


def test_csv_by_parameter_or_by_accept(filled: Web) -> None:
    answer = get(filled, f"{VIEWS}/daily", format="csv")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8; header=present"
    assert answer.headers["Content-Disposition"] == 'inline; filename="views-day.csv"'
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert found == [{"day": day["day"], "total": str(day["total"])} for day in DAILY]
    asked = filled.ask("GET", f"{VIEWS}/daily", headers={"Accept": "text/csv"})
    assert asked.content == answer.content
    accept = {"Accept": "application/json, text/csv;q=0.5"}
    both = filled.ask("GET", f"{VIEWS}/daily", headers=accept)
    assert both.json()["rows"] == DAILY


def test_csv_is_as_it_was_counted_or_safe_in_a_spreadsheet(web: Web) -> None:
    keys = ('=HYPERLINK("x")', "=1", "'=1", "''=1", "1")
    count(web.producer, *((date(2026, 10, 18), key, 1) for key in keys))
    web.apply()

    def shown(**asked: str) -> list[str]:
        answer = get(web, f"{VIEWS}/top", format="csv", **asked)
        return [row[0] for row in csv.reader(io.StringIO(answer.text))][1:]

    assert '\'=HYPERLINK("x")' in shown(spreadsheet="true")
    assert sorted(key.removeprefix("'") for key in shown(spreadsheet="true")) == sorted(keys)
    assert sorted(shown()) == sorted(keys)


def test_how_fresh_it_is_stands_in_every_answer(filled: Web) -> None:
    stream_id = command(filled.services.redis, "XADD", stream_key(0), "*", "not", "ours").decode()
    arrived = iso(datetime.fromtimestamp(int(stream_id.split("-")[0]) / 1000, UTC))
    for path in ("/v1/counters", f"{VIEWS}/daily", f"{VIEWS}/top", "/v1/totals"):
        answer = get(filled, path)
        assert answer.json()["complete_up_to"] == arrived
        assert answer.headers["Countersink-Complete-Up-To"] == arrived
    answer = get(filled, f"{VIEWS}/daily", format="csv")
    assert answer.headers["Countersink-Complete-Up-To"] == arrived
    command(filled.services.redis, "XDEL", stream_key(0), stream_id)
    assert document(filled, f"{VIEWS}/daily")["complete_up_to"] > arrived


def test_a_tag_holds_until_a_number_changes(changing: Web) -> None:
    for path in (f"{VIEWS}/daily", f"{VIEWS}/daily?format=csv", "/v1/counters?days=1", VIEWS):
        first = get(changing, path)
        tag = first.headers["ETag"]
        assert tag.startswith('W/"')
        assert "private" in first.headers["Cache-Control"]
        again = changing.ask("GET", path, headers={"If-None-Match": f'"x", {tag}'})
        assert again.status_code == 304
        assert again.content == b""
        assert again.headers["ETag"] == tag
        assert changing.ask("GET", path, headers={"If-None-Match": "*"}).status_code == 304
        if path != VIEWS:
            assert (
                again.headers["Countersink-Complete-Up-To"]
                >= first.headers["Countersink-Complete-Up-To"]
            )
    tag = get(changing, f"{VIEWS}/daily").headers["ETag"]
    assert get(changing, f"{VIEWS}/daily?format=csv").headers["ETag"] != tag
    count(changing.producer, (DAYS[0][0], "/a", 1))
    changing.apply()
    changed = changing.ask("GET", f"{VIEWS}/daily", headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.json()["rows"][0]["total"] == 8


def test_pending_entries_are_added_and_never_taken_from_a_copy(changing: Web) -> None:
    count(changing.producer, (DAYS[0][0], "/new", 100))
    count(changing.producer, (DAYS[0][0], "/", 3), counter="only_pending")
    assert changing.producer.flush(timeout=20)
    assert rows(changing, f"{VIEWS}/daily")[0]["total"] == 7
    answer = get(changing, f"{VIEWS}/daily", include_pending="true")
    assert answer.json()["rows"][0]["total"] == 107
    assert answer.headers["Cache-Control"] == "private, no-cache"
    assert "include_pending=true" in refused(changing, "/v1/counters/only_pending/daily", 404)
    pending = rows(changing, "/v1/counters/only_pending/daily", include_pending="true")
    assert pending == [{"day": "2026-10-18", "total": 3}]
    assert document(changing, "/v1/counters")["counters"] == 2
    found = rows(changing, "/v1/counters", include_pending="true")
    assert [(row["counter"], row["total"]) for row in found] == [
        ("clicks", -4),
        ("only_pending", 3),
        ("views", 113),
    ]


def test_days_that_are_in_months(changing: Web) -> None:
    old = date(2024, 5, 17)
    count(changing.producer, (old, "/c", 4))
    changing.apply()
    changing.store.counters.set("views", keep="day=400d")
    roll_up(partial(open_tables, changing.options.mysql_url), rows=100)
    answer = get(changing, f"{VIEWS}/daily")
    up_to = answer.json()["rolled_up_to"]
    assert answer.headers["Countersink-Rolled-Up-To"] == up_to
    assert up_to > old.isoformat()
    assert sum(row["total"] for row in answer.json()["rows"]) == 13
    assert rows(changing, f"{VIEWS}/totals", by="month")[0] == {"month": "2024-05", "total": 4}
    (week, *_) = rows(changing, f"{VIEWS}/totals", by="week", **{"from": str(DAYS[0][0])})
    assert week.keys() == {"week", "total"}
    assert week["week"] == DAYS[0][0].strftime("%G-W%V")
    cut = get(changing, f"{VIEWS}/top", **{"from": old.isoformat()})
    assert (cut.status_code, cut.json()["rolled_up_to"]) == (422, up_to)


NO_QUESTIONS = [
    ("daily", "form=csv", "no such parameter"),
    ("daily", "by=day", "no such parameter"),
    ("daily", "from=2026-10-01&from=2026-10-02", "once only"),
    ("daily", "from=yesterday", "2026-11-21"),
    ("daily", "from=0001-01-01&to=9999-12-31", "100,000"),
    ("daily", "time_zone=../../etc/passwd", "IANA name"),
    ("daily", "format=xml", "json, csv"),
    ("daily", "spreadsheet=true", "format=csv"),
    ("daily", "format=csv&spreadsheet=1", "true or false"),
    ("daily", "include_pending=1", "true or false"),
    ("top", "n=0", "from 1"),
    ("top", "n=%D9%A3", "from 1"),  # a digit, but none of ours
    ("top", f"n={'9' * 5000}", "from 1"),
    ("totals", "by=year", "day, week, hour"),
    ("totals", "top=3&by=day", "by=key"),
    ("totals", "exclude_prefix=", "all keys"),
    ("daily", f"prefix={'x' * 256}", "255"),
    ("top", "&".join(f"exclude_key={number}" for number in range(401)), "400 times at most"),
    ("totals", "&".join(f"key={number}" for number in range(601)), "at most 600"),
]
"""(path, query, what the answer says)."""


def test_what_is_no_question_is_refused(filled: Web) -> None:
    for path, query, why in NO_QUESTIONS:
        assert why in refused(filled, f"{VIEWS}/{path}?{query}", 422), query


def test_counters_that_nobody_knows(filled: Web) -> None:
    for path in ("", "/daily", "/hourly", "/top", "/totals"):
        assert "ever counted" in refused(filled, f"/v1/counters/nothing{path}", 404)
    for name in ("a b", "a" * 65, "'; --", "ä", "views\n"):
        assert "no such counter" in refused(filled, f"/v1/counters/{quote(name)}/daily", 404)


def test_an_answer_has_so_many_rows_at_most(filled: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_NAMES", 2)
    answer = get(filled, f"{VIEWS}/totals", by="key")
    assert answer.json()["truncated"] is True
    assert answer.headers["Countersink-Truncated"] == "true"
    assert [row["key"] for row in answer.json()["rows"]] == ["/a", "/c"]
    assert document(filled, f"{VIEWS}/totals", by="key", search="/b")["truncated"] is False
    assert document(filled, "/v1/totals")["truncated"] is False
    monkeypatch.setattr(routes, "MAX_ROWS", 4)
    assert len(rows(filled, f"{VIEWS}/daily")) == 4
    assert "4 rows" in refused(filled, "/v1/totals", 422, by="day")
    # Of more counters than that the largest are told all the same.
    monkeypatch.setattr(routes, "MAX_ROWS", 1)
    assert rows(filled, "/v1/totals", top=1) == [{"counter": "views", "total": 13}]
    assert "1 rows" in refused(filled, "/v1/totals", 422)


def test_a_key_sees_its_own_counters_alone(changing: Web) -> None:
    key = changing.key("read", counters=["view*"])
    asked = partial(changing.ask, "GET", key=key)
    # Nor is it told whether there is such a counter.
    assert asked("/v1/counters/nothing/daily").status_code == 403
    assert asked("/v1/totals").json()["rows"] == [{"counter": "views", "total": 13}]
    found = asked("/v1/counters").json()
    assert [row["counter"] for row in found["rows"]] == ["views"]
    assert found["counters"] == 1
    assert asked("/v1/export/openmetrics?counter=views&counter=clicks").status_code == 403


def test_what_keys_have_in_other_days_stands_beside_them(web: Web) -> None:
    first = date(2026, 10, 1)
    week = timedelta(days=7)
    count(web.producer, (first, "a", 2), (first, "gone", 5))
    count(web.producer, (first + week, "a", 7), (first + week, "new", 3))
    web.apply()
    path = "/v1/counters/views/top"
    days = (f"{first}..{first + week - timedelta(days=1)}", f"{first}..{first + week}")
    asked = f"{path}?from={first + week}&to={first + 2 * week}&also={days[0]}&also={days[1]}"
    assert rows(web, asked) == [
        {"key": "a", "total": 7, "also": [2, 9]},
        {"key": "new", "total": 3, "also": [0, 3]},
    ]
    times = f"{first}T00:00%2B01:00..{first + week}T13:00%2B01:00"  # a day begins in the middle
    found = [row["also"] for row in rows(web, f"{asked}&also={times}")]
    assert found == [[2, 9, None], [0, 3, None]]
    web.store.counters.set("views", resolution="hour")
    web.producer.increment("views", "a", 50, at=noon(first + 2 * week))
    web.apply()
    hours = [f"{first + 2 * week}T{hour}Z" for hour in ("11:00", "12:00", "13:00")]
    ranges = "".join(f"&also={start}..{end}" for start, end in pairwise(hours))
    (row, _) = rows(web, f"{asked}{ranges}")
    assert row["also"] == [2, 9, 0, 50]
    assert "also" not in rows(web, path)[0]
    for wrong in (
        "2026-10-01",
        "2026-10-02..2026-10-01",
        "2026-10-01..",
        "x..y",
        "2026-10-01T08:00Z..2026-10-01T08:00Z",
    ):
        assert "give two days" in refused(web, path, 422, also=wrong)
    assert "format=json" in refused(web, path, 422, also=days[0], format="csv")


@pytest.fixture
def broken_down(web: Web) -> Web:
    """A counter with dimensions, two breakdowns and counts."""
    breakdowns = [["country"], ["page", "country"]]
    web.store.counters.set(
        "visits", dimensions=["page", "country", "device"], breakdowns=breakdowns
    )
    for page, country, amount in (
        ("/home", "DE", 5),
        ("/home", "AT", 3),
        ("/about", "DE", 4),
        ("", "DE", 1),
    ):
        web.producer.increment("visits", {"page": page, "country": country}, amount)
    web.apply()
    return web


def test_what_values_have_in_other_days_stands_beside_them(broken_down: Web) -> None:
    first = date(2026, 10, 1)
    for page, country, amount in (("/home", "DE", 2), ("/home", "AT", 6), ("/a", "DE", 7)):
        values = {"page": page, "country": country}
        broken_down.producer.increment("visits", values, amount, at=noon(first))
    broken_down.apply()
    asked = {"from": first + timedelta(days=1), "also": f"{first}..{first}"}
    assert rows(broken_down, f"{VISITS}/top", by="page", n=2, where="country=DE", **asked) == [
        {"page": "/home", "total": 5, "also": [2]},
        {"page": "/about", "total": 4, "also": [0]},
    ]
    both = rows(broken_down, f"{VISITS}/top", by="page,country", n=1, **asked)
    assert both == [{"page": "/home", "country": "DE", "total": 5, "also": [2]}]
    assert "keys or dimensions" in refused(broken_down, f"{VISITS}/top", 422, by="counter", **asked)


VISITS = "/v1/counters/visits"


def test_totals_by_dimensions_and_questions_that_are_none(broken_down: Web) -> None:
    ask = partial(rows, broken_down)
    assert ask(f"{VISITS}/totals", by="country") == [
        {"country": "DE", "total": 10},
        {"country": "AT", "total": 3},
    ]
    assert ask(f"{VISITS}/top", by="page", n=1) == [{"page": "/home", "total": 8}]
    assert ask(f"{VISITS}/totals", by="total", where=["country=DE", "page="]) == [{"total": 1}]
    questions: tuple[tuple[dict[str, Any], str], ...] = (
        ({"by": "device"}, "--breakdowns country page,country device"),
        ({"by": "colour"}, "no dimension 'colour'"),
        ({"by": "page", "key": "/a"}, "not by both"),
        ({"by": "key", "where": "page=/a"}, "no keys"),
        ({"by": "page,page"}, "once"),
        ({"by": "Page"}, "a-z"),
        ({"where": "page"}, "country=DE"),
        ({"where": ["page=a", "page=b"]}, "once"),
    )
    for asked, message in questions:
        assert message in refused(broken_down, f"{VISITS}/totals", 422, **asked), asked

"""`/v1/dead`: dead letters by HTTP."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import product
from typing import Any, Final

import requests

from countersink.store.dead import DeadRow, insert
from countersink.store.tables import open_tables
from countersink.stream.entry import new_entry_id
from countersink.stream.names import stream_key
from countersink.web.dead import SHOWN_BYTES
from tests.web.serving import Web

BAD_CHOICES: Final[tuple[Any, ...]] = (
    {},
    [],
    None,
    {"all": False},
    {"all": True, "reason": "too_old"},
    {"refs": []},
    {"refs": ["' OR 1=1 --"]},
    {"refs": ["0" * 32 + ":-2"]},
    {"refs": ["0" * 32] * 1_001},
    {"reason": ""},
    {"reason": "x" * 65},
    {"reason": "ä"},
    {"everything": True},
    {"all": 1},
)


def set_aside(web: Web, key: str, *, reason: str = "out_of_range", payload: bytes = b"") -> str:
    """A dead letter worth 7; its ref."""
    now = int(datetime.now(UTC).timestamp() * 1000)
    row = payload or json.dumps(["orders", key, now // 60_000, 7]).encode()
    letter = DeadRow(bytes.fromhex(new_entry_id(now)), 0, stream_key(0), now, reason, "why", row)
    with open_tables(web.options.mysql_url) as session, session.transaction():
        insert(session, [letter])
    return letter.ref


def listed(web: Web, **query: str) -> Any:
    answer = requests.get(f"{web.url}/v1/dead", params=query, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(web: Web, action: str, body: Any, **headers: str) -> requests.Response:
    return requests.post(f"{web.url}/v1/dead/{action}", json=body, headers=headers, timeout=20)


def test_they_are_listed_with_their_reasons(web: Web) -> None:
    assert listed(web) == {"rows": [], "by_reason": {}, "total": 0}
    ref = set_aside(web, "a")
    old = set_aside(web, "b", reason="too_old")
    found = listed(web)
    assert found["by_reason"] == {"out_of_range": 1, "too_old": 1}
    assert found["total"] == 2
    assert {row["ref"] for row in found["rows"]} == {ref, old}
    assert [row["ref"] for row in listed(web, reason="too_old")["rows"]] == [old]
    assert len(listed(web, limit="1")["rows"]) == 1
    (row,) = listed(web, reason="out_of_range")["rows"]
    assert json.loads(row["payload"])[1] == "a"
    assert row["created"].endswith("Z")


def test_a_long_payload_is_shown_in_part(web: Web) -> None:
    set_aside(web, "a", payload=b'["' + b"\xff" + b"x" * 50_000)
    (row,) = listed(web)["rows"]
    assert len(row["payload"]) == SHOWN_BYTES
    assert row["payload"].startswith('["\\xff')
    assert row["payload_characters"] == 50_006


def test_a_retry_counts_once_however_often_it_is_asked_for(web: Web) -> None:
    refs = [set_aside(web, key) for key in ("a", "b", "c")]
    first = post(web, "retry", {"refs": refs[:2]})
    assert first.json() == {"retried": 2, "failed": 0, "rows": 2, "left_out": 0}
    again = post(web, "retry", {"refs": refs[:2]})
    assert again.json() == {"retried": 0, "failed": 0, "rows": 0, "left_out": 0}
    assert web.store.totals.total("orders") == 14
    assert [row["ref"] for row in listed(web)["rows"]] == [refs[2]]


def test_all_leaves_out_what_may_be_counted_already(web: Web) -> None:
    set_aside(web, "a")
    set_aside(web, "b", reason="too_old")
    assert post(web, "retry", {"all": True}).json() == {
        "retried": 1,
        "failed": 0,
        "rows": 1,
        "left_out": 1,
    }
    assert post(web, "retry", {"reason": "too_old"}).json()["retried"] == 1
    assert web.store.totals.total("orders") == 14


def test_what_is_dropped_is_never_counted(web: Web) -> None:
    ref = set_aside(web, "a")
    set_aside(web, "b")
    assert post(web, "drop", {"refs": [ref]}).json() == {"dropped": 1}
    assert post(web, "drop", {"all": True}).json() == {"dropped": 1}
    assert listed(web)["total"] == 0
    assert web.store.counters.list() == []


def test_a_bad_choice_does_nothing(web: Web) -> None:
    set_aside(web, "a")
    for action, body in product(("retry", "drop"), BAD_CHOICES):
        answer = post(web, action, body)
        assert answer.status_code == 422, body
        assert answer.headers["Content-Type"] == "application/problem+json"
    assert listed(web)["total"] == 1


def test_a_bad_question_is_refused(web: Web) -> None:
    for query in ("limit=0", "limit=501", "limit=1&limit=2", "reason=", "x=1"):
        assert requests.get(f"{web.url}/v1/dead?{query}", timeout=20).status_code == 422, query


def test_who_may_do_what(web: Web) -> None:
    set_aside(web, "a")
    read, admin = web.key("read", name="r"), web.key("admin", name="a")
    some = web.key("admin", name="s", counters=["votes"])
    for key, status in ((None, 401), (read, 403), (some, 403), (admin, 200)):
        headers = {} if key is None else {"X-API-Key": key}
        assert post(web, "drop", {"reason": "nothing"}, **headers).status_code == status
        assert post(web, "retry", {"reason": "nothing"}, **headers).status_code == status
    # What could not be counted may be of any counter.
    answer = requests.get(f"{web.url}/v1/dead", headers={"X-API-Key": some}, timeout=20)
    assert answer.status_code == 403
    answer = requests.get(f"{web.url}/v1/dead", headers={"X-API-Key": read}, timeout=20)
    assert answer.json()["total"] == 1


def test_another_site_cannot_make_a_browser_drop_them(web: Web) -> None:
    set_aside(web, "a")
    answer = post(web, "drop", {"all": True}, **{"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403
    assert listed(web)["total"] == 1

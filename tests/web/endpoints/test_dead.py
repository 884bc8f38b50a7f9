"""`/v1/dead`: dead letters by HTTP."""

import json
from datetime import UTC, datetime
from itertools import product
from typing import Any, Final

import requests

from countersink.counting.apply.dead import DeadRow, insert
from countersink.database.sessions import open_tables
from countersink.runtime.dead_letter import DeadReason
from countersink.stream.entry import new_entry_id
from countersink.stream.names import stream_key
from tests.web.serving import Web

BAD_CHOICES: Final[tuple[Any, ...]] = (
    {},
    [],
    {"all": False},
    {"all": True, "reason": "too_old"},
    {"refs": []},
    {"refs": ["' OR 1=1 --"]},
    {"refs": ["0" * 32] * 1_001},
    {"reason": ""},
    {"reason": "x" * 65},
    {"reason": "of_no_letter", "most": 9},
    {"most": 1},
    {"refs": ["0" * 32], "most": 1},
    *({"all": True, "most": wrong} for wrong in (None, -1, 1.5, "1", True, 2**63)),
)


def set_aside(web: Web, key: str, *, reason: str = "bad_sketch", payload: bytes = b"") -> str:
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
    assert listed(web) == {
        "rows": [],
        "by_reason": {},
        "reasons": {},
        "total": 0,
        "not_kept": {},
    }
    ref = set_aside(web, "a")
    old = set_aside(web, "b", reason="too_old")
    found = listed(web)
    assert found["by_reason"] == {"bad_sketch": 1, "too_old": 1}
    assert found["reasons"] == {
        "bad_sketch": DeadReason.BAD_SKETCH.document(),
        "too_old": DeadReason.TOO_OLD.document(),
    }
    assert found["total"] == 2
    assert {row["ref"] for row in found["rows"]} == {ref, old}
    assert [row["ref"] for row in listed(web, reason="too_old")["rows"]] == [old]
    assert len(listed(web, limit="1")["rows"]) == 1
    (row,) = listed(web, reason="bad_sketch")["rows"]
    assert json.loads(row["payload"])[1] == "a"
    assert row["created"].endswith("Z")


def test_a_retry_counts_once_however_often_it_is_asked_for(web: Web) -> None:
    refs = [set_aside(web, key) for key in ("a", "b", "c")]
    first = post(web, "retry", {"refs": refs[:2]})
    assert first.json() == {"retried": 2, "failed": 0, "rows": 2, "left_out": 0}
    again = post(web, "retry", {"refs": refs[:2]})
    assert again.json() == {"retried": 0, "failed": 0, "rows": 0, "left_out": 0}
    assert web.store.totals.total("orders") == 14
    assert [row["ref"] for row in listed(web)["rows"]] == [refs[2]]


def test_what_is_dropped_is_never_counted(web: Web) -> None:
    ref = set_aside(web, "a")
    set_aside(web, "b")
    assert post(web, "drop", {"refs": [ref]}).json() == {"dropped": 1}
    assert post(web, "drop", {"all": True}).json() == {"dropped": 1}
    assert listed(web)["total"] == 0
    assert web.store.counters.list() == []


def test_more_than_were_seen_are_not_touched(web: Web) -> None:
    for reason in ("bad_sketch", "bad_sketch", "bad_key"):
        set_aside(web, "a", reason=reason)
    choices: tuple[tuple[dict[str, Any], int], ...] = (
        ({"reason": "bad_sketch"}, 1),
        ({"all": True}, 2),
    )
    for action, (which, most) in product(("retry", "drop"), choices):
        answer = post(web, action, which | {"most": most})
        assert answer.status_code == 409
        assert f"has {most + 1} dead letter" in answer.json()["detail"]
    assert listed(web)["total"] == 3
    assert post(web, "retry", {"reason": "bad_sketch", "most": 2}).json()["retried"] == 2
    assert post(web, "drop", {"all": True, "most": 1}).json() == {"dropped": 1}


def test_a_reason_that_is_none_is_refused_by_name(web: Web) -> None:
    set_aside(web, "a", reason="of_a_newer_version")
    for action in ("retry", "drop"):
        said = post(web, action, {"reason": "bad_sketsh"}).json()["detail"]
        assert said == "there is no reason 'bad_sketsh': did you mean bad_sketch?"
        said = post(web, action, {"reason": "zzz"}).json()["detail"]
        assert "the reasons are bad_amount, bad_counter" in said
        assert ", of_a_newer_version, " in said
        assert post(web, action, {"reason": "bad_sketch"}).status_code == 200
    assert post(web, "retry", {"reason": "of_a_newer_version"}).json()["retried"] == 1


def test_what_is_refused_does_nothing(web: Web) -> None:
    set_aside(web, "a")
    for action in ("retry", "drop"):
        for body in BAD_CHOICES:
            answer = post(web, action, body)
            assert answer.status_code == (400 if body is None else 422), body
            assert answer.headers["Content-Type"] == "application/problem+json"
        for text in ("", "{", b"\xff"):
            answer = requests.post(f"{web.url}/v1/dead/{action}", data=text, timeout=20)
            assert answer.status_code == 400, text
        twice = '{"reason": "bad_key", "reason": "bad_sketch"}'
        answer = requests.post(f"{web.url}/v1/dead/{action}", data=twice, timeout=20)
        assert (answer.status_code, "twice" in answer.text) == (422, True)
        packed = b'{"refs":[' + b",".join([b"{}"] * 300_000) + b"]}"
        answer = requests.post(f"{web.url}/v1/dead/{action}", data=packed, timeout=20)
        assert answer.status_code == 413
        # A bound that is given in the wrong place is no bound.
        assert post(web, f"{action}?most=0", {"all": True}).status_code == 422, action
    for query in ("limit=0", "limit=501", "limit=1&limit=2", "reason=", "x=1"):
        assert requests.get(f"{web.url}/v1/dead?{query}", timeout=20).status_code == 422, query
    # Nor can another site make a browser drop them.
    answer = post(web, "drop", {"all": True}, **{"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403
    assert listed(web)["total"] == 1

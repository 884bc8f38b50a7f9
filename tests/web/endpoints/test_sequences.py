"""`/v1/sequences/…`: numbers that are handed out once."""

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any
from urllib.parse import quote

import pytest
import requests

from countersink.database.connection import connect
from countersink.web.endpoints import sequences
from tests.support.proxies.http_proxy import HttpProxy
from tests.support.proxies.mysql_proxy import MySQLProxy
from tests.support.proxies.rules import Deed, Phase
from tests.web.serving import Web, serving


def take(web: Web, name: str, status: int = 200, **asked: Any) -> Any:
    """The next of a sequence."""
    url = f"{web.url}/v1/sequences/{quote(name, safe='/')}/next"
    answer = requests.post(url, json=asked or None, timeout=30)
    assert answer.status_code == status, answer.text
    return answer.json()


def peek(web: Web, name: str) -> Any:
    """The last value."""
    answer = requests.get(f"{web.url}/v1/sequences/{quote(name, safe='/')}", timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()["value"]


def test_everybody_gets_a_number_of_their_own(shared: Web) -> None:
    with ThreadPoolExecutor(8) as pool:
        values = [one["value"] for one in pool.map(lambda _: take(shared, "invoice"), range(60))]
    assert sorted(values) == list(range(1, 61))
    assert peek(shared, "invoice") == 60
    assert peek(shared, "unknown") is None


def test_steps_starts_and_blocks(shared: Web) -> None:
    assert take(shared, "by", step=10, start=-5) == {"name": "by", "value": -5}
    assert take(shared, "by", step=10) == {"name": "by", "value": 5}
    assert take(shared, "by", count=3) == {"name": "by", "first": 6, "last": 8, "step": 1}
    assert take(shared, "by", count=2, step=-4)["last"] == 0
    assert take(shared, "by", step=None) == {"name": "by", "value": 1}
    assert take(shared, "big", start=2**63 - 1)["value"] == 2**63 - 1


def test_names_may_hold_anything(shared: Web) -> None:
    for name in ("", "a/b", "next", "a/next", "ä b", "日本", "%2f"):
        assert take(shared, name) == {"name": name, "value": 1}
        assert peek(shared, name) == 1
    take(shared, "x" * 256, 422)


def test_what_cannot_be_is_told(shared: Web) -> None:
    take(shared, "end", start=2**63 - 1)
    assert "limits" in take(shared, "end", 409)["detail"]
    take(shared, "end", 409, count=5)
    for asked in (
        {"step": 0},
        {"step": 2**63},
        {"step": 1.5},
        {"count": 0},
        {"count": 1_000_001},
        {"steps": 1},
        {"step": True},
    ):
        take(shared, "refused", 422, **asked)
    url = f"{shared.url}/v1/sequences/refused/next"
    headers = {"Content-Type": "application/json"}
    wrong = ((b"{", 400), (b"[]", 422), (b"[" * 10_000, 422), (b"\xff", 400), (b" " * 16_385, 413))
    for body, status in wrong:
        answer = requests.post(url, data=body, headers=headers, timeout=20)
        assert answer.status_code == status, body[:10]
    answer = requests.post(url, data=b'{"step":1,"step":2}', headers=headers, timeout=20)
    assert (answer.status_code, "twice" in answer.text) == (422, True)
    assert peek(shared, "refused") is None, "nothing was handed out"
    answer = requests.post(url, data=b'{"start":7.0}', headers=headers, timeout=20)
    assert answer.json()["value"] == 7, "a whole number is one however it is written"


def test_a_retry_takes_another_number_and_none_is_given_twice(shared: Web) -> None:
    with HttpProxy.to(int(shared.url.rpartition(":")[2])) as proxy:
        proxy.when("POST /v1/sequences/retried/next", Phase.AFTER, Deed.CUT)
        values: list[int] = []
        while len(values) < 3:
            try:
                answer = requests.post(f"{proxy.url}/v1/sequences/retried/next", timeout=20)
            except requests.ConnectionError:
                continue
            values.append(answer.json()["value"])
    assert values == [2, 3, 4]


def test_an_answer_that_mysql_could_not_give_is_said_to_be_uncertain(
    redis_url: str, mysql_url: str
) -> None:
    with MySQLProxy.to(mysql_url) as proxy, serving(redis_url, proxy.url(mysql_url)) as web:
        assert take(web, "a")["value"] == 1
        rule = proxy.when(
            "*",
            Phase.AFTER,
            Deed.CUT,
            where=lambda request, _: "INSERT INTO" in request.text and "sequence" in request.text,
        )
        problem = take(web, "a", 503)
        assert rule.acted == 1
        assert "ask for the next one" in problem["detail"]
        assert take(web, "a")["value"] == 3


def test_a_locked_sequence_holds_up_nothing_else(
    redis_url: str, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "LOCK_WAIT_S", 60)  # until the end of this test
    monkeypatch.setattr(sequences, "PLACE_WAIT_S", 0.2)
    others = "/v1/links", "/v1/dead", "/v1/system", "/v1/notes?from=2026-01-01&to=2026-01-02"
    held = ["held", *(f"held{number}" for number in range(9))]
    with serving(redis_url, mysql_url, threads=4) as web, connect(mysql_url) as session:
        for name in (*held, "free"):
            assert take(web, name)["value"] == 1
        with ThreadPoolExecutor(40) as pool:
            with session.transaction():
                session.query("SELECT 1 FROM sequence WHERE name LIKE 'held%%' FOR UPDATE", ())
                more = [
                    pool.submit(requests.post, f"{web.url}/v1/sequences/{name}/next")
                    for name in held[1:]
                    for _ in range(2)
                ]
                url = f"{web.url}/v1/sequences/held/next"
                asked = [pool.submit(requests.post, url) for _ in range(8)]
                waiting = set(asked)
                while len(waiting) > sequences.PLACES:
                    _, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                assert take(web, "free")["value"] == 2
                for path in others:
                    assert web.ask("GET", path).status_code == 200, path
                assert not any(each.done() for each in waiting)
            answers = [each.result() for each in asked]
            assert {each.result().status_code for each in more} == {200}
        assert sorted(each.status_code for each in answers) == [200] * 2 + [503] * 6
        assert peek(web, "held") == 3


def test_a_sequence_that_stays_locked_is_answered_503(redis_url: str, mysql_url: str) -> None:
    with serving(redis_url, mysql_url) as web, connect(mysql_url) as session:
        assert take(web, "stays")["value"] == 1
        with session.transaction():
            session.query("SELECT 1 FROM sequence WHERE name = 'stays' FOR UPDATE")
            take(web, "stays", 503)
        assert take(web, "stays")["value"] == 2

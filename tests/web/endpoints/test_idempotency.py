"""Requests that are sent again: counted once, whatever was lost on the way, and whoever answers."""

import http.client
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import requests

from countersink.web.http import bodies
from countersink.web.http.bodies import DIGEST_DAYS
from tests.support.processes import Children
from tests.support.proxies.http_proxy import HttpProxy
from tests.support.proxies.redis_proxy import RedisProxy
from tests.support.proxies.rules import Deed, Phase
from tests.web.process import WebProcess
from tests.web.serving import Web, serving

PATH = "/v1/increments"
POST = f"POST {PATH}"
BATCH = [{"counter": "sales", "key": f"book-{n}", "amount": n} for n in range(1, 101)]
SUM = 5_050


def post(url: str, body: Any, key: str | None = None, **query: str) -> requests.Response:
    """One attempt, on a connection of its own."""
    headers = {} if key is None else {"Idempotency-Key": key}
    return requests.post(f"{url}{PATH}", json=body, headers=headers, params=query, timeout=30)


def until_answered(send: Callable[[], requests.Response]) -> requests.Response:
    """What a client does: sends again until there is an answer."""
    while True:
        try:
            return send()
        except requests.ConnectionError:
            continue


def at_once(attempts: int, attempt: Callable[[int], requests.Response]) -> list[int]:
    """The statuses of so many attempts that begin at the same time."""
    begin = threading.Barrier(attempts)

    def one(number: int) -> int:
        begin.wait(30)
        return attempt(number).status_code

    with ThreadPoolExecutor(attempts) as pool:
        return list(pool.map(one, range(attempts)))


@pytest.fixture
def proxy(web: Web) -> Iterator[HttpProxy]:
    """A way to the server on which answers get lost."""
    with HttpProxy.to(int(web.url.rpartition(":")[2])) as between:
        yield between


@pytest.fixture
def two(
    redis_url: str, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Web, Web]]:
    """Two web processes' worth of servers beside each other."""
    monkeypatch.setattr(bodies, "REDIS_WAIT_S", 60.0)  # however busy the machine is
    with serving(redis_url, mysql_url) as one, serving(redis_url, mysql_url) as other:
        yield one, other


@pytest.mark.parametrize("phase", [Phase.BEFORE, Phase.AFTER])
def test_a_request_whose_reply_was_cut_counts_once(
    web: Web, proxy: HttpProxy, phase: Phase
) -> None:
    rule = proxy.when(POST, phase, Deed.CUT, times=3)
    for number in range(5):  # the first 4 attempts meet 3 cuts, the rest none
        answer = until_answered(partial(post, proxy.url, BATCH, f"order-{number}"))
        assert (answer.status_code, answer.json()) == (202, {"accepted": 100})
    assert rule.acted == 3
    assert proxy.counts[POST] == 8
    web.apply()
    assert web.store.totals.total("sales") == 5 * SUM


def test_ids_of_increments_count_each_of_them_once(web: Web, proxy: HttpProxy) -> None:
    batch = [{**item, "id": f"sale-{n}"} for n, item in enumerate(BATCH)]
    proxy.when(POST, Phase.AFTER, Deed.CUT, times=2)
    for body in (batch, batch[:50], batch[7]):  # grouped otherwise, too
        assert until_answered(partial(post, proxy.url, body)).status_code == 202
    web.apply()
    assert web.store.totals.total("sales") == SUM


def test_without_a_name_every_request_that_arrives_counts(web: Web, proxy: HttpProxy) -> None:
    proxy.when(POST, Phase.AFTER, Deed.CUT)
    assert until_answered(lambda: post(proxy.url, BATCH)).status_code == 202
    web.apply()
    assert web.store.totals.total("sales") == 2 * SUM, "which is what the names are for"


def test_many_send_the_same_at_once_to_two_servers(two: tuple[Web, Web]) -> None:
    answers = at_once(24, lambda number: post(two[number % 2].url, BATCH, f"order-{number % 3}"))
    assert set(answers) == {202}
    for web in two:
        web.apply()
    assert two[0].store.totals.total("sales") == 3 * SUM


def test_another_body_under_the_same_name_is_409_in_the_queue_and_after_it(
    two: tuple[Web, Web],
) -> None:
    others = ({"counter": "sales", "key": "x", "amount": 7}, BATCH[:-1], BATCH[::-1])
    assert post(two[0].url, BATCH, "mine").status_code == 202
    for _ in ("in the queue", "applied"):
        for web in two:
            for other in others:
                answer = post(web.url, other, "mine")
                assert answer.status_code == 409
                assert "another body" in answer.json()["detail"]
            assert post(web.url, BATCH, "mine").status_code == 202
            assert post(web.url, others[0], "another").status_code == 202
            web.apply()
    assert two[0].store.totals.total("sales") == SUM + 7


def test_of_different_bodies_at_once_one_is_accepted(two: tuple[Web, Web]) -> None:
    def attempt(number: int) -> requests.Response:
        return post(two[number % 2].url, {"counter": "sales", "amount": 2**number}, "mine")

    answers = at_once(12, attempt)
    assert sorted(answers) == [202, *[409] * 11]
    for web in two:
        web.apply()
    assert two[0].store.totals.total("sales") == 2 ** answers.index(202)


def test_the_same_increments_written_otherwise_are_the_same_body(web: Web) -> None:
    at = "2026-11-21T08:00:00Z"
    spellings: tuple[Any, ...] = (
        {"counter": "sales", "key": {"a": "1", "b": "2"}, "at": at},
        [{"at": "2026-11-21T09:00:00+01:00", "key": {"b": "2", "a": "1"}, "counter": "sales"}],
        [{"counter": "sales", "key": {"a": "1", "b": "2"}, "amount": 1, "at": 1795248000}],
    )
    for body in spellings:
        assert post(web.url, body, "mine").status_code == 202
    body = {"counter": "sales"}
    for same in (body, {**body, "key": {}}, {**body, "key": ""}):
        assert post(web.url, same, "none").status_code == 202
    without_time = {name: value for name, value in spellings[0].items() if name != "at"}
    assert post(web.url, without_time, "mine").status_code == 409


def test_a_body_that_was_refused_leaves_its_name_free(web: Web) -> None:
    assert post(web.url, {"counter": "sales", "amount": 2**63}, "mine").status_code == 422
    assert post(web.url, {"counter": "not a name"}, "mine").status_code == 422
    assert post(web.url, {"counter": "sales"}, "mine").status_code == 202
    assert post(web.url, {"counter": "not a name"}, "mine").status_code == 409


def test_a_name_is_compared_for_as_many_days_as_its_guard_is_kept(web: Web) -> None:
    assert post(web.url, {"counter": "sales"}, "mine").status_code == 202
    client = web.services.redis
    (key,) = client.scan_iter("{countersink:bodies:*")
    name, _, today = key.decode().rpartition(":")
    assert (DIGEST_DAYS - 1) * 86_400 < client.ttl(key) <= (DIGEST_DAYS + 1) * 86_400
    # The clock of the server that had it first may be ahead.
    for day in (int(today) + 1, int(today) - DIGEST_DAYS):
        client.rename(key, f"{name}:{day}")
        for _ in range(2):
            assert post(web.url, {"counter": "sales", "amount": 2}, "mine").status_code == 409
            assert post(web.url, {"counter": "sales"}, "mine").status_code == 202
        client.delete(f"{name}:{day}")  # it is kept for today by now
    client.rename(key, f"{name}:{int(today) - DIGEST_DAYS - 1}")
    assert post(web.url, {"counter": "sales", "amount": 2}, "mine").status_code == 202


@pytest.mark.parametrize("deed", [Deed.HOLD, Deed.ERROR, Deed.CUT])
def test_without_an_answer_of_redis_nothing_is_compared_and_nothing_lost(
    redis_url: str, mysql_url: str, deed: Deed
) -> None:
    with RedisProxy.to(redis_url) as proxy, serving(proxy.url(redis_url), mysql_url) as web:
        proxy.when("HSETNX", Phase.BEFORE, deed, times=0)
        for amount in (1, 2):
            assert post(web.url, {"counter": "sales", "amount": amount}, "mine").status_code == 202
        proxy.forget()
        web.apply()
        assert web.store.totals.total("sales") == 1


def test_a_name_counts_at_most_once_where_its_rows_are_alike(web: Web) -> None:
    huge = [{"counter": "big", "key": "k", "amount": 10**9, "at": 1_764_000_000}] * 3
    for _ in range(2):
        assert post(web.url, [*huge, *BATCH], "mine").ok
        web.apply()
    assert web.store.totals.total("sales") == SUM
    assert web.store.totals.total("big") == 3 * 10**9


def test_both_kinds_of_names_at_once_are_refused(shared: Web) -> None:
    answer = post(shared.url, [{"counter": "sales"}, {"counter": "sales", "id": "1"}], "mine")
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"index": 1, "detail": "it has an id, and so has the batch: give either"}
    ]


def test_names_that_cannot_be_are_refused(shared: Web) -> None:
    accepted = shared.producer.stats().accepted
    port = int(shared.url.rpartition(":")[2])
    body = b'{"counter":"sales"}'
    for name in ("", "ä", "x" * 256, "a\tb"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", PATH, body, {"Idempotency-Key": name.encode("latin-1")})
        assert connection.getresponse().status == 422, name
        connection.close()
    assert shared.producer.stats().accepted == accepted


def test_two_keys_names_never_meet(redis_url: str, mysql_url: str) -> None:
    with serving(redis_url, mysql_url) as web:
        for key in [web.key("ingest", name=name) for name in ("one", "other")] * 2:
            requests_of_each: tuple[tuple[dict[str, str], Any], ...] = (
                ({"Idempotency-Key": "mine"}, BATCH),
                ({}, {"counter": "sales", "id": "mine", "amount": 10_000}),
            )
            for name, body in requests_of_each:
                answer = web.ask("POST", PATH, key, json=body, headers=name)
                assert answer.status_code == 202, answer.text
        web.apply()
        assert web.store.totals.total("sales") == 2 * (SUM + 10_000)


@pytest.mark.parametrize("phase", [Phase.BEFORE, Phase.AFTER])
def test_a_killed_server_leaves_nothing_twice_and_what_it_called_stored_is_there(
    redis_url: str, mysql_url: str, phase: Phase
) -> None:
    with Children() as children, RedisProxy.to(redis_url) as proxy:
        process = WebProcess.start(children, proxy.url(redis_url), mysql_url, "--without-keys")
        child, url = process.child, process.url
        assert post(url, BATCH, wait="stored").json()["state"] == "stored"
        held = proxy.when("XADD", phase, Deed.HOLD)
        with ThreadPoolExecutor(1) as pool:
            lost = pool.submit(post, url, BATCH, "order-1", wait="stored")
            assert held.reached.wait(30)  # Redis has it, or is about to get it; nobody was told
            child.kill()
            with pytest.raises(requests.ConnectionError):
                lost.result(30)
        proxy.forget()
        with serving(redis_url, mysql_url) as web:
            answer = post(web.url, BATCH, "order-1", wait="stored")
            assert (answer.status_code, answer.json()["state"]) == (200, "stored")
            web.apply()
            assert web.store.totals.total("sales") == 2 * SUM


def test_retries_days_apart_are_told_from_each_other_by_the_name_alone(web: Web) -> None:
    """The event's own time is no part of the name."""
    now = datetime.now(UTC)
    for days in (0, 1):
        at = (now - timedelta(days=days)).isoformat()
        assert post(web.url, {"counter": "sales", "at": at, "id": "event"}).ok
        web.apply()
    assert web.store.totals.total("sales") == 1

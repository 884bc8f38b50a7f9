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
def two(redis_url: str, mysql_url: str) -> Iterator[tuple[Web, Web]]:
    """Two web processes' worth of servers beside each other."""
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


def test_of_different_bodies_at_once_one_is_counted(two: tuple[Web, Web]) -> None:
    def attempt(number: int) -> requests.Response:
        return post(two[number % 2].url, {"counter": "sales", "amount": 2**number}, "mine")

    assert at_once(12, attempt) == [202] * 12
    for web in two:
        web.apply()
    assert two[0].store.totals.total("sales") in {2**number for number in range(12)}


def test_a_body_that_was_refused_leaves_its_name_free(web: Web) -> None:
    assert post(web.url, {"counter": "sales", "amount": 2**63}, "mine").status_code == 422
    assert post(web.url, {"counter": "not a name"}, "mine").status_code == 422
    assert post(web.url, {"counter": "sales"}, "mine").status_code == 202
    web.apply()
    assert web.store.totals.total("sales") == 1


def test_a_name_counts_at_most_once_where_its_rows_are_alike(web: Web) -> None:
    huge = [{"counter": "big", "key": "k", "amount": 10**9, "at": 1_764_000_000}] * 3
    for _ in range(2):
        assert post(web.url, [*huge, *BATCH], "mine").ok
        web.apply()
    assert web.store.totals.total("sales") == SUM
    assert web.store.totals.total("big") == 3 * 10**9


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

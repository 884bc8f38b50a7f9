"""Visitors by HTTP: ``visitor`` of increments, and pixels and beacons that tell who came."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
import requests

from countersink.producers.buffer import sightings
from countersink.runtime.members import Salt
from tests.producers.members import FIRST, found, hashed, publish
from tests.support.entries import together
from tests.support.traffic import now_minute
from tests.support.waiting import eventually
from tests.web.serving import Web, serving

AT = "2026-11-21T08:00:00Z"
AGENT = {"User-Agent": "Browser/1.0", "Sec-Fetch-Site": "none"}


@pytest.fixture
def web(redis_url: str, mysql_url: str) -> Iterator[Web]:
    with serving(redis_url, mysql_url, hit_visitors=("visitors", "site.*")) as running:
        yield running


def post(web: Web, body: Any, **headers: str) -> requests.Response:
    return requests.post(f"{web.url}/v1/increments", json=body, headers=headers, timeout=20)


def stored(web: Web, client: redis.Redis) -> tuple[int, set[bytes]]:
    """Sightings, and the hashes of members."""
    assert web.producer.flush(20)
    counts, hashes = found(client)
    return sum(counts.values()), set().union(*hashes.values())


def test_increments_bring_visitors(web: Web, redis_client: redis.Redis) -> None:
    publish(redis_client)
    assert post(web, {"counter": "visitors", "key": "/", "visitor": "ann"}).status_code == 202
    batch: list[dict[str, Any]] = [
        {"counter": "visitors", "key": "/", "visitor": "ann", "at": AT},
        {"counter": "visitors", "key": {"page": "/"}, "visitor": "bob\u00e9"},
        {"counter": "visitors", "key": "/", "visitor": ""},
        {"counter": "visitors", "key": "/", "visitor": None},
        {"counter": "hits", "key": "/", "amount": 1},
    ]
    assert post(web, batch).json() == {"accepted": 5}
    assert web.producer.flush(20)
    timed = [{**each, "at": AT} for each in batch]  # else a minute may end between them
    # Sent on together: what is sent on later says when, and is no copy to the byte.
    with web.beside(producer={"flush_interval": 60}) as held:
        for _ in range(3):
            answer = post(held, timed, **{"Idempotency-Key": "same"})
            assert answer.json() == {"accepted": 5}
    assert stored(web, redis_client) == (11, set(map(hashed, ["ann", "bob\u00e9", ""])))


BAD: tuple[tuple[dict[str, Any], str], ...] = (
    ({"visitor": 5}, "visitor"),
    ({"visitor": ["ann"]}, "visitor"),
    ({"visitor": "secret", "amount": 2}, "must be 1"),
    ({"visitor": "secret", "amount": 0}, "must be 1"),
    ({"visitor": "secret", "counter": "plain"}, "countersink counter set plain --unique"),
)


def test_what_is_not_valid_is_told_and_counts_nothing(
    web: Web, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sightings, "SALT_SECONDS", 0.0)
    publish(redis_client)
    good = {"counter": "visitors", "visitor": "ann"}
    for more, said in BAD:
        answer = post(web, [good, {"counter": "visitors", **more}])
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert error["index"] == 1
        assert said in error["detail"]
        assert "secret" not in answer.text
    assert stored(web, redis_client) == (0, set())


def test_a_visitor_right_after_unique_is_counted(web: Web, redis_client: redis.Redis) -> None:
    web.producer.counts_members("visitors")  # Redis tells that there is no salt yet
    eventually(lambda: "visitors" in web.producer._events.sightings.salts._known)
    body = {"counter": "visitors", "visitor": "ann"}
    together(lambda: post(web, body).raise_for_status(), lambda: publish(redis_client))
    assert stored(web, redis_client)[1] == {hashed("ann")}


@pytest.mark.parametrize("patience_s", [10.0, 0.0])
def test_a_visitor_is_counted_as_soon_as_workers_are_back_and_have_made_the_salt(
    web: Web, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    monkeypatch.setattr(sightings, "SALT_SECONDS", patience_s)
    ended = [Salt(1, FIRST, now_minute(), bytes(16))]
    publish(redis_client, ended)
    body = {"counter": "visitors", "visitor": "ann"}
    if not patience_s:
        answer = post(web, body)
        assert answer.status_code == 503
        assert "salt" in answer.json()["detail"]
        publish(redis_client)
        eventually(lambda: post(web, body).status_code == 202)  # asked for each second, not minute
    else:
        together(lambda: post(web, body).raise_for_status(), lambda: publish(redis_client))
    assert stored(web, redis_client)[1] == {hashed("ann")}


def test_hits_tell_address_and_user_agent_of_counters_that_are_named(
    web: Web, redis_client: redis.Redis
) -> None:
    for counter in ("visitors", "site.a", "other"):
        publish(redis_client, counter=counter)
    for counter in ("visitors", "site.a", "other", "site.plain"):
        for ending in (".gif", ".svg"):
            url = f"{web.url}/hit/{counter}/home{ending}"
            answer = requests.get(url, headers=AGENT, timeout=20)
            assert (answer.status_code, "Set-Cookie" in answer.headers) == (200, False)
        url = f"{web.url}/hit/{counter}/home"
        assert requests.post(url, headers=AGENT, timeout=20).status_code == 204
    requests.head(f"{web.url}/hit/visitors/home.gif", headers=AGENT, timeout=20)
    ahead = {**AGENT, "Sec-Purpose": "prefetch"}
    requests.get(f"{web.url}/hit/visitors/home.gif", headers=ahead, timeout=20)
    assert web.producer.flush(20)
    counts, hashes = found(redis_client)
    totals: dict[str, int] = {}
    for (counter, _, _), amount in counts.items():
        totals[counter] = totals.get(counter, 0) + amount
    assert totals == {"visitors": 3, "site.a": 3, "other": 3, "site.plain": 3}
    assert {counter for counter, *_ in hashes} == {"visitors", "site.a"}
    assert set().union(*hashes.values()) == {hashed("127.0.0.1 Browser/1.0")}

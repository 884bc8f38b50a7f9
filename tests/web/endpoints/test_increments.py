"""``POST /v1/increments``: what is accepted, what is refused, and when it answers."""

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from countersink.database.sessions import open_tables
from countersink.runtime.dimensions import MAX_DIMENSIONS
from countersink.store import api_keys
from countersink.stream.connection import command
from countersink.stream.decode import entry_id_of
from countersink.stream.entry import Delivery
from countersink.stream.group import Group
from countersink.web.auth.register import Identity
from countersink.web.endpoints import increments
from countersink.web.endpoints.increments import read_increments
from countersink.web.errors import Problem
from countersink.web.http import bodies
from countersink.web.options import WebOptions
from countersink.web.services import Acknowledgements
from tests.support.factories import RedisFactory
from tests.support.waiting import eventually
from tests.web.serving import Web, serving

PATH = "/v1/increments"
STREAM = "{countersink:0}:events"
AT = datetime(2025, 11, 21, 8, 0, tzinfo=UTC)


def read(body: bytes, clock: Callable[[], float] = time.time, **options: Any) -> list[Any]:
    """What is read from a body, without servers."""
    chosen = WebOptions(redis_url="", mysql_url="", **options)
    return list(read_increments(body, chosen, Identity(), clock))


def problem(body: bytes) -> Problem:
    """What a body is refused with that is no increments."""
    with pytest.raises(Problem) as refused:
        read(body)
    return refused.value


@pytest.fixture
def patient(redis_url: str, mysql_url: str) -> Iterator[Web]:
    """A server at which one may wait long."""
    with serving(redis_url, mysql_url, wait_s=60.0) as web:
        yield web


def send(web: Web, body: Any, status: int = 202, **query: str) -> Any:
    """POST as JSON, or bytes as they are; the document of the answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    answer = requests.post(f"{web.url}{PATH}", data, headers=headers, params=query, timeout=30)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_one_increment_and_a_batch_are_counted(web: Web) -> None:
    assert send(web, {"counter": "page_views", "key": "/home"}) == {"accepted": 1}
    batch = [{"counter": "page_views", "key": "/home", "amount": n} for n in range(1_000)]
    assert send(web, batch) == {"accepted": 1_000}
    assert send(web, [{"counter": "c"}, {"counter": "c", "key": "ключ", "amount": -5}]) == {
        "accepted": 2
    }
    web.apply()
    assert web.store.totals.total("page_views", key="/home") == 1 + 499_500
    assert web.store.totals.by_key("c") == [("", 1), ("ключ", -5)]


def test_a_key_may_be_an_object_of_dimensions(web: Web) -> None:
    web.store.counters.set(
        "views", dimensions=["page", "country"], breakdowns=[["page"], ["page", "country"]]
    )
    home = {"page": "/home", "country": "DE"}
    sent: list[dict[str, Any]] = [
        {"counter": "views", "key": home},
        {"counter": "views", "key": {"country": "DE", "page": "/home"}, "amount": 2},
        {"counter": "views", "key": {"page": '/a"b'}, "id": "own"},
        {"counter": "views", "key": {}},
        {"counter": "views", "key": "/home", "amount": 50},
    ]
    assert send(web, sent) == {"accepted": 5}
    assert send(web, sent[2]) == {"accepted": 1}
    web.apply()
    assert web.store.totals.total("views") == 55
    assert web.store.totals.by_key("views") == [("/home", 50), ("", 5)]
    answer = requests.get(f"{web.url}/v1/counters/views/totals?by=page,country", timeout=20)
    assert answer.json()["rows"] == [
        {"page": "/home", "country": "DE", "total": 3},
        {"page": "", "country": "", "total": 1},
        {"page": '/a"b', "country": "", "total": 1},
    ]


def test_times_are_iso_8601_with_a_zone_or_unix_seconds(web: Web) -> None:
    seconds = int(AT.timestamp())
    times = ["2025-11-21T08:00:00Z", "2025-11-21T09:00:00.5+01:00", seconds, seconds + 0.25, None]
    send(web, [{"counter": "c", "at": at} for at in times])
    web.apply()
    days = dict(web.store.totals.daily("c"))
    assert days[AT.date()] == 4
    assert sum(days.values()) == 5


def test_bodies_may_be_announced_as_json_as_text_or_not_at_all_and_be_packed(shared: Web) -> None:
    plain = b'{"counter":"c"}'
    for body, headers in (
        (plain, {"Content-Type": "application/json; charset=utf-8"}),
        (plain, {"Content-Type": "text/plain"}),
        (plain, {}),
        (gzip.compress(b"[%b]" % plain), {"Content-Encoding": "gzip"}),
    ):
        answer = requests.post(f"{shared.url}{PATH}", data=body, headers=headers, timeout=20)
        assert answer.status_code == 202, answer.text


def test_what_cannot_be_read_is_refused(shared: Web) -> None:
    """Other bodies that are no JSON: ``tests/web/attacks/bodies.py``."""
    accepted = shared.producer.stats().accepted
    assert send(shared, b"counter=c", 400)["status"] == 400
    for media_type in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        headers = {"Content-Type": media_type}
        answer = shared.ask("POST", PATH, data=b'{"counter":"c"}', headers=headers)
        assert answer.status_code == 415
        assert "application/json" in answer.json()["detail"]
    assert shared.producer.stats().accepted == accepted


def test_what_is_not_valid_is_told_item_by_item_and_nothing_is_counted(shared: Web) -> None:
    accepted = shared.producer.stats().accepted
    good = {"counter": "c"}
    wrong: list[Any] = [
        {},
        {"counter": "no such name"},
        {"counter": "c" * 65},
        {"counter": 7},
        {"counter": "c", "key": {"page": 1}},
        {"counter": "c", "key": {"Page": "/"}},
        {"counter": "c", "key": None},
        {"counter": "c", "amount": 1.5},
        {"counter": "c", "amount": "1"},
        {"counter": "c", "amount": 1_000_000_001},
        {"counter": "c", "amount": -1_000_000_001},
        {"counter": "c", "at": "2025-11-21T08:00:00"},
        {"counter": "c", "id": ""},
        {"counter": "c", "id": "x" * 256},
        {"counter": "c", "count": 1},
        None,
        [],
        "c",
    ]
    for item in wrong:
        for body, index in (([good, item, good], 1), (item, 0)):
            if body == []:
                continue
            found = send(shared, body, 422)
            assert [error["index"] for error in found["errors"]] == [index], item
            assert found["errors"][0]["detail"], item
    assert send(shared, [], 422)["detail"].startswith("The array is empty")
    told = send(shared, [good, {"counter": "!"}] * 100, 422)
    assert [error["index"] for error in told["errors"]] == list(range(1, 40, 2))
    assert shared.producer.stats().accepted == accepted


def test_a_member_that_is_there_twice_is_refused_wherever_it_is() -> None:
    for body in (
        b'{"counter":"c","counter":"c"}',
        b'{"counter":"c","amount":1,"amount":1000}',
        b'{"counter":"c","key":"","key":""}',
        b'{"counter":"c","at":null,"at":null}',
        b'{"counter":"c","id":null,"id":"x"}',
        b'[{"counter":"c"},{"counter":"c","key":"k","amount":1,"key":"l"}]',
        b'{"counter":"c","\\u0061mount":1,"amount":2}',
        b'[{"counter":"c","key":"a\\"b"},{"counter":"c","counter":"d"}]',
        b'{"counter":"views","key":{"page":"/","page":"/a"}}',
    ):
        assert (problem(body).status, "twice" in problem(body).detail) == (422, True), body


def test_nothing_else_is_taken_for_a_member_that_is_there_twice(shared: Web) -> None:
    now = datetime.now(UTC)
    items: list[dict[str, Any]] = [
        {"counter": "c"},
        {"counter": "c", "key": "", "amount": 1, "at": None, "id": None},
        {"counter": "c", "key": '{"key":"x","key":"y"}', "at": now.isoformat()},
        {"counter": "c", "key": "counter", "at": now.timestamp(), "id": "id"},
        {"counter": "c", "key": 'a\\"', "amount": -1},
    ]
    assert send(shared, items)["accepted"] == len(items)
    for item in items:
        send(shared, {**item, "id": None})


def test_a_whole_number_is_one_however_it_is_written(web: Web) -> None:
    body = b'[{"counter":"c","amount":743.0},{"counter":"c","amount":1e2},{"counter":"c"}]'
    assert send(web, body)["accepted"] == 3
    assert send(web, b'{"counter":"c","amount":-0.0}')["accepted"] == 1
    for wrong in ("1.5", "9007199254740993.0", "1" * 25, "true"):
        send(web, b'{"counter":"c","amount":%b}' % wrong.encode(), 422)
    send(web, b'{"counter":"c","amount":NaN}', 400)
    for wrong in ("1e400", "1" * 5_000):
        said = send(web, b'{"counter":"c","amount":%b}' % wrong.encode(), 422)
        assert "out of range" in said["detail"]
    assert "twice" in send(web, b'{"counter":"c","amount":1.0,"amount":2.0}', 422)["detail"]
    web.apply()
    assert web.store.totals.total("c") == 844


def test_more_than_fit_into_one_request_are_refused(shared: Web) -> None:
    for item in ({"counter": "c"}, {"counter": "!"}, {"no": "counter"}):
        assert problem(json.dumps([item] * 1_001).encode()).status == 413
    accepted = shared.producer.stats().accepted
    send(shared, [{"counter": "c"}] * 1_001, 413)
    assert "wait" in str(send(shared, {"counter": "c"}, 422, wiat="stored"))
    assert "stored" in str(send(shared, {"counter": "c"}, 422, wait="yes"))
    assert shared.producer.stats().accepted == accepted


PACKED: dict[str, bytes] = {
    "objects": b"[" + b",".join([b"{}"] * 349_000) + b"]",
    "numbers": b"[" + b",".join([b"1"] * 500_000) + b"]",
    "texts": b"[" + b",".join([b'""'] * 330_000) + b"]",
    "brackets": b"[" * 1_000_000,
    "a key": b'{"counter":"c","key":[' + b",".join([b"1"] * 500_000) + b"]}",
    "members": b"{" + b",".join(b'"a%d":0' % number for number in range(90_000)) + b"}",
}


@pytest.mark.parametrize("name", PACKED)
def test_what_would_take_long_to_decode_is_refused_before(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in increments, bodies:
        monkeypatch.setattr(module, "read_json", None)
    monkeypatch.setattr(increments, "_decode", None)
    assert len(PACKED[name]) < WebOptions(redis_url="", mysql_url="").max_body_bytes
    assert problem(PACKED[name]).status == 413


def test_quotes_that_nothing_closes_are_looked_at_once() -> None:
    """Otherwise it would take hours: each of them would be searched for its end."""
    body = b"[" + b"1," * 49_000 + b'"' + b'\\",' * 300_000
    assert len(body) < WebOptions(redis_url="", mysql_url="").max_body_bytes
    assert problem(body).status == 400


def test_all_that_a_request_may_hold_is_read() -> None:
    dimensions = {f"dimension_{number}": 'a,b{c["' for number in range(MAX_DIMENSIONS)}
    whole = {"counter": "c", "amount": 1, "at": "2026-11-27T00:00:00Z", "visitor": "v"}
    many = [{**whole, "key": dimensions, "id": f"{number}"} for number in range(1_000)]
    long = [{"counter": "c", "key": '{,["\\' * 100_000}]
    for body in many, long:
        clock = datetime(2026, 11, 27, tzinfo=UTC).timestamp
        assert len(read(json.dumps(body).encode(), clock)) == len(body)


def test_limits_are_the_servers(redis_url: str, mysql_url: str) -> None:
    with serving(redis_url, mysql_url, max_items=2, max_amount=10) as web:
        send(web, [{"counter": "c", "amount": 10}] * 2)
        send(web, [{"counter": "c"}] * 3, 413)
        assert "from -10 to 10" in str(send(web, [{"counter": "c", "amount": 11}], 422))


def test_bounds_of_time_are_the_servers_and_included() -> None:
    now = AT.timestamp()

    def told(seconds: float | str, **options: float) -> list[str]:
        body = json.dumps([{"counter": "c"}, {"counter": "c", "at": seconds}]).encode()
        try:
            read(body, AT.timestamp, **options)
        except Problem as problem:
            return [f"{problem.status} {error['detail']}" for error in problem.extra["errors"]]
        return []

    day = 86_400
    assert told(now + day) == told("2025-11-22T09:00:00+01:00") == []
    for beyond in (now + day + 1e-3, "2025-11-22T08:00:00.000001Z", "9999-12-01T00:00Z"):
        assert told(beyond)[0].startswith("422 'at' is more than 86,400 s ahead"), beyond
    assert "not milliseconds" in told(now * 1000)[0]
    assert told(now + 1.5, max_ahead_s=1.5) == told(now - 7 * day, max_age_days=7) == []
    assert "more than 1.5 s ahead" in told(now + 1.75, max_ahead_s=1.5)[0]
    assert told(now - 3_650 * day) == told(0, max_age_days=0) == []
    for beyond in (now - 7 * day - 1e-3, 0, "0001-01-01T00:00:00+14:00"):
        assert "more than 7 days ago" in told(beyond, max_age_days=7)[0], beyond


def test_who_waits_in_vain_is_told_that_it_will_come(redis_url: str, mysql_url: str) -> None:
    with serving(redis_url, mysql_url, wait_s=0.2) as web:  # and no worker
        answer = send(web, {"counter": "c"}, 202, wait="applied")
        assert answer == {"accepted": 1, "state": "accepted"}
        web.apply()
        assert web.store.totals.total("c") == 1


def test_applied_is_answered_however_far_behind_the_workers_stay(
    patient: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("countersink.web.services.ROUND_S", 0.05)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(send, patient, {"counter": "c"}, 200, wait="applied")
        group = Group(patient.services.redis, [STREAM], "behind")
        taken: list[Delivery] = []
        while not answer.done():
            send(patient, {"counter": "others"}, 200, wait="stored")
            taken += group.read(100, 0)
            if gone := taken[:-40]:  # as workers do that never come closer
                group.acknowledge((d.stream, d.stream_id, entry_id_of(d)) for d in gone)
                del taken[:-40]
        assert answer.result()["state"] == "applied"


def test_what_redis_lost_is_not_answered_as_applied(patient: Web) -> None:
    losses: tuple[tuple[str | int, ...], ...] = (("FLUSHALL",), ("XTRIM", STREAM, "MAXLEN", 0))
    queue = patient.services.redis
    with ThreadPoolExecutor(1) as pool:
        for number, loss in enumerate(losses, start=1):
            answer = pool.submit(send, patient, {"counter": "c"}, 202, wait="applied")
            eventually(lambda: queue.xlen(STREAM) == 1)
            command(queue, *loss)
            assert answer.result(30) == {"accepted": 1, "state": "unknown"}
            later = pool.submit(send, patient, {"counter": "c"}, 200, wait="applied")
            eventually(lambda: queue.xlen(STREAM) == 1)
            patient.apply()
            assert later.result(30)["state"] == "applied"
            assert patient.store.totals.total("c") == number


def waiting(
    flush: Callable[[float], bool],
) -> Callable[[float], Coroutine[object, object, bool]]:
    """Waits until all is stored by this flush."""
    services: Any = SimpleNamespace(producer=SimpleNamespace(flush=flush), redis=None)
    return Acknowledgements(services).stored


def test_who_comes_during_a_flush_waits_for_the_next_one() -> None:
    flushing, go_on = threading.Event(), threading.Event()
    rounds = 0

    def flush(seconds: float) -> bool:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            flushing.set()
            return go_on.wait(20)
        return False

    async def wait() -> list[bool | None]:
        stored = waiting(flush)
        first = asyncio.create_task(stored(60))
        assert await asyncio.to_thread(flushing.wait, 20)
        second = asyncio.create_task(stored(0.2))
        await asyncio.sleep(0)  # it has begun to wait
        go_on.set()
        return [await first, await second]

    assert asyncio.run(wait()) == [True, False]


def test_who_waits_is_told_at_once_when_waiting_fails(caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    def flush(seconds: float) -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("can't start new thread")
        return True

    async def wait() -> list[bool | None]:
        stored = waiting(flush)
        async with asyncio.timeout(20):
            first = await asyncio.gather(stored(60), stored(60))
            return [*first, await stored(60)]

    assert asyncio.run(wait()) == [False, True, True]
    (record,) = caplog.records
    assert record.exc_info is not None


def test_many_wait_at_once_without_a_thread_for_each(patient: Web) -> None:
    states = ["stored", "applied"] * 30
    with ThreadPoolExecutor(len(states)) as pool:
        answers = [
            pool.submit(send, patient, {"counter": "c", "key": state}, 200, wait=state)
            for state in states
        ]
        eventually(lambda: patient.producer.stats().accepted == len(states))
        # Those that wait for MySQL hold no thread that others need.
        assert requests.get(f"{patient.url}/v1/counters", timeout=20).status_code == 200
        patient.apply()
        assert [answer.result(30)["state"] for answer in answers] == states
    for state in ("stored", "applied"):
        assert patient.store.totals.total("c", key=state) == 30


def test_while_redis_is_away_increments_are_accepted_and_waiting_tells_the_truth(
    own_redis_server: RedisFactory, mysql_url: str
) -> None:
    redis_server = own_redis_server()
    with serving(redis_server.url, mysql_url, wait_s=0.3) as web:
        redis_server.freeze()
        assert send(web, {"counter": "c"}) == {"accepted": 1}
        answer = send(web, {"counter": "c"}, 202, wait="stored")
        assert answer == {"accepted": 1, "state": "accepted"}
        redis_server.thaw()
        web.apply()
        assert web.store.totals.total("c") == 2


def test_a_full_memory_refuses_whole_requests_and_loses_nothing(
    own_redis_server: RedisFactory, mysql_url: str
) -> None:
    redis_server = own_redis_server()
    with serving(redis_server.url, mysql_url, producer={"max_rows_in_memory": 100}) as web:
        redis_server.freeze()
        accepted = 0
        for turn in range(20):
            batch = [{"counter": "c", "key": f"{turn}/{n}"} for n in range(30)]
            name = {"Idempotency-Key": f"turn {turn}"} if turn % 2 else {}
            answer = web.ask("POST", PATH, json=batch, headers=name)
            if answer.status_code == 202:
                accepted += 30
            else:
                assert answer.status_code == 503
                assert int(answer.headers["Retry-After"]) >= 1
        assert 0 < accepted <= 100
        assert web.producer.stats().dropped == 0
        redis_server.thaw()
        web.apply()
        assert web.store.totals.total("c") == accepted


def test_a_key_makes_counters_and_sequences_up_to_a_bound(web: Web) -> None:
    with web.beside(max_counters=3) as bounded:
        key, other = bounded.key("ingest"), bounded.key("ingest")

        def told(*counters: str, key: str = key) -> int:
            body = [{"counter": counter} for counter in counters]
            return bounded.ask("POST", "/v1/increments", key, json=body).status_code

        def taken(name: str) -> int:
            return bounded.ask("POST", f"/v1/sequences/{name}/next", key).status_code

        assert told("not a name", "nor this", "or this", "or that") == 403
        assert told("not a name") == told("nor this") == told("or this") == told("or that") == 422
        assert told("a", "b", "a") == told("a", "b", "c") == 202
        assert told("d") == told("a", "d") == 403
        assert told("a", "b", "c") == 202
        assert told("d", "e", "f", key=other) == 202
        assert bounded.ask("GET", "/hit/c/page.gif", key).status_code == 200
        assert bounded.ask("GET", "/hit/g/page.gif", key).status_code == 403
        assert [taken(name) for name in "xyzxq"] == [200, 200, 200, 200, 403]
        refused = bounded.ask("POST", "/v1/increments", key, json={"counter": "d"}).json()
        assert "--max-counters" in refused["detail"]
        bounded.apply()
        with open_tables(web.options.mysql_url) as session:
            _, wide = api_keys.create(session, "wide", ["ingest"], max_counters=5)
        assert told(*"ghijk", key=wide) == 202
        assert told("l", key=wide) == 403
        totals = {name: bounded.store.totals.total(name) for name in "abcdef"}
        assert totals == {"a": 4, "b": 3, "c": 3, "d": 1, "e": 1, "f": 1}

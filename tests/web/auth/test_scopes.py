"""Every route, each scope, and keys that are for some counters only."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from countersink.database.migrate import migrate
from countersink.store.api_keys import SCOPES
from countersink.web.app import ROUTES
from countersink.web.http.openapi import document
from tests.support.databases import dropped, new_name
from tests.support.servers import MySQLServer, RedisServer
from tests.support.waiting import eventually
from tests.web.serving import Web, serving

OWN = "shop.views"
OTHER = "bank.secret"
OPERATIONS = document(ROUTES)["paths"]


@dataclass(frozen=True)
class Call:
    """One method on one path of the OpenAPI document.

    Attributes:
        method, path: as the document has them.
        scopes: the scopes that are let in, each by itself; None: everybody, without a key too.
        whole: keys for some counters only are refused.
        named: how the request names a counter: in the path, in the query or in the body; None: it
            names none.
        body: of the request.
        query: of the request.
        streams: the answer does not end.
        absent: what it is about is not there, which whoever is let in is told (404).
    """

    method: str
    path: str
    scopes: frozenset[str] | None
    whole: bool = False
    named: str | None = None
    body: str | None = None
    query: str = ""
    streams: bool = False
    absent: bool = False

    def let_in(self, answer: requests.Response) -> bool:
        """Whether it was answered."""
        return answer.status_code < 400 or (self.absent and answer.status_code == 404)


def call(method: str, path: str, *scopes: str, **more: Any) -> Call:
    return Call(method, path, frozenset({*scopes, "admin"}), **more)


COUNTER = "/v1/counters/{counter}"
CALLS = (
    call("post", "/v1/increments", "ingest", named="body", body='{"counter": "NAME"}'),
    call("get", "/hit/{counter}/{key}.gif", "ingest", named="path"),
    # The badge that counts; that which only shows has a test of its own.
    call("get", "/hit/{counter}/{key}.svg", "ingest", named="path"),
    call("post", "/hit/{counter}/{key}", "ingest", named="path"),
    call("post", "/v1/sequences/{name}/next", "ingest", named="path", body="{}"),
    call("get", "/v1/sequences/{name}", "read", named="path"),
    call("get", "/v1/counters", "read"),
    call("get", COUNTER, "read", named="path"),
    call("get", f"{COUNTER}/totals", "read", named="path"),
    call("get", f"{COUNTER}/daily", "read", named="path"),
    call("get", f"{COUNTER}/hourly", "read", named="path"),
    call("get", f"{COUNTER}/minutely", "read", named="path"),
    call("get", f"{COUNTER}/top", "read", named="path"),
    call("get", f"{COUNTER}/notes", "read", named="path"),
    call("put", f"{COUNTER}/notes/{{day}}", named="path", body='{"note": "x"}'),
    call("delete", f"{COUNTER}/notes/{{day}}", named="path", absent=True),
    call("get", "/v1/notes", "read"),
    call("put", "/v1/notes/{day}", whole=True, body='{"note": "x"}'),
    call("delete", "/v1/notes/{day}", whole=True, absent=True),
    call("post", "/v1/links", "read", named="body", body='{"counter": "NAME"}'),
    call("get", "/v1/links", "read"),
    call("delete", "/v1/links/{id}", "read", absent=True),
    call("get", "/v1/boards", "read"),
    call("post", "/v1/boards", whole=True, body='{"board": "new", "items": [{"counter": "NAME"}]}'),
    call("get", "/v1/boards/{board}", "read", absent=True),
    call(
        "put", "/v1/boards/{board}", whole=True, absent=True, body='{"items": [{"counter": "x"}]}'
    ),
    call("delete", "/v1/boards/{board}", whole=True, absent=True),
    call("get", "/v1/totals", "read"),
    call("get", "/v1/export/openmetrics", "read", named="query", query="counter=NAME"),
    call("get", "/v1/live", "read", named="query", query="counter=NAME", streams=True),
    call("get", "/v1/system", "read", whole=True),
    call("get", "/metrics", "read", whole=True),
    call("get", "/v1/dead", "read", whole=True),
    call("post", "/v1/dead/retry", whole=True, body='{"all": true}'),
    call("post", "/v1/dead/drop", whole=True, body='{"all": true}'),
    call("get", "/v1/whoami", "read"),
    call("post", "/v1/schedules/{job}/pause", whole=True, absent=True),
    call("post", "/v1/schedules/{job}/resume", whole=True, absent=True),
    call("post", "/v1/schedules/{job}/run", whole=True, absent=True),
    Call("get", "/livez", None),
    Call("get", "/readyz", None),
)
NAMES = [f"{each.method} {each.path}" for each in CALLS]


@dataclass(frozen=True)
class Guarded:
    """A server that takes keys alone, and keys of each scope.

    Attributes:
        web: the server.
        all: by scope a key for all counters.
        some: by scope a key for some.
    """

    web: Web
    all: dict[str, str]
    some: dict[str, str]

    def ask(self, one: Call, counter: str, key: str | None) -> requests.Response:
        """The answer to a good request that names ``counter``."""
        path = one.path.replace("{counter}", counter).replace("{name}", counter)
        path = path.replace("{day}", "2026-10-20").replace("{id}", "none")
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["X-API-Key"] = key
        with requests.request(
            one.method,
            f"{self.web.url}{path.replace('{key}', 'k')}",
            params=one.query.replace("NAME", counter),
            data=one.body and one.body.replace("NAME", counter),
            headers=headers,
            stream=one.streams,
            timeout=20,
        ) as answer:
            return answer


@pytest.fixture(scope="module")
def guarded(redis_server: RedisServer, mysql_server: MySQLServer) -> Iterator[Guarded]:
    """Both counters are counted, by minute, in two time zones; none is public but ``open``."""
    with dropped(mysql_server, new_name()) as url:
        migrate(url)
        with serving(redis_server.url, url, without_keys=False, public_counters=("open",)) as web:
            web.store.counters.set(OWN, resolution="minute")
            web.store.counters.set(OTHER, resolution="minute", time_zone="Asia/Tokyo")
            for counter in (OWN, OTHER, "open"):
                web.producer.increment(counter, "k", 41)
            web.apply()
            yield Guarded(
                web,
                {each: web.key(each, name=f"all-{each}") for each in SCOPES},
                {each: web.key(each, name=f"{each}", counters=["shop.*"]) for each in SCOPES},
            )


def test_every_route_is_in_the_table() -> None:
    there = {(method, path) for path, methods in OPERATIONS.items() for method in methods}
    assert {(each.method, each.path) for each in CALLS} == there


@pytest.mark.parametrize("one", CALLS, ids=NAMES)
def test_a_route_takes_its_scope_and_no_other(guarded: Guarded, one: Call) -> None:
    for scope, key in guarded.all.items():
        answer = guarded.ask(one, OWN, key)
        if one.scopes is None or scope in one.scopes:
            assert one.let_in(answer), scope
        else:
            assert answer.status_code == 403, scope
    assert (guarded.ask(one, OWN, None).status_code in (401, 403)) is (one.scopes is not None)


@pytest.mark.parametrize("one", CALLS, ids=NAMES)
def test_a_key_for_some_counters_has_these_and_is_told_of_no_other(
    guarded: Guarded, one: Call
) -> None:
    for scope, key in guarded.some.items():
        allowed = one.scopes is None or scope in one.scopes
        own = guarded.ask(one, OWN, key)
        assert one.let_in(own) is (allowed and not one.whole), scope
        other = guarded.ask(one, OTHER, key)
        if one.named is not None or one.whole:
            assert other.status_code in (403, 422), scope
        for answer in (own, other) if not one.streams else ():
            told = answer.text.replace(OTHER, "") if one.named == "body" else answer.text
            assert "bank" not in told, scope


@pytest.mark.parametrize(
    ("counter", "key", "counts", "shows"),
    [
        (OWN, "ingest", True, False),
        (OWN, "read", False, True),
        (OWN, "admin", True, True),
        (OTHER, "ingest", False, False),
        (OTHER, "read", False, False),
        (OTHER, "admin", False, False),
        ("open", "ingest", True, True),
        ("open", "read", True, True),
        ("open", None, True, True),
        (OWN, None, False, False),
    ],
)
def test_a_badge_shows_its_number_to_who_may_read_it(
    guarded: Guarded, counter: str, key: str | None, counts: bool, shows: bool
) -> None:
    headers = {} if key is None else {"X-API-Key": guarded.some[key]}
    url = f"{guarded.web.url}/hit/{counter}/k.svg"
    accepted = guarded.web.producer.stats().accepted

    def shown() -> requests.Response:
        return requests.get(url, params={"count": "0"}, headers=headers, timeout=20)

    assert shown().status_code == (200 if shows else 403)
    if shows:
        # A dash while it cannot be told; which number it is depends on the tests before.
        eventually(lambda: re.search(r"hits: \d", shown().text))
    counted = requests.get(url, headers=headers, timeout=20)
    assert counted.status_code == (200 if counts else 403)
    assert guarded.web.producer.stats().accepted == accepted + counts
    if counts:
        assert ("hits: unknown" in counted.text) is not shows

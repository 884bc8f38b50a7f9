"""Requests that wait while MySQL stands still: increments of known keys go on beside them."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from countersink.database.migrate import migrate
from countersink.web.auth.credentials import LEAST_PLACES, WaitingPlaces
from countersink.web.errors import Problem
from tests.support.factories import MySQLFactory
from tests.support.processes import Children
from tests.support.waiting import eventually
from tests.web.attacks.crowd import crowd
from tests.web.attacks.target import CONNECTIONS, Target
from tests.web.raw import status

UNKNOWN = "ck_aaaaaaaaaaaa_" + "b" * 43
"""Well-formed, and nobody's."""
EVERYBODY = CONNECTIONS + 30


def get(path: str, key: str = UNKNOWN) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n\r\n".encode()


def post(path: str, body: str, *headers: str) -> bytes:
    lines = "".join(f"{each}\r\n" for each in (*headers, f"Content-Length: {len(body)}"))
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n{body}".encode()


def increments(target: Target) -> bytes:
    return post("/v1/increments?wait=applied", '{"counter":"waits"}', f"X-API-Key: {target.key}")


def login() -> bytes:
    own = "Sec-Fetch-Site: same-origin"
    form = "Content-Type: application/x-www-form-urlencoded"
    return post("/login", f"key={UNKNOWN}", own, form)


def goes_on(target: Target, before: int) -> bool:
    return target.accepted >= before + 50


@pytest.fixture
def frozen(own_mysql_server: MySQLFactory, redis_url: str) -> Iterator[Target]:
    """A server whose MySQL stands still, and whose live traffic goes on."""
    server = own_mysql_server(fast=True)
    url = server.url_for("countersink")
    migrate(url)
    with Children() as children:
        target = Target.start(children, redis_url, url, "--wait-s", "1")
        with target.unharmed():
            eventually(lambda: target.accepted)
            server.freeze()
            try:
                yield target
            finally:
                server.thaw()
        target.end()


def test_more_requests_wait_for_mysql_than_there_are_connections(
    frozen: Target, many_files: None
) -> None:
    for request in (
        get("/v1/whoami", UNKNOWN),
        get("/v1/counters", frozen.key),
        get("/hit/public_unknown/key.svg", ""),
        login(),
        increments(frozen),
    ):
        before = frozen.accepted
        with crowd(frozen, EVERYBODY) as connections:
            for each in connections:
                each.sendall(request)
            eventually(partial(goes_on, frozen, before))


def test_an_unknown_key_is_answered_while_mysql_stands_still(frozen: Target) -> None:
    for _ in range(3):
        with crowd(frozen, 1) as (connection,):
            connection.sendall(get("/v1/whoami"))
            assert status(connection.recv(65_536)) == 503


def test_places_are_of_all_and_of_each() -> None:
    places = WaitingPlaces(100)
    with ExitStack() as held:
        for name in "abcde":
            for _ in range(10):
                assert held.enter_context(places.taken(name))
            with places.taken(name) as there:
                assert not there
        with pytest.raises(Problem) as refused, places.needed("f"):
            pass
        assert refused.value.status == 503
    with places.taken("f") as there:
        assert there


def test_few_connections_leave_a_browser_its_places() -> None:
    places = WaitingPlaces(10)
    with ExitStack() as held:
        assert all(held.enter_context(places.taken("a")) for _ in range(LEAST_PLACES))

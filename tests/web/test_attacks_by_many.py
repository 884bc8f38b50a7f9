"""Attacks by many: clients that are slow, silent or deaf, listeners, guesses, and new keys."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.cookies import SimpleCookie

import pytest
import requests

from countersink.database.sessions import open_tables
from countersink.store import api_keys
from countersink.web.endpoints.live import MAX_LISTENERS, MAX_PER_ADDRESS, MAX_PER_KEY
from tests.support.waiting import eventually
from tests.web.attacks.asking import ask, from_address
from tests.web.attacks.crowd import crowd, drip, hung_up
from tests.web.attacks.floods import flood, flooded, slow_and_deaf_clients
from tests.web.attacks.target import CONNECTIONS, FAILURES, Target
from tests.web.raw import answer, status

pytestmark = pytest.mark.usefixtures("unharmed")

KEYS = 3_000
LARGE = pytest.mark.long("hundreds of sockets, and as many keys as somebody sends in a minute")
OWN = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize("share", [0.1, pytest.param(1.0, marks=LARGE)])
def test_slow_and_deaf_clients_by_the_hundred(target: Target, share: float) -> None:
    slow_and_deaf_clients(target, share)


def test_large_bodies_that_never_end(target: Target) -> None:
    key = f"X-API-Key: {target.key}\r\n".encode()
    head = b"POST /v1/increments HTTP/1.1\r\nHost: localhost\r\n" + key
    with crowd(target, 250) as senders:
        for each in senders:
            drip([each], head + b"Content-Length: 1000000\r\n\r\n")
        eventually(lambda: not drip(senders, bytes(65_536)))
        told = {status(said) for each in senders if (said := answer(each))}
        assert 503 in told
        assert told <= {400, 408, 503}


def test_connections_that_do_nothing_keep_nobody_out(target: Target) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as held:
        used = []
        for _ in range(CONNECTIONS - 20):
            used += held.enter_context(crowd(target, 1))
            used[-1].sendall(request)  # at once: a request has to arrive in time
            assert status(used[-1].recv(65_536)) == 200
        with crowd(target, CONNECTIONS // 2) as silent, crowd(target, CONNECTIONS // 2) as begun:
            drip(begun, b"GET /live")
            counted = target.accepted
            eventually(lambda: target.accepted >= counted + 20)
            everybody = (*used, *silent, *begun)
            eventually(lambda: sum(map(hung_up, everybody)) >= CONNECTIONS - 20)


def test_requests_without_end_on_one_connection(target: Target) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with crowd(target, 20) as connections:
        drip(connections, request * 5_000)
        for each in connections:
            assert answer(each).count(b"HTTP/1.1 200") <= 5_000


def test_listeners_by_the_hundred(target: Target) -> None:
    with open_tables(target.mysql_url) as session:
        keys = [api_keys.create(session, f"listener {number}", ["read"])[1] for number in range(7)]
    for each in keys:
        assert ask(target, "GET", "/v1/whoami", headers={"X-API-Key": each}).status_code == 200
    with ExitStack() as held:

        def told(key: str, address: str, number: int) -> Counter[int]:
            listeners = held.enter_context(crowd(target, number, address=address))
            asked = f"GET /v1/live HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n\r\n"
            drip(listeners, asked.encode())
            return Counter(status(each.recv(65_536)) for each in listeners)

        # One key, whatever address it comes from; one address, whatever keys it has; and all.
        assert told(keys[0], "127.0.0.1", 100) == {200: MAX_PER_KEY, 429: 100 - MAX_PER_KEY}
        assert told(keys[0], "127.0.0.2", 20) == {429: 20}
        left = MAX_PER_ADDRESS - MAX_PER_KEY
        assert told(keys[1], "127.0.0.1", left) == {200: left}
        assert told(keys[2], "127.0.0.1", 20) == {429: 20}
        left = MAX_LISTENERS - MAX_PER_ADDRESS
        for number in range(left):
            assert told(keys[3 + number % 4], f"127.0.0.{3 + number % 4}", 1) == {200: 1}
        assert told(keys[2], "127.0.0.9", 20) == {503: 20}
    eventually(lambda: requests.get(f"{target.url}/livez", timeout=20).status_code == 200)


@pytest.mark.parametrize("number", [20, pytest.param(200, marks=LARGE)])
def test_badges_of_keys_that_nobody_knows(target: Target, number: int) -> None:
    with crowd(target, number) as visitors:
        for visitor, each in enumerate(visitors):
            asked = b"GET /hit/public_badges/%d-%d.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"
            drip([each], b"".join(asked % (visitor, key) for key in range(5)))
        for each in visitors:
            assert status(each.recv(65_536)) == 200


def test_keys_are_guessed_in_vain(target: Target) -> None:
    ours = target.key.split("_")[1]

    def guess(number: int) -> int:
        shown = f"ck_{ours if number % 2 else 'zzzzzzzzzz'}_{number:043}"
        headers = {
            "Authorization": f"Bearer {shown}",
            "X-Forwarded-For": f"203.0.113.{number}",  # whatever it says of where it comes from
        }
        return from_address(target, "127.0.0.8", "GET", "/v1/whoami", headers).status

    assert tried(guess, 401)
    # Its neighbour with a right key is not locked out.
    right = from_address(target, "127.0.0.8", "GET", "/v1/whoami", {"X-API-Key": target.key})
    assert right.status == 200


def test_logins_are_tried_in_vain(target: Target) -> None:
    def log_in(number: int) -> int:
        form = f"key=ck_zzzzzzzzzz_{number:043}"
        return from_address(target, "127.0.0.20", "POST", "/login", OWN, form).status

    assert tried(log_in, 403)


def tried(attempt: Callable[[int], int], refused: int) -> bool:
    """Whether of many attempts, some of them at once, a few are refused, and all others not looked
    at."""
    with ThreadPoolExecutor(10) as threads:
        told = Counter(threads.map(attempt, range(100)))
    return told.keys() == {refused, 429} and FAILURES <= told[refused] <= FAILURES + 3


def test_a_cookie_that_was_put_there_is_never_that_of_a_login(target: Target) -> None:
    planted = "A" * 43
    held = {"Cookie": f"countersink={planted}; __Host-countersink={planted}"}
    made = from_address(
        target, "127.0.0.21", "POST", "/login", {**OWN, **held}, f"key={target.key}"
    )
    assert made.status == 303
    (morsel,) = SimpleCookie(made.headers["Set-Cookie"]).values()
    name, token = morsel.key, morsel.value
    assert token != planted
    asked = ("127.0.0.21", "GET", "/v1/whoami")
    assert from_address(target, *asked, held).status == 401
    real = {"Cookie": f"{name}={token}"}
    assert from_address(target, *asked, real).status == 200
    # With two, the first one counts: the real one behind it is of no use to who has planted one.
    for one, two in ((name, name), ("countersink", "countersink"), (name, "countersink")):
        both = {"Cookie": f"{one}={planted}; {two}={token}"}
        assert from_address(target, *asked, both).status == 401
    for site in ("cross-site", "same-site"):
        for path in ("/v1/increments", "/v1/dead/drop", "/v1/sequences/s/next", "/logout"):
            headers = {**real, "Sec-Fetch-Site": site, "Origin": "https://evil.example"}
            assert from_address(target, "127.0.0.21", "POST", path, headers, "{}").status == 403


@pytest.mark.parametrize("keys", [KEYS, pytest.param(20_000, marks=LARGE)])
def test_new_keys_without_end(target: Target, keys: int) -> None:
    flood(target, f"public_flood_{keys}", keys)
    flooded(target, f"public_flood_{keys}", keys)

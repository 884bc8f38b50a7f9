"""Behind nginx, whose visitors share one connection: no one's body is the next one's request."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.support.examples import MANY
from tests.web.attacks.wire import CURL, CURL_CHUNKED, INNER, JAVA, JAVA_CHUNKED
from tests.web.nginx import needs_nginx, nginx
from tests.web.raw import connected, status
from tests.web.serving import Web, serving

ROUNDS = 5 if MANY else 2
VISITORS = {
    "plain": 'proxy_set_header Connection "";',
    # as nginx's documentation has it for WebSockets
    "forwarding": "proxy_set_header Upgrade $http_upgrade;"
    " proxy_set_header Connection $connection_upgrade;",
}
OFFER = b"Connection: Upgrade\r\nUpgrade: x\r\n"
SWALLOWING = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: "
"""The beginning of a request that what the next visitor sends would belong to."""
LINES = b"\r\n" * 150_000
"""Before a request they are passed over. They fill what the server reads at a time, so that what
follows comes later than the head."""

pytestmark = [needs_nginx, pytest.mark.random]


@pytest.fixture
def behind(redis_url: str, mysql_url: str) -> Iterator[Web]:
    options: dict[str, Any] = {"trusted_proxies": ("127.0.0.1",), "without_keys": False}
    with serving(redis_url, mysql_url, **options) as served:
        yield served


@contextmanager
def proxied(web: Web, directory: Path, visitors: str, *, buffering: bool) -> Iterator[str]:
    """nginx with one connection to the server for all; its URL.

    Args:
        web: the server.
        directory: an empty one.
        visitors: what it makes of their offers, a name in ``VISITORS``.
        buffering: whether it waits for the whole body before it sends the request on.
    """
    http = f"""
        map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
        upstream web {{ server {urlsplit(web.url).netloc}; keepalive 1; }}
        server {{
            listen PORT;
            location / {{
                proxy_pass http://web;
                client_body_buffer_size 1m;
                proxy_http_version 1.1;
                proxy_request_buffering {"on" if buffering else "off"};
                proxy_set_header Host $host;
                proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
                {VISITORS[visitors]}
            }}
        }}
    """
    directory.mkdir(exist_ok=True)
    with nginx(directory, http) as url:
        yield url


def sent(url: str, *parts: bytes) -> int:
    """Send the parts on a connection of its own; the status of the answer."""
    with connected(url) as connection:
        for part in parts:
            connection.sendall(part)
        return status(connection.recv(65_536))


def count(url: str, key: str) -> int:
    """An increment of a visitor who has done nothing wrong."""
    path, headers = f"{url}/v1/increments", {"X-API-Key": key}
    return requests.post(path, json={"counter": "honest"}, headers=headers, timeout=20).status_code


@pytest.mark.parametrize("visitors", VISITORS)
@pytest.mark.parametrize("buffering", [True, False])
def test_a_body_of_one_visitor_is_never_the_request_of_the_next(
    behind: Web, tmp_path: Path, visitors: str, buffering: bool
) -> None:
    key = behind.key("ingest")
    head = b"POST /v1/increments HTTP/1.1\r\nHost: localhost\r\n" + OFFER
    get = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + OFFER
    with proxied(behind, tmp_path, visitors, buffering=buffering) as url:
        for _ in range(ROUNDS):
            for body in (SWALLOWING, INNER.replace(b"KEY", key.encode())):
                length = head + b"Content-Length: %d\r\n\r\n" % len(body)
                chunks = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body)
                assert sent(url, length + body) == 401
                assert count(url, key) == 202
                assert sent(url, length, body) == 401
                assert count(url, key) == 202
                assert sent(url, chunks, body, b"\r\n0\r\n\r\n") == 401
                assert count(url, key) == 202
                long = LINES + body
                assert sent(url, get + b"Content-Length: %d\r\n\r\n" % len(long) + long) == 200
                assert count(url, key) == 202
    behind.apply()
    assert behind.store.totals.counters() == {"honest": 8 * ROUNDS}


@pytest.mark.parametrize("visitors", VISITORS)
def test_clients_that_offer_http_2_are_counted(behind: Web, tmp_path: Path, visitors: str) -> None:
    key = behind.key("ingest")
    shown = b"Host: localhost\r\nX-API-Key: " + key.encode() + b"\r\n"
    with proxied(behind, tmp_path, visitors, buffering=False) as url:
        for _ in range(ROUNDS):
            for one in (JAVA, JAVA_CHUNKED, CURL, CURL_CHUNKED):
                request = one.replace(b"Host: localhost\r\n", shown)
                head, blank, body = request.partition(b"\r\n\r\n")
                assert sent(url, request) == 202
                assert count(url, key) == 202
                assert sent(url, head + blank, body) == 202
    behind.apply()
    totals = behind.store.totals
    assert (totals.total("java"), totals.total("curl")) == (4 * ROUNDS, 4 * ROUNDS)
    assert totals.total("honest") == 4 * ROUNDS


@pytest.mark.long("Java starts three times")
@pytest.mark.skipif(not shutil.which("java"), reason="java is not installed")
def test_java(behind: Web, tmp_path: Path) -> None:
    key = behind.key("ingest")
    source = Path(__file__).with_name("Client.java")

    def statuses(url: str) -> list[str]:
        done = subprocess.run(
            ("java", str(source), f"{url}/v1/increments", key, "20"),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert statuses(behind.url) == ["202"] * 20
    for visitors in VISITORS:
        with proxied(behind, tmp_path / visitors, visitors, buffering=True) as url:
            assert statuses(url) == ["202"] * 20
    behind.apply()
    assert behind.store.totals.total("java") == 60

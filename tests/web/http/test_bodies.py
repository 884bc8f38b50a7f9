"""What is too large, too slow, packed wrongly, or no HTTP at all: refused, in bounded memory."""

import gzip
import os
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import requests

from countersink.web.server.protocol import PART_BYTES, SMALL_PARTS
from tests.web.raw import answer, connected, exchange, status
from tests.web.routes import ROUTES
from tests.web.serving import Web

LIMIT = 4_096
POST = b"POST /ingest HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


@pytest.fixture(scope="module")
def small(opened: Web) -> Iterator[Web]:
    """A server with little room and little patience."""
    with opened.beside(routes=ROUTES, max_body_bytes=LIMIT, request_timeout_s=0.5) as served:
        yield served


def post(web: Web, body: bytes, **headers: str) -> requests.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.post(f"{web.url}/ingest", data=body, headers=named, timeout=20)


def send_without_end(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x" * 65_536)


def test_a_body_is_as_large_as_allowed_and_not_a_byte_more(small: Web) -> None:
    assert post(small, b"x" * LIMIT).json()["body"] == LIMIT
    assert post(small, b"x" * (LIMIT + 1)).status_code == 413
    assert post(small, b"").json()["body"] == 0


def test_a_body_of_unknown_length_is_cut_off_where_it_is_too_large(small: Web) -> None:
    def parts(number: int) -> Iterator[bytes]:
        for _ in range(number):
            yield b"x" * 1_024

    whole = requests.post(f"{small.url}/ingest", data=parts(LIMIT // 1_024), timeout=20)
    assert whole.json()["body"] == LIMIT
    chunk = b"400\r\n" + b"x" * 1_024 + b"\r\n"
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert status(exchange(small.url, head + chunk * 5)) == 413


def test_who_does_not_stop_sending_is_hung_up_on(small: Web) -> None:
    head = POST + b"Content-Length: 1000000000000\r\n\r\n"
    with connected(small.url) as connection:
        connection.sendall(head)
        assert status(connection.recv(65_536)) == 413
        with pytest.raises(OSError):
            send_without_end(connection)


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress)],
)
def test_packed_bodies(small: Web, coding: str, pack: Callable[[bytes], bytes]) -> None:
    assert post(small, pack(b"x" * LIMIT), Content_Encoding=coding).json()["body"] == LIMIT
    assert post(small, pack(b"x" * (LIMIT + 1)), Content_Encoding=coding).status_code == 413


def test_what_cannot_be_unpacked(small: Web) -> None:
    packed = gzip.compress(os.urandom(100))
    for body in (
        packed[:-1],
        packed[:5],
        b"plain",
        packed + b"more",
        packed * 2,
        packed[:20] + b"x" * 100,
    ):
        assert post(small, body, Content_Encoding="gzip").status_code == 400, body
    for coding in ("br", "zstd", "gzip, gzip", "compress", "gzip;q=1"):
        assert post(small, packed, Content_Encoding=coding).status_code == 415, coding
    assert post(small, b"plain", Content_Encoding="identity").json()["body"] == 5


def test_a_head_or_a_body_that_does_not_arrive_is_not_waited_for(small: Web) -> None:
    begun = (
        b"",
        b"GET /re",
        b"GET /read HTTP/1.1\r\nHost: localhost\r\nX-A: ",
        POST + b"Content-Length: 10\r\n\r\nx",
    )
    with ExitStack() as stack:
        waiting = [stack.enter_context(connected(small.url)) for _ in begun]
        for connection, part in zip(waiting, begun, strict=True):
            connection.sendall(part)
        for connection, part in zip(waiting, begun, strict=True):
            assert status(answer(connection)) == 408, part


def test_a_second_request_on_a_connection_has_its_own_time(small: Web) -> None:
    request = b"GET /read HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(small.url) as connection:
        connection.sendall(request)
        first = connection.recv(65_536)
        assert status(first) == 200
        connection.sendall(request[:20])
        assert status(answer(connection)) == 408


def test_the_head_of_an_answer_without_a_body_is_not_held_back(small: Web) -> None:
    with connected(small.url) as connection:
        connection.sendall(b"HEAD /read HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
        said = b""
        while said.count(b"\r\n\r\n") < 3:
            said += connection.recv(65_536)
        assert said.count(b"HTTP/1.1 200") == 3


def test_trailers_are_no_headers_and_are_bounded(guarded: Web) -> None:
    key = guarded.key("ingest").encode()
    body = b"Transfer-Encoding: chunked\r\nTrailer: X-API-Key\r\n\r\n2\r\nhi\r\n0\r\n"
    assert status(exchange(guarded.url, POST + body + b"X-API-Key: " + key + b"\r\n\r\n")) == 401
    many = b"".join(b"X-%d: a\r\n" % number for number in range(5_000))
    reply = exchange(guarded.url, POST + b"X-API-Key: " + key + b"\r\n" + body + many)
    assert status(reply) in (200, 413)


def test_the_chunks_of_a_body_are_bounded(opened: Web) -> None:
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    small = b"1\r\nx\r\n"
    assert status(exchange(opened.url, head + small * SMALL_PARTS + b"0\r\n\r\n")) == 200
    larger = b"40\r\n" + b"x" * PART_BYTES + b"\r\n"
    parts = 500_000 // PART_BYTES
    assert status(exchange(opened.url, head + larger * parts + b"0\r\n\r\n")) == 200
    assert status(exchange(opened.url, head + small * 100_000)) == 413


@pytest.mark.parametrize("name", [b"Connection", b"Proxy-Connection"])
def test_no_trailer_ends_the_connection_while_it_seems_to_go_on(small: Web, name: bytes) -> None:
    # Behind a proxy the next request on it is somebody else's, who would get no answer.
    request = POST.replace(b"close", b"keep-alive") + b"Transfer-Encoding: chunked\r\n\r\n"
    request += b"2\r\nhi\r\n0\r\n" + name + b": close\r\n\r\n"
    with connected(small.url) as connection:
        connection.sendall(request)
        said = answer(connection)
    assert status(said) == 400
    assert said.count(b"HTTP/1.1") == 1


def test_bytes_on_the_wire_are_bounded_however_they_are_cut(small: Web) -> None:
    head = POST.replace(b"close", b"keep-alive") + b"Transfer-Encoding: chunked\r\n\r\n"
    extended = b"1;" + b"e" * 100_000 + b"\r\nx\r\n"
    assert status(exchange(small.url, head + extended * 20)) in (400, 413)


def test_an_answered_request_whose_body_goes_missing_gets_no_second_answer(small: Web) -> None:
    head = POST.replace(b"/ingest", b"/nowhere").replace(b"close", b"keep-alive")
    reply = exchange(small.url, head + b"Content-Length: 10\r\n\r\nx")
    assert reply.count(b"HTTP/1.1") == 1

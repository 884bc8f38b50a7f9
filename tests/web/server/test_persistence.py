"""Whether a connection goes on after an answer: HTTP/1.0, and bodies that are waited for."""

from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from countersink.web.auth.register import Identity
from countersink.web.http import Route
from countersink.web.services import Services
from tests.web.raw import connected, exchange, status
from tests.web.routes import ROUTES
from tests.web.serving import Web

OLD = b" HTTP/1.0\r\nHost: localhost\r\n"
KEPT = b"Connection: keep-alive\r\n"
PARTS = (b"one,", b"", b"two,", b"three")


async def stream(request: Request, services: Services, who: Identity) -> Response:
    """An answer whose length nobody knows before."""

    async def parts() -> AsyncIterator[bytes]:
        for part in PARTS:
            yield part

    return StreamingResponse(parts())


@pytest.fixture(scope="module")
def streaming(opened: Web) -> Iterator[Web]:
    routes = (*ROUTES, Route("GET", "/stream", stream, scope=None))
    with opened.beside(routes=routes) as served:
        yield served


def test_a_connection_by_http_1_0_ends_with_its_answer(streaming: Web) -> None:
    for more in (b"", KEPT, b"Connection: close\r\n", b"Connection: Upgrade\r\nUpgrade: x\r\n"):
        get = b"GET /live" + OLD + more + b"\r\n"
        said = exchange(streaming.url, get * 2)
        assert said.count(b"HTTP/1.1 200") == 1
        assert b"connection: close\r\n" in said


def test_an_answer_without_a_length_has_no_chunks_for_http_1_0(streaming: Web) -> None:
    for more in (b"", KEPT):
        head, _, body = exchange(streaming.url, b"GET /stream" + OLD + more + b"\r\n").partition(
            b"\r\n\r\n"
        )
        assert status(head) == 200
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head
        assert body == b"".join(PARTS)
    new = b"GET /stream" + OLD.replace(b"1.0", b"1.1") + b"Connection: close\r\n\r\n"
    assert exchange(streaming.url, new).endswith(
        b"4\r\none,\r\n4\r\ntwo,\r\n5\r\nthree\r\n0\r\n\r\n"
    )


def test_nobody_is_told_to_go_on_by_http_1_0(streaming: Web) -> None:
    expecting = OLD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi"
    assert status(exchange(streaming.url, b"POST /live" + expecting)) == 200


def test_a_connection_ends_where_a_body_is_not_asked_for(streaming: Web) -> None:
    expecting = b" HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    said = exchange(streaming.url, b"POST /none" + expecting)
    assert status(said) == 404
    assert b"connection: close\r\n" in said
    # Where it is read it goes on.
    with connected(streaming.url) as connection:
        for _ in range(2):
            connection.sendall(b"POST /live" + expecting)
            assert status(connection.recv(65_536)) == 100
            connection.sendall(b"hi")
            assert status(connection.recv(65_536)) == 200

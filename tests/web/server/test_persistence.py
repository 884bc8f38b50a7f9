"""Whether a connection goes on after an answer: HTTP/1.0, bodies that are waited for, and idle
connections."""

import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from countersink.web import app
from countersink.web.auth.register import Identity
from countersink.web.http import Route
from countersink.web.server import protocol
from countersink.web.services import Services
from tests.support.waiting import eventually
from tests.web.raw import answer, connected, exchange, status
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


def test_a_connection_ends_when_it_is_idle_but_not_while_its_request_is_answered(
    opened: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "KEEP_ALIVE_S", 0)
    begun, done = threading.Event(), threading.Event()

    async def work(request: Request, services: Services, who: Identity) -> Response:
        begun.set()
        await services.run(done.wait, 20)
        return Response()

    get = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n"
    routes = (*ROUTES, Route("GET", "/work", work, scope=None))
    with opened.beside(routes=routes) as web, connected(web.url) as busy:
        busy.sendall(get % b"/work")
        assert begun.wait(20)
        with connected(web.url) as idle:
            idle.sendall(get % b"/live")
            assert answer(idle).count(b"HTTP/1.1 200") == 1
        done.set()
        assert answer(busy).count(b"HTTP/1.1 200") == 1


def test_increments_are_answered_alike_whether_or_not_the_connection_goes_on(opened: Web) -> None:
    body, accepted, end = b'{"counter":"pages"}', b'{"accepted":1}', b"Connection: close\r\n"
    post = b"POST /v1/increments HTTP/1.%d\r\nHost: localhost\r\n%bContent-Length: 19\r\n\r\n"
    with opened.beside() as web:
        said = exchange(web.url, (post % (1, b"") + body) * 3 + post % (1, end) + body)
        said += exchange(web.url, post % (0, b"") + body)
        with connected(web.url) as waiting:
            waiting.sendall(post % (1, b"Expect: 100-continue\r\n"))
            assert status(waiting.recv(65_536)) == 100
            waiting.sendall(body)
            said += waiting.recv(65_536)
    *heads, rest = said.split(accepted)
    assert rest == b""
    lines = [sorted(head.removesuffix(b"\r\n\r\n").split(b"\r\n")) for head in heads]
    assert [sum(line.startswith(b"date: ") for line in each) for each in lines] == [1] * 6
    going, *others = [[line for line in each if line[:6] != b"date: "] for each in lines]
    ending = sorted([*going, b"connection: close"])
    assert others == [going, going, ending, ending, going]
    assert {b"HTTP/1.1 202 Accepted", b"content-length: 14"} < set(going)


def test_an_increment_is_answered_when_its_client_takes_bytes_again(opened: Web) -> None:
    connections: list[protocol.BoundedProtocol] = []

    async def note(request: Request, services: Services, who: Identity) -> Response:
        connections.append(request.scope["countersink.write"].__self__)
        return Response()

    post = b"POST /v1/increments HTTP/1.1\r\nHost: localhost\r\nContent-Length: 19\r\n\r\n"
    routes = (*app.ROUTES, Route("GET", "/note", note, scope=None))
    with opened.beside(routes=routes) as web, connected(web.url) as deaf:
        deaf.sendall(b"GET /note HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status(deaf.recv(65_536)) == 200
        web.loop.call_soon_threadsafe(connections[0].pause_writing)  # as by a full buffer
        deaf.sendall(post + b'{"counter":"pages"}')
        eventually(lambda: web.services.answers[202] == 1)
        assert web.ask("GET", "/livez").status_code == 200
        deaf.setblocking(False)
        with pytest.raises(BlockingIOError):
            deaf.recv(1)
        deaf.settimeout(20)
        web.loop.call_soon_threadsafe(connections[0].resume_writing)
        assert status(deaf.recv(65_536)) == 202

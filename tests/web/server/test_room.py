"""Where there is no room for all: who makes room for whom."""

import asyncio
import re
import socket
import threading
from contextlib import ExitStack

import pytest
import requests
from starlette.requests import Request
from starlette.responses import Response

from countersink.web.auth.register import Identity
from countersink.web.endpoints.hits import MAX_BEACON_BYTES
from countersink.web.http import Route
from countersink.web.server import protocol
from countersink.web.server.protocol import FREE_BYTES, MAX_HELD, MOST_OVER
from countersink.web.services import Services
from tests.support.waiting import eventually
from tests.web.attacks.crowd import hung_up
from tests.web.raw import answer, connected, exchange, status
from tests.web.routes import ROUTES
from tests.web.serving import Web, serving


def test_more_connections_than_allowed_are_told_to_come_again(opened: Web) -> None:
    begun = threading.Semaphore(0)

    async def work(request: Request, services: Services, who: Identity) -> Response:
        begun.release()
        await services.stopping.wait()
        return Response()

    routes = (Route("GET", "/work", work, scope=None),)
    with opened.beside(routes=routes, max_connections=5) as web, ExitStack() as stack:
        for _ in range(5):
            busy = stack.enter_context(connected(web.url))
            busy.sendall(b"GET /work HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert begun.acquire(timeout=20)
        said = answer(stack.enter_context(connected(web.url)))
        assert status(said) == 503
        assert b"retry-after: 2\r\n" in said.lower()


def test_a_client_has_time_to_send_its_request_while_many_connections_are_opened(
    opened: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "ROOM_AFTER_S", 3_600)
    with opened.beside(routes=ROUTES, max_connections=5) as web, ExitStack() as stack:
        slow = stack.enter_context(connected(web.url))
        many = [stack.enter_context(connected(web.url)) for _ in range(5 + MOST_OVER - 2)]
        # Connections are accepted in their order: once the last one has an answer, all are.
        for each in stack.enter_context(connected(web.url)), slow:
            each.sendall(b"GET /read HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status(each.recv(65_536)) == 200
        assert not any(map(hung_up, many))
        stack.enter_context(connected(web.url))
        eventually(lambda: sum(map(hung_up, many)) == 1)


def test_bodies_that_do_not_end_and_answers_that_nobody_takes_make_room(opened: Web) -> None:
    request = b"GET /read HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with (
        opened.beside(max_connections=5, request_timeout_s=60) as web,
        ExitStack() as stack,
    ):
        form = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
        form += b"Content-Type: application/x-www-form-urlencoded\r\n\r\nkey"
        held = [stack.enter_context(connected(web.url)) for _ in range(5)]
        where = held[0].getpeername()
        for each in held:
            each.sendall(form)

        def served() -> bool:
            late = stack.enter_context(connected(web.url))
            late.sendall(request.replace(b"/read", b"/livez"))
            said = late.recv(65_536)
            return bool(said) and status(said) == 200

        assert served()
        eventually(lambda: any(map(hung_up, held)))
        assert sum(b" 503 " in said for said in map(_heard, held)) == 1
        # As many as there may be again, of clients that read nothing.
        large = request.replace(b"/read", b"/openapi.json") * 90
        for _ in range(6):
            deaf = stack.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            deaf.connect(where)
            deaf.sendall(large)
        eventually(served)


def test_small_bodies_and_beacons_do_not_wait_for_room_among_large_ones(
    redis_url: str, mysql_url: str
) -> None:
    with (
        serving(redis_url, mysql_url, public_counters=("pages",), request_timeout_s=60) as web,
        ExitStack() as others,
    ):

        def in_two_parts(path: bytes, body: bytes) -> int:
            head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            with connected(web.url) as connection:
                connection.sendall(head % (path, len(body)) + body[:-1])
                requests.get(f"{web.url}/livez", timeout=20)  # the first part is read by then
                try:
                    connection.sendall(body[-1:])
                except OSError:
                    pass  # it was refused already
                return status(connection.recv(65_536))

        increment = b'{"counter":"pages"}'
        large = increment.ljust(1_000_000)
        assert in_two_parts(b"/v1/increments", large) == 202
        for _ in range(MAX_HELD // (len(large) - 1 - FREE_BYTES)):
            other = others.enter_context(connected(web.url))
            other.sendall(
                b"POST /v1/increments HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(large), large[:-1])
            )
        requests.get(f"{web.url}/livez", timeout=20)
        assert in_two_parts(b"/v1/increments", increment + b" " * 3_000) == 202
        assert in_two_parts(b"/v1/increments", increment.ljust(FREE_BYTES)) == 202
        assert in_two_parts(b"/v1/increments", large) == 503
        assert in_two_parts(b"/hit/pages/x", bytes(MAX_BEACON_BYTES)) == 204
        head = b"POST /hit/pages/x HTTP/1.1\r\nHost: localhost\r\n"
        chunks = b"Transfer-Encoding: chunked\r\n\r\n" + b"8000\r\n%b\r\n" % bytes(0x8000) * 3
        for body in (b"Content-Length: 65537\r\n\r\n", chunks):
            assert status(exchange(web.url, head + body)) == 413
        others.close()
        eventually(lambda: in_two_parts(b"/v1/increments", large) == 202)


@pytest.mark.usefixtures("many_files")
def test_a_pipeline_without_room_ends_after_the_answer_that_is_due(opened: Web) -> None:
    begun, go_on = threading.Semaphore(0), asyncio.Event()
    served = []

    async def work(request: Request, services: Services, who: Identity) -> Response:
        served.append(request.path_params["name"])
        begun.release()
        await go_on.wait()
        return Response(b"done")

    routes = (Route("POST", "/work/{name}", work, scope=None, waits=False),)
    with opened.beside(routes=routes, max_body_bytes=MAX_HELD) as web:
        first = b"POST /work/first HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        more = first.replace(b"first", b"more").replace(b" 0\r", b" 25000\r") + bytes(25_000)
        with ExitStack() as stack:
            many = []
            for _ in range(700):  # one after the other: none waits so long that it is ended
                many.append(each := stack.enter_context(connected(web.url)))
                each.sendall(first)
                assert begun.acquire(timeout=100)
                each.sendall(more * 2)
            requests.get(f"{web.url}/nowhere", timeout=20)
            web.loop.call_soon_threadsafe(go_on.set)
            answers = []
            for each in many:
                said = b""
                while said.count(b"done") < 3 and (part := each.recv(65_536)):
                    said += part
                answers.append(re.findall(rb"HTTP/1\.1 (\d+)", said))
    ended = answers.count([b"200"])
    assert 0 < ended < len(many)
    assert answers.count([b"200"] * 3) == len(many) - ended
    assert served.count("more") == 2 * (len(many) - ended)


@pytest.mark.usefixtures("many_files")
def test_bodies_that_no_handler_takes_are_bounded(opened: Web) -> None:
    begun = threading.Semaphore(0)

    async def work(request: Request, services: Services, who: Identity) -> Response:
        begun.release()
        await services.stopping.wait()
        return Response()

    routes = (Route("GET", "/work", work, scope=None, waits=False),)
    with opened.beside(routes=routes) as web, ExitStack() as stack:
        sent = b"GET /work HTTP/1.1\r\nHost: localhost\r\nContent-Length: 250000\r\n\r\n"
        body = bytes(250_000)
        many = []
        for _ in range(5 * MAX_HELD // len(body)):
            each = stack.enter_context(connected(web.url))
            each.sendall(sent)
            assert begun.acquire(timeout=20)
            try:
                each.sendall(body)
            except OSError:
                pass  # it was ended
            many.append(each)
        requests.get(f"{web.url}/nowhere", timeout=20)
        ended = sum(map(hung_up, many))
        assert 0 < ended < len(many) - MAX_HELD // len(body)


def _heard(connection: socket.socket) -> bytes:
    """What the server has said, if anything."""
    connection.setblocking(False)
    try:
        return connection.recv(65_536)
    except BlockingIOError:
        return b""

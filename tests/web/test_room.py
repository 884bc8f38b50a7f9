"""Where there is no room for all: who makes room for whom."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack

import requests
from starlette.requests import Request
from starlette.responses import Response

from countersink.web.bodies import FREE_BYTES, MAX_ARRIVING
from countersink.web.door import Door
from countersink.web.hits import MAX_BEACON_BYTES
from countersink.web.identity import Identity
from countersink.web.services import Services
from tests.support.waiting import eventually
from tests.web.doors import DOORS
from tests.web.raw import answer, connected, exchange, status
from tests.web.serving import Web, serving


def test_more_connections_than_allowed_are_told_to_come_again(opened: Web) -> None:
    urls = opened.options.redis_url, opened.options.mysql_url
    begun = threading.Semaphore(0)

    async def work(request: Request, services: Services, who: Identity) -> Response:
        begun.release()
        await services.stopping.wait()
        return Response()

    doors = (Door(method="GET", path="/work", handler=work, scope=None),)
    with serving(*urls, doors=doors, max_connections=5) as web, ExitStack() as stack:
        for _ in range(5):
            busy = stack.enter_context(connected(web.url))
            busy.sendall(b"GET /work HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert begun.acquire(timeout=20)
        said = answer(stack.enter_context(connected(web.url)))
        assert status(said) == 503
        assert b"retry-after: 2\r\n" in said.lower()


def test_where_there_are_too_many_one_that_does_nothing_makes_room(opened: Web) -> None:
    urls = opened.options.redis_url, opened.options.mysql_url
    request = b"GET /read HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(*urls, doors=DOORS, max_connections=5) as web, ExitStack() as stack:
        idle = [stack.enter_context(connected(web.url)) for _ in range(5)]
        idle[0].sendall(request)
        assert status(idle[0].recv(65_536)) == 200
        late = stack.enter_context(connected(web.url))
        late.sendall(request)
        assert status(late.recv(65_536)) == 200


def test_bodies_that_do_not_end_and_answers_that_nobody_takes_make_room(opened: Web) -> None:
    urls = opened.options.redis_url, opened.options.mysql_url
    request = b"GET /read HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with (
        serving(*urls, max_connections=5, request_timeout_s=60) as web,
        ExitStack() as stack,
    ):
        form = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
        form += b"Content-Type: application/x-www-form-urlencoded\r\n\r\nkey"
        held = [stack.enter_context(connected(web.url)) for _ in range(5)]
        where = held[0].getpeername()
        for each in held:
            each.sendall(form)

        def served() -> bool:
            with connected(web.url) as late:
                late.sendall(request.replace(b"/read", b"/livez"))
                said = late.recv(65_536)
                return bool(said) and status(said) == 200

        assert served()
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
    with serving(redis_url, mysql_url, public_counters=("pages",)) as web:
        web.services.arriving.size = MAX_ARRIVING  # of others

        def in_two_parts(path: bytes, body: bytes) -> int:
            head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            with connected(web.url) as connection:
                connection.sendall(head % (path, len(body)) + body[:-1])
                requests.get(f"{web.url}/livez", timeout=20)  # the first part is read by then
                connection.sendall(body[-1:])
                return status(connection.recv(65_536))

        increment = b'{"counter":"pages"}'
        assert in_two_parts(b"/v1/increments", increment + b" " * 3_000) == 202
        assert in_two_parts(b"/v1/increments", increment.ljust(FREE_BYTES)) == 202
        assert in_two_parts(b"/v1/increments", increment.ljust(FREE_BYTES + 2)) == 503
        assert in_two_parts(b"/hit/pages/x", bytes(MAX_BEACON_BYTES)) == 204
        assert web.services.arriving.size == MAX_ARRIVING
        head = b"POST /hit/pages/x HTTP/1.1\r\nHost: localhost\r\n"
        chunks = b"Transfer-Encoding: chunked\r\n\r\n" + b"8000\r\n%b\r\n" % bytes(0x8000) * 3
        for body in (b"Content-Length: 65537\r\n\r\n", chunks):
            assert status(exchange(web.url, head + body)) == 413


def _heard(connection: socket.socket) -> bytes:
    """What the server has said, if anything."""
    connection.setblocking(False)
    try:
        return connection.recv(65_536)
    except BlockingIOError:
        return b""

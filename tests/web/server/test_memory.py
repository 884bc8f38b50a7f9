"""What clients make the server hold is bounded, however they pipeline, and given back."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import requests

from countersink.database.migrate import migrate
from countersink.web.server.protocol import MAX_HELD
from tests.support.databases import dropped, new_name
from tests.support.processes import Children
from tests.support.servers import MySQLServer, RedisServer
from tests.support.waiting import eventually
from tests.web.process import WebProcess, resident
from tests.web.raw import connected

pytestmark = [
    pytest.mark.usefixtures("many_files"),
    # The bounds themselves: test_room.py; the memory that one client takes: test_attacks.py.
    pytest.mark.long("a process and 950 connections for each"),
]

CONNECTIONS = 950
OTHERS = 64 << 20
"""Bytes for connections and their buffers, and for what the allocator keeps."""
BODY = 250_000
HOST = b"Host: localhost\r\n"
SLOW = (
    b"POST /v1/increments?wait=applied HTTP/1.1\r\n"
    + HOST
    + b'Content-Length: 18\r\n\r\n{"counter":"slow"}'
)
"""Takes as long as there is no worker."""
LENGTH = b"Content-Length: %d\r\n\r\n" % BODY
POST = b"POST /v1/increments HTTP/1.1\r\n" + HOST
GET = b"GET /livez HTTP/1.1\r\n" + HOST
BODIES = {
    "a body": POST + LENGTH + b" " * BODY,
    "a body without end, of one who offers an Upgrade": POST
    + b"Connection: Upgrade\r\nUpgrade: x\r\n"
    + LENGTH
    + b" " * (BODY - 1),
}
HEADS = {
    "many requests": (GET + b"\r\n") * 50,
    "many headers": (GET + b"a:\r\n" * 98 + b"\r\n") * 20,
}


@pytest.fixture(scope="module")
def process(mysql_server: MySQLServer, redis_server: RedisServer) -> Iterator[WebProcess]:
    with dropped(mysql_server, new_name()) as mysql_url, Children() as children:
        migrate(mysql_url)
        yield WebProcess.start(
            children,
            redis_server.url,
            mysql_url,
            "--without-keys",
            *("--rate-per-address", "0"),
            *("--request-timeout-s", "60"),
        )


@pytest.fixture(scope="module")
def before(process: WebProcess) -> int:
    """What was resident before anybody came."""
    quiet(process)
    return resident(process.child)


def send(connections: list[socket.socket], data: bytes) -> None:
    """As much of it as each connection takes now."""
    for each in connections:
        each.setblocking(False)
        try:
            each.send(data)
        except OSError:
            pass  # full, or ended
        each.setblocking(True)


def quiet(process: WebProcess) -> None:
    """All that was sent is read, or left in the network: the server answers a newcomer."""
    for _ in range(3):
        assert requests.get(f"{process.url}/livez", timeout=60).ok


@contextmanager
def crowd(process: WebProcess) -> Iterator[list[socket.socket]]:
    """Many connections, when those of others are gone."""
    eventually(lambda: len(list(Path(f"/proc/{process.child.pid}/fd").iterdir())) < 100)
    Path(f"/proc/{process.child.pid}/clear_refs").write_text("5")  # its peak is what it has now
    with ExitStack() as stack:
        yield [stack.enter_context(connected(process.url)) for _ in range(CONNECTIONS)]


def peak(process: WebProcess, pipelined: bytes) -> int:
    """The most memory it had while many sent this behind a request that takes long."""
    with crowd(process) as many:
        send(many, SLOW)
        quiet(process)
        send(many, pipelined)
        quiet(process)
        return resident(process.child, "VmHWM")


@pytest.mark.parametrize("sent", BODIES)
def test_bodies_that_wait_in_pipelines_are_bounded_and_given_back(
    process: WebProcess, before: int, sent: str
) -> None:
    assert peak(process, BODIES[sent]) - before < MAX_HELD + OTHERS
    eventually(lambda: resident(process.child) - before < MAX_HELD)


@pytest.mark.parametrize("sent", HEADS)
def test_requests_that_wait_in_pipelines_are_bounded(
    process: WebProcess, before: int, sent: str
) -> None:
    assert peak(process, HEADS[sent]) - before < MAX_HELD + OTHERS

"""Talking to the server byte by byte, as no well-behaved client would."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A connection to the server at ``url``."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=20) as opened:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as it is cut, it goes out
        yield opened


def answer(connection: socket.socket) -> bytes:
    """All that the server says until it hangs up."""
    parts = []
    while True:
        try:
            part = connection.recv(65_536)
        except ConnectionResetError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def exchange(url: str, request: bytes) -> bytes:
    """Send exactly these bytes; the whole answer. The request must make the server hang up."""
    with connected(url) as connection:
        connection.sendall(request)
        return answer(connection)


def status(reply: bytes) -> int:
    """The status of the first answer in ``reply``."""
    return int(reply.split(b" ", 2)[1])

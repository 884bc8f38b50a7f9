"""Many connections at a time, of clients that are slow, silent, deaf, or simply too many."""

import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.web.attacks.target import Target

WINDOW_BYTES = 4_096
"""What a client that does not read has room for."""


@contextmanager
def crowd(
    target: Target, number: int, *, window: int | None = None, address: str = "127.0.0.1"
) -> Iterator[list[socket.socket]]:
    """So many connections, until the end of the block.

    Args:
        target: to whom.
        number: how many.
        window: bytes that the receiving side of each keeps.
        address: of this machine, which they come from, such as 127.0.0.9.
    """
    opened: list[socket.socket] = []
    try:
        for _ in range(number):
            each = socket.socket()
            opened.append(each)
            if window is not None:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
            each.settimeout(20)
            each.bind((address, 0))
            each.connect((target.host, target.port))
        yield opened
    finally:
        for each in opened:
            each.close()


def hung_up(connection: socket.socket) -> bool:
    """Whether the server has ended it, whatever else there is to read."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def drip(connections: Sequence[socket.socket], text: bytes) -> int:
    """Send a little on each; how many the server has not ended yet."""
    left = 0
    for each in connections:
        if hung_up(each):
            continue
        try:
            each.send(text)
        except OSError:
            continue
        left += 1
    return left

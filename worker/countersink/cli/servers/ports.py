"""Free ports on the loopback address."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"

# Below the usual ephemeral range (32768 and up on Linux): the port of a server that was stopped
# must not be taken by some client's outgoing connection before the server is started again.
FIRST, LAST = 20_000, 31_999


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now, by TCP and by UDP."""
    return _can_bind(port, socket.SOCK_STREAM) and _can_bind(port, socket.SOCK_DGRAM)


def _can_bind(port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def usual_or_free(usual: int) -> int:
    """``usual`` where it is free, else :func:`free_port`."""
    return usual if is_free(usual) else free_port()


def free_port() -> int:
    """A port that was free a moment ago; another process may still win the race for it."""
    draw = random.SystemRandom()  # forks and equal seeds must not draw the same ports
    for _ in range(1000):
        port = draw.randint(FIRST, LAST)
        if is_free(port):
            return port
    raise OSError(f"no free port between {FIRST} and {LAST} on {LOOPBACK}")

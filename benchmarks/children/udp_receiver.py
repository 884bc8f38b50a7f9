"""The least that a UDP server in Python can do: receive a datagram, and count it."""

from __future__ import annotations

import socket
import time
from typing import Final

from benchmarks.processes import answer, first_message

RCVBUFFORCE: Final = 33
"""socket(7); Python has no name for it."""
BUFFER_BYTES: Final = 16 << 20
"""As much as `countersink statsd` asks for."""
LARGEST: Final = 65_535


def open_receiver(port: int = 0) -> socket.socket:
    """A socket at a port of this machine, with as much room as it gets."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        receiver.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, BUFFER_BYTES)
    except OSError:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    receiver.bind(("127.0.0.1", port))
    return receiver


def main() -> None:
    """Count datagrams until an empty one comes."""
    first_message()
    with open_receiver() as receiver:
        answer({"port": receiver.getsockname()[1]})
        receive, count = receiver.recv, 0
        begun = time.process_time()
        while receive(LARGEST):
            count += 1
        answer({"count": count, "cpu_seconds": time.process_time() - begun})


if __name__ == "__main__":
    main()

"""A listener in this process, into a producer that remembers."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from countersink.producers import Producer
from countersink.statsd import Figures, Server, StatsdOptions
from tests.support.producing import recorder
from tests.support.waiting import eventually


class Listener:
    """The server and what it has counted."""

    def __init__(self, server: Server, producer: Producer) -> None:
        self.server = server
        self.producer = producer

    @property
    def figures(self) -> Figures:
        """The figures now."""
        return self.server.figures

    def port(self, scheme: str = "udp") -> int:
        """Where it listens."""
        (url,) = (each for each in self.server.listening if each.startswith(f"{scheme}://127."))
        return int(url.rpartition(":")[2])

    def sender(self) -> socket.socket:
        """A UDP socket connected to it."""
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.connect(("127.0.0.1", self.port()))
        return sender

    def connection(self) -> socket.socket:
        """A TCP connection to it."""
        return socket.create_connection(("127.0.0.1", self.port("tcp")), timeout=20)

    def takes(self, sender: socket.socket, data: bytes, lines: int) -> None:
        """Send, and wait until it has seen so many lines in all."""
        sender.sendall(data)
        self.has_lines(lines)

    def has_lines(self, number: int) -> None:
        """Wait until it has seen so many, and the producer has what they count."""
        eventually(
            lambda: self.figures.lines >= number, message=lambda: f"{self.figures} ≠ {number}"
        )
        assert self.figures.lines == number
        self.server._tally.deliver()  # after the turn in which it saw them


@contextmanager
def listening(**options: Any) -> Iterator[Listener]:
    """A listener at a free port of loopback."""
    producer = recorder()
    with Server(StatsdOptions(**{"port": 0, **options}), producer) as server:
        yield Listener(server, producer)

"""Ports for servers that take some seconds to listen on them, or are started on them again."""

import socket

from countersink.cli.private_server import LOOPBACK, free_port


class Ports:
    """Ports of 127.0.0.1 that nobody else draws until :meth:`close`.

    A port is free for those who draw one if nobody has it by TCP or by UDP: it is held by UDP, and
    servers listen by TCP.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def draw(self) -> int:
        """A port that is free."""
        while True:
            port = free_port()
            holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                holder.bind((LOOPBACK, port))
            except OSError:  # somebody has just drawn it
                holder.close()
                continue
            self._held.append(holder)
            return port

    def close(self) -> None:
        """Let go of all of them."""
        for holder in self._held:
            holder.close()
        self._held.clear()

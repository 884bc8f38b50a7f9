"""An HTTP/1.1 proxy that can lose a request or a reply, as one that is restarted does."""

from __future__ import annotations

import re
import socket

from tests.support.proxies.rules import Phase, Request
from tests.support.proxies.tcp import Link, Proxy

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


class HttpProxy(Proxy):
    """Between a client and an HTTP server, with rules by method and path: ``POST /v1/increments``.

    Bodies have a Content-Length, as those of our tests and of our server have.
    """

    @classmethod
    def to(cls, port: int) -> HttpProxy:
        """A proxy in front of the server at this port of loopback."""
        return cls(("127.0.0.1", port))

    @property
    def url(self) -> str:
        """Its root, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def serve(self, link: Link) -> None:
        while True:
            head, raw = _message(link, link.client)
            method, target = head.split(b" ", 2)[:2]
            kind = f"{method.decode('latin-1')} {target.partition(b'?')[0].decode('latin-1')}"
            request = Request(kind, head.decode("latin-1"), link.number)
            self.note(request)
            self.perform(link, request, Phase.BEFORE)
            link.send(link.server, raw)
            _, reply = _message(link, link.server)
            self.perform(link, request, Phase.AFTER, reply)
            link.send(link.client, reply)


def _message(link: Link, side: socket.socket) -> tuple[bytes, bytes]:
    """A request's or a reply's head, and all its bytes."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += link.take_line(side)
    length = _LENGTH.search(head)
    return head, head + (link.take(side, int(length[1])) if length else b"")

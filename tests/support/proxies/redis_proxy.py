"""A Redis proxy that knows which command passes through it (RESP 2, as the product speaks it)."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit, urlunsplit

from tests.support.proxies.rules import Phase, Request
from tests.support.proxies.tcp import Cut, Link, Proxy

SHOWN_ARGUMENTS = 8


class RedisProxy(Proxy):
    """Between a client and a Redis server, with rules by command name (in capitals).

    EVAL, EVALSHA and FCALL are known by what the script does when its text came through here or
    was named with `name_script`: their kind is then the given name, else the command's. A pipeline
    is passed on command by command; when the reply of one is lost, the server still gets
    the rest of what the client had sent, as it would through a network.
    """

    def __init__(self, upstream: tuple[str, int] | str) -> None:
        super().__init__(upstream)
        self._scripts: dict[str, str] = {}

    @classmethod
    def to(cls, url: str) -> RedisProxy:
        """A proxy in front of the server that the URL names."""
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return cls(parts.path)
        return cls((parts.hostname or "127.0.0.1", parts.port or 6379))

    def url(self, url: str) -> str:
        """The same URL, by way of this proxy."""
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return f"redis://127.0.0.1:{self.port}/0"
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def name_script(self, digest: str, kind: str) -> None:
        """Call EVALSHA of this SHA-1 digest `kind` from now on."""
        self._scripts[digest] = kind

    def serve(self, link: Link) -> None:
        while True:
            raw, parts = take_command(link)
            request = self._request(parts, link.number)
            self.note(request)
            rule = self.perform(link, request, Phase.BEFORE)
            if rule is not None:
                link.send(link.client, f"-{rule.error}\r\n".encode())
                continue
            link.send(link.server, raw)
            reply = take_reply(link, link.server)
            try:
                self.perform(link, request, Phase.AFTER, reply)
            except Cut:
                self._run_rest(link)
                raise
            link.send(link.client, reply)

    def _run_rest(self, link: Link) -> None:
        """Execute what is left of a pipeline whose replies nobody will read."""
        while link.waiting(link.client):
            raw, _ = take_command(link)
            link.send(link.server, raw)
            take_reply(link, link.server)

    def _request(self, parts: list[bytes], connection: int) -> Request:
        words = [part.decode("utf-8", "replace") for part in parts[:SHOWN_ARGUMENTS]]
        name = words[0].upper() if words else ""
        kind = name
        if name == "EVALSHA" and len(words) > 1:
            kind = self._scripts.get(words[1], name)
        return Request(kind, " ".join(words), connection)


def take_command(link: Link) -> tuple[bytes, list[bytes]]:
    """One command: its bytes as they came, and its parts."""
    head = link.take_line(link.client)
    if head[:1] != b"*":
        return head, head.split()
    raw, parts = [head], []
    for _ in range(int(head[1:])):
        size_line = link.take_line(link.client)
        body = link.take(link.client, int(size_line[1:]) + 2)
        raw += (size_line, body)
        parts.append(body[:-2])
    return b"".join(raw), parts


def take_reply(link: Link, side: socket.socket) -> bytes:
    """One whole reply, arrays with all they hold, as its bytes came."""
    raw, left = [], 1
    while left:
        line = link.take_line(side)
        raw.append(line)
        left -= 1
        size = int(line[1:]) if line[:1] in b"$*" else 0
        if line[:1] == b"*":
            left += max(size, 0)
        elif line[:1] == b"$" and size >= 0:
            raw.append(link.take(side, size + 2))
    return b"".join(raw)

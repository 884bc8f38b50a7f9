"""A MySQL proxy that knows which statement passes through it."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from tests.support.proxies.mysql_packets import (
    COM_QUERY,
    COM_QUIT,
    ROLLS_BACK,
    error_packet,
    kind_of,
    log_in,
    query_packet,
    take_packet,
    take_reply,
)
from tests.support.proxies.rules import Phase, Request
from tests.support.proxies.tcp import Cut, Link, Proxy


class MySQLProxy(Proxy):
    """Between a client and a MySQL or MariaDB server, with rules by kind of statement.

    Kinds are those of `mysql_packets.KINDS`: begin, control, guards, slots, ledger, dead,
    commit, rollback, guard_lookup, … and "command" for what is not a query (a ping). A COMMIT of
    a transaction without guard rows is a "commit_other", so that "commit" is that of a batch.
    A rule with `Deed.ERROR` answers instead of the server. With 1213 and 1020 the transaction is
    rolled back on the server first, as a real one would have been; with 1205 it stays open.
    """

    @classmethod
    def to(cls, url: str) -> MySQLProxy:
        """A proxy in front of the server that the URL names."""
        parts = urlsplit(url)
        return cls((parts.hostname or "127.0.0.1", parts.port or 3306))

    def url(self, url: str) -> str:
        """The same URL, by way of this proxy."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def kinds(self) -> list[str]:
        """The kinds of the statements seen, oldest first."""
        return [request.kind for request in list(self.seen)]

    def serve(self, link: Link) -> None:
        if not log_in(link):
            return
        guarded = False
        while True:
            try:
                payload, raw, sequence = take_packet(link, link.client)
            except Cut:
                link.rest_to_client()
                raise
            if payload[0] == COM_QUIT:
                link.send(link.server, raw)
                return
            request = self._request(payload, link, guarded)
            if request.kind in ("guards", "begin", "commit", "commit_other", "rollback"):
                guarded = request.kind == "guards"
            self.note(request)
            rule = self.perform(link, request, Phase.BEFORE)
            if rule is not None:
                self._refuse(link, int(rule.error), sequence)
                continue
            link.send(link.server, raw)
            reply = take_reply(link)
            self.perform(link, request, Phase.AFTER, reply)
            link.send(link.client, reply)

    def _request(self, payload: bytes, link: Link, guarded: bool) -> Request:
        if payload[0] != COM_QUERY:
            return Request("command", f"command {payload[0]}", link.number)
        text = payload[1:].decode("utf-8", "replace")
        kind = kind_of(text)
        if kind == "commit" and not guarded:
            kind = "commit_other"
        return Request(kind, text, link.number)

    def _refuse(self, link: Link, code: int, sequence: int) -> None:
        if code in ROLLS_BACK:
            link.send(link.server, query_packet("ROLLBACK"))
            take_reply(link)
        link.send(link.client, error_packet(code, sequence + 1))

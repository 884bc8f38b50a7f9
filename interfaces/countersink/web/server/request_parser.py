"""Where a request ends on a connection (RFC 9112): refuses ambiguous framing with 400, HTTP/1.0,
Upgrade; bounds of size and time are in ``protocol.py``.

A proxy before us may send the requests of many visitors on one connection. If the two of us saw
the end of one at different places, what one visitor sends as a body would run as the next one's
request. So what is not clear is refused, and the connection ends.
"""

from typing import Any, Final, NoReturn

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from countersink.web.errors import Problem
from countersink.web.http.headers import MAX_HEADERS

_OLD: Final = "1.0"


class FramedProtocol(HttpToolsProtocol):
    """uvicorn's connection, with bodies of requests that offer an Upgrade, with HTTP/1.0, and
    strict."""

    def feed(self, data: bytes) -> None:
        """Read requests.

        Of one that offers an Upgrade the parser reads the head alone, and leaves what follows to
        the other protocol. We do none, so we go on as if it had not been offered (RFC 9110, 7.8):
        a new parser reads the head without the offer, and then the rest.

        Raises:
            httptools.HttpParserError: it is no HTTP; what a callback has raised is its context.
        """
        try:
            self.parser.feed_data(data)
            return
        except httptools.HttpParserUpgrade as offer:
            rest = memoryview(data)[offer.args[0] :]
        while True:
            head = self._head_without_offer()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            self.parser.feed_data(head)
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or what came after a body in chunks.

        Raises:
            Problem: there are too many, or it leaves open where the request ends.
        """
        if len(self.headers) >= MAX_HEADERS:
            self.on_many_headers()
        name = name.lower()
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        elif name == b"transfer-encoding" and value.lower() != b"chunked":
            raise no_request()
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Its head is here.

        Raises:
            Problem: it leaves open where the request ends, or for whom it is.
        """
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise no_request()  # there is no end to it
            return
        version = self.parser.get_http_version()
        if version != "1.1":
            if version != _OLD or any(name == b"transfer-encoding" for name, _ in self.headers):
                raise no_request()
            self.expect_100_continue = False
        if self.url[:1] != b"/":
            self._check_authority()
        self.on_head()
        if version == _OLD:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """All of it is here, unless it is to be read again.

        Raises:
            Problem: what came after its body (its trailers) ends the connection, unlike its head:
                the parser would read no further, and the next request get no answer.
        """
        if self.parser.should_upgrade():
            return
        if self.cycle.keep_alive and not self.parser.should_keep_alive():
            raise no_request()
        self.on_end()

    # What to do, once it is clear that a head, or all of a request, is here.
    on_head = HttpToolsProtocol.on_headers_complete
    on_end = HttpToolsProtocol.on_message_complete

    def on_many_headers(self) -> NoReturn:
        """There are more headers than a request has.

        Raises:
            Problem: always.
        """
        raise no_request()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.waiting_for_100_continue or cycle.scope["http_version"] == _OLD:
            app = _Answering(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _check_authority(self) -> None:
        """Of a whole URL, as proxies are asked, the host counts (RFC 9112, 3.2.2): a Host header
        that names another is refused."""
        authority = self.url.partition(b"://")[2].partition(b"/")[0]
        if [authority.lower()] != [
            value.lower() for name, value in self.headers if name == b"host"
        ]:
            raise no_request()


class _Answering:
    """Stands before the application where an answer decides whether the connection goes on.

    Args:
        app: the application.
        cycle: uvicorn's, of the request.
    """

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle
        self._until_close = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._begin(scope, message)
            elif self._until_close:
                # for uvicorn, which compares the body with the length that was told
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, answer)

    def _begin(self, scope: Scope, message: Message) -> None:
        cycle = self._cycle
        if cycle.waiting_for_100_continue and cycle.more_body:
            # Some then leave the body out, and some send it (RFC 9110, 10.1.1).
            cycle.keep_alive = False
        if scope["http_version"] == _OLD:
            names = {name.lower() for name, _ in message.get("headers", ())}
            if b"content-length" not in names:
                # HTTP/1.0 has no chunks: such an answer ends with the connection.
                cycle.chunked_encoding = False
                self._until_close = True


def no_request() -> Problem:
    """What is told whose request cannot be understood; the connection ends with it."""
    return Problem(400, "This is no HTTP request")

"""``FramedProtocol``, a connection that finds the beginning and end of each request strictly by RFC
9112: an ambiguous request gets 400. It also handles HTTP/1.0, Upgrade and Expect. See
``protocol.py`` for limits of size and time.

A proxy in front of this server may send the requests of many clients on one connection. If proxy
and server disagreed where a request ends, a part of one client's body would run as another client's
request (request smuggling). So an ambiguous request is refused, and the connection ends.
"""

from typing import Any, Final, NoReturn

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from countersink.web.errors import Problem
from countersink.web.http.answers import MAX_HEADERS

_OLD: Final = "1.0"


class FramedProtocol(HttpToolsProtocol):
    """uvicorn's connection, which also refuses ambiguous requests, speaks HTTP/1.0, and reads the
    bodies of requests that offer an Upgrade."""

    def feed(self, data: bytes) -> None:
        """Parse received bytes of requests.

        The parser stops after the head of a request that offers an Upgrade. We ignore the offer
        (RFC 9110, 7.8): a new parser reads the head without the offer, and then the remaining
        bytes.

        Raises:
            httptools.HttpParserError: the bytes are not HTTP, or a callback raised an exception,
                which is the error's ``__context__``.
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
        """Process a header of a request, or a trailer of its chunked body.

        Raises:
            Problem: as :meth:`on_many_headers`, beyond :data:`MAX_HEADERS`; 400 the header makes
                the end of the request ambiguous: a Transfer-Encoding other than ``chunked``.
        """
        if len(self.headers) >= MAX_HEADERS:
            self.on_many_headers()
        name = name.lower()
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        elif name == b"transfer-encoding" and value.lower() != b"chunked":
            raise malformed_request()
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the complete head of a request, then call :meth:`on_head`, which passes the request
        on to the application. Do nothing for a request that offers an Upgrade: :meth:`feed` parses
        it again, without the offer.

        Raises:
            Problem: 400 the end of the request is ambiguous; its URL does not begin with ``/``, and
                its Host header is missing, repeated, or not the URL's host; the method is CONNECT;
                or the version of HTTP is neither 1.0 nor 1.1.
        """
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise malformed_request()  # a tunnel has no end
            return
        version = self.parser.get_http_version()
        if version != "1.1":
            if version != _OLD or any(name == b"transfer-encoding" for name, _ in self.headers):
                raise malformed_request()
            self.expect_100_continue = False
        if self.url[:1] != b"/":
            self._check_authority()
        self.on_head()
        if version == _OLD:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """Check the end of a request, then call :meth:`on_end`. Do nothing for a request that
        offers an Upgrade: :meth:`feed` parses it again, without the offer.

        Raises:
            Problem: 400 the trailers have ``Connection: close``, and the head does not. The parser
                would stop, and a next request on the connection would get no answer.
        """
        if self.parser.should_upgrade():
            return
        if self.cycle.keep_alive and not self.parser.should_keep_alive():
            raise malformed_request()
        self.on_end()

    # Hooks of subclasses: after the checks of a head, and of a complete request.
    on_head = HttpToolsProtocol.on_headers_complete
    on_end = HttpToolsProtocol.on_message_complete

    def on_many_headers(self) -> NoReturn:
        """Refuse a request that has too many headers.

        Raises:
            Problem: always, 400; a subclass may choose another status.
        """
        raise malformed_request()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.waiting_for_100_continue or cycle.scope["http_version"] == _OLD:
            app = _ConnectionEnd(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _check_authority(self) -> None:
        """Check that a request with an absolute URL has exactly one Host header, with the host of
        the URL. (``OPTIONS *`` has no host in its URL, and is refused.) The URL's host counts (RFC
        9112, 3.2.2), so another Host header would be ambiguous.

        Raises:
            Problem: 400 there is another Host header, or none.
        """
        authority = self.url.partition(b"://")[2].partition(b"/")[0]
        if [authority.lower()] != [
            value.lower() for name, value in self.headers if name == b"host"
        ]:
            raise malformed_request()


class _ConnectionEnd:
    """Wraps the application for two kinds of requests. To HTTP/1.0, an answer without a length is
    sent without chunks; the end of the connection is its end. If a client still waits for ``100
    Continue`` when its answer begins, the connection ends after the answer.

    Args:
        app: the application.
        cycle: uvicorn's object for one request and its answer.
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
                # uvicorn compares the body with this length
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, answer)

    def _begin(self, scope: Scope, message: Message) -> None:
        cycle = self._cycle
        if cycle.waiting_for_100_continue and cycle.more_body:
            # Some clients now omit the body, and some send it (RFC 9110, 10.1.1).
            cycle.keep_alive = False
        if scope["http_version"] == _OLD:
            names = {name.lower() for name, _ in message.get("headers", ())}
            if b"content-length" not in names:
                # HTTP/1.0 has no chunks: the end of the connection ends the answer.
                cycle.chunked_encoding = False
                self._until_close = True


def malformed_request() -> Problem:
    """Return the problem (400) of a request that is ambiguous or not HTTP. The connection ends
    after its answer."""
    return Problem(400, "The bytes are not a valid HTTP request")

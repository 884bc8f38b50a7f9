"""Requests that nobody sends who means well, byte by byte, and what each may be answered."""

from typing import Final

HOST: Final = b"Host: localhost\r\n"
END: Final = b"Connection: close\r\n\r\n"
GET: Final = b"GET /v1/whoami HTTP/1.1\r\n"
POST: Final = b"POST /v1/increments HTTP/1.1\r\n" + HOST
HIDDEN: Final = b"POST /v1/increments HTTP/1.1\r\n" + HOST + b"X-API-Key: KEY\r\n"
"""The beginning of a request that is smuggled in another one's body. ``KEY`` stands for a real
key, so that it would be counted if it were taken for a request."""
INNER: Final = (
    HIDDEN
    + b"Content-Type: application/json\r\nContent-Length: 22\r\n\r\n"
    + b'{"counter":"smuggled"}'
)

LENGTH: Final = b"Content-Length: %d\r\n" % len(INNER)
CODING: Final = b"Transfer-Encoding: "
CHUNKED: Final = CODING + b"chunked\r\n"
CHUNKS: Final = CHUNKED + b"\r\n"
"""The end of a head whose body comes in chunks."""
LAST: Final = b"0\r\n\r\n"
UPGRADE: Final = b"Upgrade: x\r\nConnection: Upgrade"

Wire = tuple[str, bytes, set[int]]

_POSTS: Final[tuple[Wire, ...]] = (
    ("a length and chunks", b"Content-Length: 5\r\n" + CHUNKS + LAST, {400}),
    ("chunks and a length", CHUNKED + b"Content-Length: 5\r\n\r\n" + LAST, {400}),
    ("two lengths", b"Content-Length: 0\r\nContent-Length: 200\r\n\r\n", {400}),
    ("lengths in a list", b"Content-Length: 0, 200\r\n\r\n", {400}),
    ("a length with a sign", b"Content-Length: +0\r\n\r\n", {400}),
    ("a length in hex", b"Content-Length: 0x0\r\n\r\n", {400}),
    ("a space before the colon", b"Content-Length : 0\r\n\r\n", {400}),
    ("a coding that is not chunked", CODING + b"xchunked\r\n\r\n" + LAST, {400}),
    ("chunked is not the last coding", CODING + b"chunked, identity\r\n\r\n" + LAST, {400}),
    (
        "a coding hidden by a tab",
        b"Transfer-Encoding:\x0bchunked\r\nContent-Length: 3\r\n\r\n" + LAST,
        {400},
    ),
    ("a coding twice", CHUNKED + CODING + b"identity\r\n\r\n" + LAST, {400}),
    ("a chunk whose size overflows", CHUNKS + b"10000000000000000\r\n", {400, 401}),
    ("a chunk with a negative size", CHUNKS + b"-1\r\n", {400, 401}),
    ("a chunk without its end", CHUNKS + b"1\r\nxx\r\n" + LAST, {400, 401}),
    ("a length in a line that goes on", b"X-A: b\r\n Content-Length: 200\r\n" + END, {400, 401}),
    ("a bare carriage return", b"X-A: b\rContent-Length: 200\r\n" + END, {400}),
    ("a coding and chunks", CODING + b"gzip, chunked\r\n\r\n" + LAST, {400}),
    ("chunks after a comma", CODING + b", chunked\r\n\r\n" + LAST, {400}),
    ("a coding and chunks in two lines", CODING + b"gzip\r\n" + CHUNKS + LAST, {400}),
    ("a bare line feed after a header", b"X-A: b\nContent-Length: 200\r\n" + END, {400}),
    ("a bare line feed after the size of a chunk", CHUNKS + b"0\n\r\n", {400, 401}),
    ("a bare line feed in a chunk's extension", CHUNKS + b"2;\nxx\r\n" + LAST, {400, 401}),
    ("a length after a body in chunks", CHUNKS + b"0\r\nContent-Length: 5\r\n\r\n", {400, 401}),
    ("an offer to upgrade, with a body", UPGRADE + b", close\r\n" + LENGTH + b"\r\n", {401}),
    (
        "an offer to upgrade, with a length and chunks",
        UPGRADE + b"\r\nContent-Length: 5\r\n" + CHUNKS + LAST,
        {400},
    ),
    (
        "a body that is announced, not asked for, and not sent",
        b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        {401},
    ),
)
"""Headers and bodies between the first lines of a POST and the inner request."""
_EMPTY: Final = POST + b"Content-Length: 0\r\n\r\n" + INNER
_KEPT: Final = POST.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\n"

SMUGGLING: Final[tuple[Wire, ...]] = (
    *((name, POST + between + INNER, statuses) for name, between, statuses in _POSTS),
    ("chunks by HTTP/1.0", _KEPT + CHUNKS + LAST + INNER, {400}),
    ("HTTP/2.0", _EMPTY.replace(b"1.1", b"2.0", 1), {400}),
    ("HTTP/0.9", _EMPTY.replace(b"1.1", b"0.9", 1), {400}),
    ("a tunnel", _EMPTY.replace(b"POST /v1/increments", b"CONNECT localhost:22", 1), {400}),
    (
        "a URL whose host is not that of the header",
        POST.replace(b" /", b" http://evil.example/") + LENGTH + b"\r\n" + INNER,
        {400},
    ),
    ("a GET with a body", GET + HOST + LENGTH + END + INNER, {401}),
)
"""Bodies that two servers in a row could see the end of at different places. In none of them the
inner request is one."""

HEADS: Final[tuple[Wire, ...]] = (
    ("no host", GET + END, {400}),
    ("two hosts", GET + HOST + b"Host: evil.example\r\n" + END, {400}),
    ("two keys", GET + HOST + b"X-API-Key: a\r\nX-API-Key: b\r\n" + END, {400}),
    ("two origins", GET + HOST + b"Origin: a\r\nOrigin: b\r\n" + END, {400}),
    ("a name that was rebound", GET + b"Host: evil.example\r\n" + END, {421}),
    ("a host with somebody else's in it", GET + b"Host: localhost@evil.example\r\n" + END, {400}),
    ("a host with a path", GET + b"Host: localhost/evil\r\n" + END, {400}),
    ("a host with a line in it", GET + b"Host: local\rhost\r\n" + END, {400}),
    ("a NUL in a value", GET + HOST + b"X-A: a\0b\r\n" + END, {400}),
    ("a NUL in a name", GET + HOST + b"X\0A: b\r\n" + END, {400}),
    ("a name that is empty", GET + HOST + b": b\r\n" + END, {400}),
    ("a name with a space", GET + HOST + b"X A: b\r\n" + END, {400}),
    ("a header of 70 kB", GET + HOST + b"X-A: " + b"a" * 70_000 + b"\r\n" + END, {431}),
    ("a header of 10 MB", GET + HOST + b"X-A: " + b"a" * 10_000_000 + b"\r\n" + END, {431}),
    ("200 headers", GET + HOST + b"".join(b"X-%d: a\r\n" % n for n in range(200)) + END, {431}),
    ("headers without end", GET + HOST + b"X-A: b\r\n" * 100_000, {431}),
    ("a cookie of 60 kB", GET + HOST + b"Cookie: " + b"a=b; " * 12_000 + b"\r\n" + END, {401}),
    ("a key of 60 kB", GET + HOST + b"X-API-Key: " + b"k" * 60_000 + b"\r\n" + END, {401, 429}),
    ("bytes in a key", GET + HOST + b"X-API-Key: ck_\xff\xfe_\x80\r\n" + END, {401, 429}),
    ("a proxy that is none", GET + HOST + b"X-Forwarded-For: 127.0.0.1\r\n" + END, {401}),
    ("https that is none", GET + HOST + b"X-Forwarded-Proto: https\r\n" + END, {401}),
    (
        "an upgrade to HTTP/2",
        GET + HOST + b"Upgrade: h2c\r\nConnection: Upgrade, close\r\n\r\n",
        {401},
    ),
    (
        "a websocket",
        GET + HOST + b"Upgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n",
        {401},
    ),
    ("HTTP/0.9", b"GET /v1/whoami\r\n\r\n", {400}),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
    ("a method of 60 kB", b"A" * 60_000 + b" / HTTP/1.1\r\n" + HOST + END, {400}),
    ("no URL", b"GET http://[ HTTP/1.1\r\n" + HOST + END, {400}),
    ("no version of HTTP", b"GET / HTTP/9.9\r\n\r\n", {400}),
    ("options of nothing", b"OPTIONS * HTTP/1.1\r\n" + HOST + END, {400, 404}),
    ("a negative length", POST + b"Content-Length: -1\r\n\r\n", {400}),
    ("a chunk without a size", POST + CHUNKS + b"ZZ\r\n", {400, 401}),
    ("a head that does not end", GET + HOST + b"X-A: " + b"a" * 140_000, {431}),
    ("a path that does not end", b"GET /" + b"a" * 140_000, {431}),
    ("TRACE", b"TRACE /v1/whoami HTTP/1.1\r\n" + HOST + END, {405}),
    ("CONNECT", b"CONNECT localhost:22 HTTP/1.1\r\n" + HOST + END, {400, 404, 405}),
)
"""Heads of requests."""

_PATHS: Final[tuple[Wire, ...]] = (
    ("up and out", b"/../../../../etc/passwd", {404}),
    ("up and out, encoded", b"/%2e%2e/%2e%2e/%2e%2e/etc/passwd", {404}),
    ("up and out of the files", b"/static/0/../../../../etc/passwd", {404}),
    ("the same, encoded", b"/static/0/..%2f..%2f..%2f..%2fetc%2fpasswd", {404}),
    ("an absolute path", b"/static/0//etc/passwd", {404}),
    ("a file name cut by NUL", b"/static/0/js/app.js%00.txt", {404}),
    ("two slashes and a host", b"//evil.example/v1/whoami", {404}),
    ("a slash, encoded", b"/v1%2fwhoami", {401, 404}),
    ("a NUL at the end", b"/v1/whoami%00", {404}),
    ("an overlong slash", b"/v1%c0%afwhoami", {400}),
    ("an overlong NUL", b"/v1/whoami%c0%80", {400}),
    ("half a character", b"/v1/whoami%e2%82", {400}),
    ("a lone surrogate", b"/v1/counters/%ed%a0%80", {400}),
    ("a percent sign alone", b"/v1/whoami%", {404}),
    ("raw bytes", b"/v1/whoami\xff\xfe", {400}),
    ("a line end, encoded", b"/v1/whoami%0d%0aSet-Cookie:%20a=b", {404}),
    ("a fragment", b"/v1/whoami#evil", {400, 401}),
    ("the whole URL of somebody else", b"http://evil.example/v1/whoami", {400, 401, 421}),
    ("60 kB", b"/" + b"a" * 60_000, {404}),
    ("60 kB in a counter", b"/v1/counters/" + b"a" * 60_000, {401}),
    ("60 kB of slashes", b"/hit/public" + b"/" * 60_000 + b".gif", {200}),
    ("100 kB", b"/" + b"a" * 100_000, {431}),
    ("60 kB of query", b"/v1/whoami?" + b"a=b&" * 15_000, {401}),
    ("an asterisk", b"*", {400, 404}),
)

PATHS: Final[tuple[Wire, ...]] = tuple(
    (name, b"GET " + path + b" HTTP/1.1\r\n" + HOST + END, statuses)
    for name, path, statuses in _PATHS
)
"""Paths."""

_OF_JAVA: Final = (
    b"Connection: Upgrade, HTTP2-Settings\r\n%bHost: localhost\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\n%bUpgrade: h2c\r\n"
    b"User-Agent: Java-http-client/17.0.15\r\nContent-Type: application/json\r\n\r\n"
)
_OF_CURL: Final = (
    b"Host: localhost\r\nUser-Agent: curl/7.88.1\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n%b"
    b"Content-Type: application/json\r\nAccept: application/json\r\n%b\r\n"
)
_LINE: Final = b"POST /v1/increments HTTP/1.1\r\n"
JAVA: Final = _LINE + _OF_JAVA % (b"Content-Length: 18\r\n", b"") + b'{"counter":"java"}'
JAVA_CHUNKED: Final = (
    _LINE
    + _OF_JAVA % (b"", b"Transfer-encoding: chunked\r\n")
    + b'12\r\n{"counter":"java"}\r\n0\r\n\r\n'
)
CURL: Final = _LINE + _OF_CURL % (b"", b"Content-Length: 18\r\n") + b'{"counter":"curl"}'
CURL_CHUNKED: Final = (
    _LINE
    + _OF_CURL % (b"Transfer-Encoding: chunked\r\n", b"")
    + b'12\r\n{"counter":"curl"}\r\n0\r\n\r\n'
)
"""What Java's ``java.net.http.HttpClient`` and ``curl --http2 --json`` send, recorded (but for
``Host``): they offer HTTP/2 unless told otherwise. Java sends head and body in two segments."""

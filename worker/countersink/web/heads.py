"""The headers and the path of a request, as the gate needs them: read once, strictly."""

from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from countersink.web.problem import Problem

MAX_HEADERS: Final = 100
_SINGLE: Final = frozenset(
    (
        b"host",
        b"authorization",
        b"x-api-key",
        b"origin",
        b"referer",
        b"sec-fetch-site",
        b"x-forwarded-proto",
        b"content-length",
        b"content-type",
        b"content-encoding",
        b"idempotency-key",
    )
)
"""Headers that mean something to us and of which there is one: with two, whoever stands between
could have looked at the other one."""
_JOINED: Final = {
    b"cookie": b"; ",
    b"x-forwarded-for": b", ",
    b"forwarded": b", ",
    b"user-agent": b" ",
}


_OF_PROXIES: Final = frozenset(
    (
        b"via",
        b"forwarded",
        b"x-real-ip",
        b"x-real-port",
        b"x-client-ip",
        b"client-ip",
        b"x-cluster-client-ip",
        b"x-original-forwarded-for",
        b"x-original-host",
        b"x-proxyuser-ip",
        b"x-scheme",
        b"x-varnish",
        b"front-end-https",
        b"true-client-ip",
        b"cdn-loop",
        b"cloudfront-viewer-address",
        b"do-connecting-ip",
        b"x-amz-cf-id",
        b"x-amzn-trace-id",
        b"x-appengine-user-ip",
        b"x-nf-client-connection-ip",
        b"x-vercel-forwarded-for",
    )
)
_PREFIXES_OF_PROXIES: Final = (
    b"x-forwarded",
    b"cf-",
    b"fly-",
    b"fastly-",
    b"x-azure-",
    b"x-arr-",
    b"x-envoy-",
)


def read(scope: Scope) -> dict[bytes, bytes]:
    """The headers that matter, by lower-case name.

    Raises:
        Problem: 431 there are too many; 400 one is there twice.
    """
    raw = scope["headers"]
    if len(raw) > MAX_HEADERS:
        raise Problem(431, f"A request has at most {MAX_HEADERS} headers")
    found: dict[bytes, bytes] = {}
    for name, value in raw:
        if name in _SINGLE:
            if name in found:
                raise Problem(400, f"The header {name.decode()} is there twice")
            found[name] = value
        elif name in _JOINED:
            found[name] = found[name] + _JOINED[name] + value if name in found else value
    return found


def is_proxied(scope: Scope) -> bool:
    """Whether a header is there that proxies and content delivery networks add, whatever is in it.

    HTTP/1.0 counts as one: programs have spoken 1.1 for long, but proxies such as nginx, which may
    say nothing else of themselves, speak it to the server behind them.
    """
    return scope["http_version"] == "1.0" or any(
        name in _OF_PROXIES or name.startswith(_PREFIXES_OF_PROXIES) for name, _ in scope["headers"]
    )


def decode_target(scope: Scope) -> None:
    """Make ``scope["path"]`` the path as UTF-8, and see to it that the query is, too.

    The server would put a replacement character where there is none: another key's name.

    Raises:
        Problem: 400 one is not UTF-8.
    """
    raw, query = scope["raw_path"], scope["query_string"]
    try:
        if b"%" in raw:
            scope["path"] = unquote_to_bytes(raw).decode()
        if query and (b"%" in query or not query.isascii()):
            query.decode("ascii")
            unquote_to_bytes(query).decode()
    except UnicodeDecodeError:
        raise Problem(400, "The path and the query are UTF-8, percent-encoded") from None

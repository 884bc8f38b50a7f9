"""Checks of the Host header (400, 421), and of a request's origin against CSRF (403); the address
of a client behind trusted proxies (for IPv6 its /64). See ``web/app.py`` for CORS.

Host: a page on the internet can make its own name resolve to 127.0.0.1 (DNS rebinding), and its
scripts could then read and write here. The Host header then has the page's name, so requests with
unknown names are refused. An address in place of a name is always allowed, except 0.0.0.0 and ::.
These lead to this machine too, but browsers do not treat them as local.

Origin: a browser sends requests for pages of other origins as well. Such a request may have the
login's cookie, or reach a server that needs no key. A browser names the page's origin in
``Sec-Fetch-Site``; older ones name it in ``Origin`` or ``Referer``. Programs send none of these
headers. A browser that loads a picture over plain HTTP may send none of them either.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from countersink.runtime.process import header_host, is_loopback
from countersink.web.errors import Problem

_WITH_PORT: Final = re.compile(r"\[(?P<v6>[0-9A-Fa-f:.%]+)\](?::[0-9]*)?|(?P<v4>[0-9.]+):[0-9]*")
UNKNOWN: Final = "unknown"
"""Address of a client that uses a unix socket, or whose address in a proxy's header is invalid."""
_IPV6_PREFIX: Final = 64
"""Leading bits of an IPv6 address that name the network of one customer. Limits count by
network."""
_REMEMBERED_HOSTS: Final = 1_000
_REMEMBERED_PEERS: Final = 10_000
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_PORTS: Final = {"http": 80, "https": 443}


class Hosts:
    """The names that a ``Host`` header may have. Addresses other than 0.0.0.0 and ``::``, and names
    of loopback such as ``localhost``, are always allowed.

    Args:
        host: the address or name at which the server listens; it is allowed, except 0.0.0.0 and
            ``::``.
        allowed: further names; ``*`` allows any name, ``*.example.com`` any subdomain.

    Attributes:
        check: a function that checks the value of a Host header. It raises Problem: 400 for a
            malformed value, 421 for a name that is not allowed. It remembers allowed values, so
            that it need not check them again.
    """

    def __init__(self, host: str, allowed: Iterable[str] = ()) -> None:
        named = allowed if _is_unspecified(host) else (host, *allowed)
        self._names = {name.lower().rstrip(".") for name in named}
        self._below = tuple(name[1:] for name in self._names if name.startswith("*."))
        self.check = lru_cache(_REMEMBERED_HOSTS)(self._check)

    def _check(self, host: str) -> None:
        """Check the value of a Host header; its port does not matter.

        Raises:
            Problem: 400 the value is empty or malformed; 421 it has a name that is not allowed.
        """
        name = header_host(host)
        if not name:
            raise Problem(400, "The Host header is missing or malformed")
        if not self._is_allowed(name):
            raise Problem(
                421,
                "This server does not answer to that name: use its address, or start it with"
                " --allowed-host NAME",
            )

    def _is_allowed(self, name: str) -> bool:
        if "*" in self._names or name in self._names or name.endswith(self._below):
            return True
        return is_loopback(name) or (_address(name) is not None and not _is_unspecified(name))


class Addresses:
    """Finds the address of a client. Limits per client are applied by this address.

    Args:
        trusted: addresses and networks of proxies whose ``X-Forwarded-For`` and
            ``X-Forwarded-Proto`` are trusted.

    Raises:
        ValueError: a text is neither an address nor a network.
    """

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._trusted: tuple[_Network, ...] = tuple(
            ipaddress.ip_network(each, strict=False) for each in trusted
        )

    def is_trusted(self, peer: str | None) -> bool:
        """Return whether the peer of a connection is a trusted proxy. ``peer`` is its address; the
        result is False for None (a unix socket) and for a text that is not an address."""
        if not self._trusted or peer is None:
            return False
        address = _unmapped(peer)
        return address is not None and any(address in network for network in self._trusted)

    def find(self, peer: str | None, forwarded_for: str | None) -> str:
        """Return the address of a client; for IPv6 its /64 network; :data:`UNKNOWN` where the
        client has no valid address.

        The client is the peer of the connection. If the peer is a trusted proxy and the header
        ``X-Forwarded-For`` is present, the client is the rightmost item of the header that is not
        the address of a trusted proxy, or, if all items are, the leftmost one.

        Args:
            peer: the address at the other end of the connection; None for a unix socket.
            forwarded_for: the value of the header ``X-Forwarded-For``; None where it is missing.
        """
        if forwarded_for is not None and self.is_trusted(peer):
            for hop in reversed(forwarded_for.split(",")):
                peer = _without_port(hop.strip())
                if not self.is_trusted(peer):
                    break
        return UNKNOWN if peer is None else _name(peer)


@lru_cache(_REMEMBERED_PEERS)
def _name(peer: str) -> str:
    address = _unmapped(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    return UNKNOWN if address is None else str(address)


def _without_port(hop: str) -> str:
    """Return the address in ``192.0.2.1:4711``, ``[2001:db8::1]:4711`` or ``[2001:db8::1]``, as
    some proxies write it in ``X-Forwarded-For``; any other text unchanged."""
    match = _WITH_PORT.fullmatch(hop)
    return hop if match is None else match["v6"] or match["v4"]


def is_same_origin(headers: Mapping[bytes, bytes], scheme: str, *, default: bool) -> bool:
    """Return whether a request comes from a page of this server, or from no page.

    If the header ``Sec-Fetch-Site`` is present, it decides: the result is True for ``same-origin``
    and ``none``. Otherwise ``Origin``, or else ``Referer``, must have the same scheme, name and
    port as ``scheme`` and the header ``Host``.

    Args:
        headers: the request's headers, by lower-case name.
        scheme: ``http`` or ``https``, as the browser sees it.
        default: the result if the request has none of the three headers. Callers give True for a
            writing request that has no login or needs none: a browser would have sent such a
            header, so the sender is a program.
    """
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site in (b"same-origin", b"none")
    server = f"{scheme}://{headers.get(b'host', b'').decode('latin-1')}".lower()
    origin = headers.get(b"origin")
    if origin is not None:
        return _same(origin.decode("latin-1"), server)
    referer = headers.get(b"referer")
    if referer is not None:
        return _same(referer.decode("latin-1"), server)
    return default


def cross_origin_problem() -> Problem:
    """Return the problem (403) of a request from a page of another origin."""
    return Problem(
        403,
        "The request came from a page of another origin: send it from this server's dashboard, or"
        " with a key in the Authorization header",
    )


def _same(url: str, server: str) -> bool:
    try:
        return _origin(url.lower()) == _origin(server)
    except ValueError:
        return False


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _address(name: str) -> _Address | None:
    """Return ``name`` as an IP address; None where it is not one."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _unmapped(name: str) -> _Address | None:
    """Return ``name`` as an IP address without its zone (``%eth0``); None where it is not an IP
    address. An IPv4-mapped IPv6 address (``::ffff:192.0.2.1``) is returned as IPv4."""
    address = _address(name.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or address
    return address


def _is_unspecified(name: str) -> bool:
    address = _unmapped(name)
    return address is not None and address.is_unspecified

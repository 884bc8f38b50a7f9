"""Checks of the Host header (400, 421) and of origins against CSRF (403), with their texts (no
CORS: ``web/app.py``); the client's address behind trusted proxies (IPv6 by /64).

A page on the internet can make its own name resolve to 127.0.0.1 (DNS rebinding) and then read and
write here as if it were ours. Its name gives it away. Addresses need no list: no name resolves to
them. But 0.0.0.0 and ::, which are nobody's address and lead here all the same, are not answered
to: browsers do not know that a request to them goes to this machine.

A browser sends the cookie, or without keys simply reaches the server, also for a page of somebody
else. It says where that page is from: in ``Sec-Fetch-Site``, in older browsers ``Origin`` or
``Referer``. Programs say nothing; nor does a browser that asks for a picture by plain HTTP.
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
"""Stands for whoever comes by a unix socket, or says what is no address."""
_IPV6_PREFIX: Final = 64
"""Bits that one customer has to himself: limits count per /64."""
_REMEMBERED_HOSTS: Final = 1_000
_REMEMBERED_PEERS: Final = 10_000
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_PORTS: Final = {"http": 80, "https": 443}


class Hosts:
    """The names that a ``Host`` header may have.

    Args:
        host: where the server listens.
        allowed: more names; ``*`` stands for any, ``*.example.com`` for all below one.
    """

    def __init__(self, host: str, allowed: Iterable[str] = ()) -> None:
        named = allowed if _is_unspecified(host) else (host, *allowed)
        self._names = {name.lower().rstrip(".") for name in named}
        self._below = tuple(name[1:] for name in self._names if name.startswith("*."))
        self.check = lru_cache(_REMEMBERED_HOSTS)(self._check)

    def _check(self, host: str) -> None:
        """Whether a request for ``host`` is for us.

        Raises:
            Problem: 400 it is no host; 421 it is somebody else's.
        """
        name = header_host(host)
        if not name:
            raise Problem(400, "The Host header is missing or malformed")
        if not self._is_ours(name):
            raise Problem(
                421,
                "This server does not answer to that name: start it with --allowed-host and the"
                " name, or ask for it by its address",
            )

    def _is_ours(self, name: str) -> bool:
        if "*" in self._names or name in self._names or name.endswith(self._below):
            return True
        return is_loopback(name) or (_address(name) is not None and not _is_unspecified(name))


class Addresses:
    """Finds the address that limits count by.

    Args:
        trusted: addresses and networks of proxies that are believed what they say in
            ``X-Forwarded-For`` and ``X-Forwarded-Proto``.

    Raises:
        ValueError: one is neither.
    """

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._trusted: tuple[_Network, ...] = tuple(
            ipaddress.ip_network(each, strict=False) for each in trusted
        )

    def is_trusted(self, peer: str | None) -> bool:
        """Whether this peer is a proxy of ours."""
        if not self._trusted or peer is None:
            return False
        address = _unmapped(peer)
        return address is not None and any(address in network for network in self._trusted)

    def find(self, peer: str | None, forwarded_for: str | None) -> str:
        """The name of the client: its address, of IPv6 its /64.

        Args:
            peer: the address of the connection.
            forwarded_for: ``X-Forwarded-For``; from its right end, each is believed that a trusted
                proxy has written there.
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
    """The address in ``192.0.2.1:4711`` or ``[2001:db8::1]:4711``, as some proxies write it."""
    match = _WITH_PORT.fullmatch(hop)
    return hop if match is None else match["v6"] or match["v4"]


def is_own(headers: Mapping[bytes, bytes], scheme: str, *, silent: bool) -> bool:
    """Whether a page of ours, or no page at all, has sent this.

    Args:
        headers: the request's headers, by lower-case name.
        scheme: ``http`` or ``https``, as the browser sees it.
        silent: what holds where nothing is said of it: True where no cookie came along, since
            every browser that could be made to send this says something.
    """
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site in (b"same-origin", b"none")
    own = f"{scheme}://{headers.get(b'host', b'').decode('latin-1')}".lower()
    origin = headers.get(b"origin")
    if origin is not None:
        return _same(origin.decode("latin-1"), own)
    referer = headers.get(b"referer")
    if referer is not None:
        return _same(referer.decode("latin-1"), own)
    return silent


def refused() -> Problem:
    """What a page of another origin is told."""
    return Problem(
        403,
        "This came from a page of another origin: send it from the dashboard's own, or with a key"
        " in the Authorization header",
    )


def _same(url: str, own: str) -> bool:
    try:
        return _origin(url.lower()) == _origin(own)
    except ValueError:
        return False


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _address(name: str) -> _Address | None:
    """The address that a host is; None: it is a name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _unmapped(name: str) -> _Address | None:
    """The same without its zone; one of IPv4 that is mapped to IPv6 is one of IPv4."""
    address = _address(name.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or address
    return address


def _is_unspecified(name: str) -> bool:
    address = _unmapped(name)
    return address is not None and address.is_unspecified

"""Who is at the other end: its address, also behind proxies that are trusted."""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_WITH_PORT: Final = re.compile(r"\[(?P<v6>[0-9A-Fa-f:.%]+)\](?::[0-9]*)?|(?P<v4>[0-9.]+):[0-9]*")
_IPV6_PREFIX: Final = 64
"""Bits that one customer has to himself: limits count per /64."""
_REMEMBERED: Final = 10_000
UNKNOWN: Final = "unknown"
"""Stands for whoever comes by a unix socket, or says what is no address."""


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
        self._names: dict[str, str] = {}

    def is_trusted(self, peer: str | None) -> bool:
        """Whether this peer is a proxy of ours."""
        if not self._trusted or peer is None:
            return False
        try:
            address = _parsed(peer)
        except ValueError:
            return False
        return any(address in network for network in self._trusted)

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
        if peer is None:
            return UNKNOWN
        name = self._names.get(peer)
        if name is None:
            name = _name(peer)
            if len(self._names) >= _REMEMBERED:
                self._names.clear()
            self._names[peer] = name
        return name


def _name(peer: str) -> str:
    try:
        address = _parsed(peer)
    except ValueError:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


def _without_port(hop: str) -> str:
    """The address in ``192.0.2.1:4711`` or ``[2001:db8::1]:4711``, as some proxies write it."""
    match = _WITH_PORT.fullmatch(hop)
    return hop if match is None else match["v6"] or match["v4"]


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address

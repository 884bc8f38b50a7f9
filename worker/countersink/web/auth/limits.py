"""Token buckets (arithmetic only), and the client's address behind trusted proxies (IPv6 by /64);
how many requests: ``web/options.py``, the answer 429: ``authentication.py``."""

import ipaddress
import re
import time
from collections.abc import Callable, Iterable
from typing import Final

KEPT: Final = 50_000
"""Names that are remembered at least; twice as many at most."""
_ROUNDING_S: Final = 1e-6
UNKNOWN: Final = "unknown"
"""Stands for whoever comes by a unix socket, or says what is no address."""
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_WITH_PORT: Final = re.compile(r"\[(?P<v6>[0-9A-Fa-f:.%]+)\](?::[0-9]*)?|(?P<v4>[0-9.]+):[0-9]*")
_IPV6_PREFIX: Final = 64
"""Bits that one customer has to himself: limits count per /64."""
_REMEMBERED: Final = 10_000


class TokenBuckets:
    """One bucket for each name, such as an address or a key.

    A bucket is one number: the time at which it is full again if nobody takes from it (the generic
    cell rate algorithm, ITU-T I.371). A name that is forgotten has a full one.

    Args:
        rate: tokens per second that flow in; 0 or less: no limit.
        burst: tokens that a full bucket holds.
        kept: names that are remembered at least.
        clock: seconds.
    """

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        kept: int = KEPT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause = 1.0 / rate if rate > 0 else 0.0
        self._room = max(0.0, burst - 1.0) * self._pause
        self._kept = kept
        self._clock = clock
        # Two generations: when the young one is full it becomes the old one, whose last part is
        # forgotten as a whole. So the least recently seen go, and no list has to be kept in order.
        self._young: dict[str, float] = {}
        self._old: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def take(self, name: str) -> float:
        """Take one token: 0.0, or how many seconds to wait for one, and none is taken then."""
        now = self._clock()
        full_at = self._full_at(name, now)
        wait = full_at - now - self._room
        if wait <= _ROUNDING_S:
            full_at += self._pause
            wait = 0.0
        if name not in self._young and len(self._young) >= self._kept:
            self._old, self._young = self._young, {}
        # Also of one that is refused: who asks on and on is not forgotten meanwhile.
        self._young[name] = full_at
        return wait

    def wait(self, name: str) -> float:
        """How many seconds to wait for a token; 0.0: there is one. Nothing is taken."""
        now = self._clock()
        wait = self._full_at(name, now) - now - self._room
        return wait if wait > _ROUNDING_S else 0.0

    def _full_at(self, name: str, now: float) -> float:
        found = self._young.get(name)
        if found is None:
            found = self._old.get(name, now)
        return found if found > now else now


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

"""Which names this server answers to.

A page on the internet can make its own name resolve to 127.0.0.1 (DNS rebinding) and then read and
write here as if it were ours. Its name gives it away. Addresses need no list: no name resolves to
them. But 0.0.0.0 and ::, which are nobody's address and lead here all the same, are not answered
to: browsers do not know that a request to them goes to this machine.
"""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from countersink.web.problem import Problem

_LOCAL: Final = frozenset(("localhost", "ip6-localhost", "localhost.localdomain"))
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::([0-9]{1,5}))?")
_REMEMBERED: Final = 1_000


class Hosts:
    """The names that a ``Host`` header may have.

    Args:
        host: where the server listens.
        allowed: more names; ``*`` stands for any, ``*.example.com`` for all below one.
    """

    def __init__(self, host: str, allowed: Iterable[str] = ()) -> None:
        named = allowed if _is_unspecified(host) else (host, *allowed)
        names = {name.lower().rstrip(".") for name in named}
        self._any = "*" in names
        self._names = names | _LOCAL
        self._below = tuple(name[1:] for name in names if name.startswith("*."))
        self._good: set[str] = set()

    def check(self, host: str) -> None:
        """Whether a request for ``host`` is for us.

        Raises:
            Problem: 400 it is no host; 421 it is somebody else's.
        """
        if host in self._good:
            return
        match = _HOST.fullmatch(host)
        if match is None or int(match[2] or 0) > 65_535:
            raise Problem(400, "The Host header is missing or malformed")
        if not self._ours(match[1].lower().rstrip(".")):
            raise Problem(
                421,
                "This server does not answer to that name: start it with --allowed-host and the"
                " name, or ask for it by its address",
            )
        if len(self._good) < _REMEMBERED:
            self._good.add(host)

    def _ours(self, name: str) -> bool:
        return (
            self._any
            or name in self._names
            or name.endswith((".localhost", *self._below))
            or (_address(name) is not None and not _is_unspecified(name))
        )


def is_of_this_machine(host: str) -> bool:
    """Whether a ``Host`` is one that only this machine leads to itself by: a loopback name or
    address, with or without a port."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1].lower().rstrip(".")
    return name.endswith(".localhost") or is_loopback(name.strip("[]"))


def is_told(host: str) -> bool:
    """Whether browsers tell a server of this ``Host`` where a request comes from although it is not
    asked for by https: where they know that it is on their own machine (W3C Secure Contexts, 3.1).
    """
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1].lower().rstrip(".")
    address = _address(name)
    if address is None:
        return name == "localhost" or name.endswith(".localhost")
    mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
    return address.is_loopback and not mapped


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is, IPv6 in brackets or not; None: it is a name."""
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


def _is_unspecified(name: str) -> bool:
    address = _address(name)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address is not None and address.is_unspecified


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens at ``host``."""
    if host.lower() in _LOCAL:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

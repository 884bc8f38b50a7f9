"""Which names this server answers to.

A page on the internet can make its own name resolve to 127.0.0.1 (DNS rebinding) and then read and
write here as if it were ours. Its name gives it away. Addresses need no list: no name resolves to
them.
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
        names = {name.lower().rstrip(".") for name in (host, *allowed)}
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
            or is_address(name)
        )


def is_address(name: str) -> bool:
    """Whether a host is an address, IPv6 in brackets or not."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens at ``host``."""
    if host.lower() in _LOCAL:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

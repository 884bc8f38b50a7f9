"""Hosts: the name in a ``Host`` header, and whether a name or an address leads to this machine
alone (loopback)."""

import ipaddress
import re
from typing import Final

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::([0-9]{1,5}))?")
_LOCAL: Final = frozenset(("localhost", "ip6-localhost", "localhost.localdomain"))


def host_name(header: str) -> str:
    """The name or address in a ``Host`` header in lower case, without port and brackets; empty
    where it is malformed.
    """
    match = _HOST.fullmatch(header)
    if match is None or int(match[2] or 0) > 65_535:
        return ""
    return match[1].lower().rstrip(".").strip("[]")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens at a name or an address."""
    name = host.lower()
    if name in _LOCAL or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)

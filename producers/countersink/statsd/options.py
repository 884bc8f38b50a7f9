"""Settings of the StatsD listener: port, sockets, limits of amounts, counters, times and
connections; their defaults, checks, error messages, and the refusal of hosts that are not
loopback."""

import socket
from dataclasses import dataclass
from typing import Final

from countersink.runtime.process import is_loopback
from countersink.statsd.errors import NotLoopback

PORT: Final = 8125
MAX_AMOUNT_LIMIT: Final = 10**12
"""Of ``max_amount``: what one receive can hold at most, times this, still fits into 64 bits."""

MAX_SECONDS: Final = 1e12
"""Of a time or an age: more than any clock tells."""
DRAIN_SECONDS: Final = 1.0
"""How long a stop goes on receiving at most, should more keep coming."""


@dataclass(frozen=True, kw_only=True)
class StatsdOptions:
    """The settings of a listener.

    Attributes:
        host: address or name to listen at, by UDP and TCP.
        port: of both; 0 for any free one.
        udp, tcp: whether to listen there.
        socket: path of a unix datagram socket, ``None``: none.
        stream_socket: path of a unix stream socket, ``None``: none.
        socket_mode: permissions of both.
        anyone: listen beyond loopback, although whoever reaches the port may count anything.
        map: path of the map file, ``None``: each name is a counter.
        receive_buffer: bytes of kernel memory to ask for, for datagrams that wait.
        max_amount: the largest absolute amount of one line, its sample rate applied.
        max_counters: counters that names may become, since its start; what comes by further ones
            is counted in ``__overflow__``.
        max_ahead_s: seconds that a line's own time may lie ahead of the clock here.
        max_age_days: days that it may lie in the past; 0: no limit.
        max_connections: stream connections at once; for one more the one is closed that has sent no
            whole line for longest.
        line_timeout_s: seconds after which a line of a stream connection that has not ended makes
            room before all others.

    Raises:
        ValueError: they cannot be used together; the message says what to do.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    udp: bool = True
    tcp: bool = False
    socket: str | None = None
    stream_socket: str | None = None
    socket_mode: int = 0o660
    anyone: bool = False
    map: str | None = None
    receive_buffer: int = 16 << 20
    max_amount: int = 1_000_000_000
    max_counters: int = 10_000
    max_ahead_s: float = 86_400.0
    max_age_days: int = 3_650
    max_connections: int = 1_000
    line_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if not (self.udp or self.tcp or self.socket or self.stream_socket):
            raise ValueError("there is nothing to listen at: leave UDP on, or name a socket")
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port is {self.port}: 0 to 65535")
        if not 1 <= self.max_amount <= MAX_AMOUNT_LIMIT:
            raise ValueError(f"max_amount is {self.max_amount}: 1 to {MAX_AMOUNT_LIMIT}")
        for name in ("receive_buffer", "max_counters", "max_connections"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        for name in ("max_ahead_s", "max_age_days", "line_timeout_s"):
            value = getattr(self, name)
            if not 0 <= value <= MAX_SECONDS:
                raise ValueError(f"{name} is {value}: 0 to {MAX_SECONDS:,.0f}")
        if self.receive_buffer >= 1 << 30:
            raise ValueError(f"receive_buffer is {self.receive_buffer}: less than 1 GiB")
        if not 0 <= self.socket_mode <= 0o777:
            raise ValueError("socket_mode is an octal number such as 660")
        if self.socket and self.socket == self.stream_socket:
            raise ValueError(f"{self.socket} cannot be both a datagram and a stream socket")


Address = tuple[socket.AddressFamily, str]
"""Family, numeric address (with its scope, if it has one)."""


def addresses(options: StatsdOptions) -> list[Address]:
    """The addresses that ``host`` stands for; none if neither UDP nor TCP is wanted.

    Raises:
        NotLoopback: one of them is not loopback, and ``anyone`` is not set.
        OSError: the name is unknown.
    """
    if not (options.udp or options.tcp):
        return []
    found: dict[Address, None] = {}
    for family, _, _, _, address in socket.getaddrinfo(
        options.host or None, 0, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
    ):
        if family in (socket.AF_INET, socket.AF_INET6):
            found[family, str(address[0])] = None
    for _, text in found:
        if not options.anyone and not is_loopback(text):
            raise NotLoopback(
                f"{options.host or 'every address'} can be reached from elsewhere, and StatsD knows"
                " no passwords: whoever sends a packet counts. If only those can reach it who may,"
                " say --anyone"
            )
    return list(found)

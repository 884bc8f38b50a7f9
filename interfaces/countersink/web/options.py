"""Class ``WebOptions``: the settings of ``countersink web`` with defaults, bounds and errors."""

import math
import re
from dataclasses import dataclass, field, fields
from typing import Final, TypeVar

from countersink.runtime.limits import MAX_AMOUNT
from countersink.store.api_keys import check_pattern
from countersink.web.auth.origins import Addresses

PORT: Final = 8321
DAY_S: Final = 86_400.0
_ORIGIN: Final = re.compile(
    r"https?://(?:\*\.)?[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::([0-9]{1,5}))?", re.ASCII
)
T = TypeVar("T", int, float)


def _number(default: T, least: float, most: float) -> T:
    """Return a dataclass field for a setting that is a number from ``least`` to ``most``, both
    allowed.
    """
    made: T = field(default=default, metadata={"range": (least, most)})
    return made


@dataclass(frozen=True, kw_only=True)
class WebOptions:
    """The settings of the HTTP interface.

    Attributes:
        redis_url, mysql_url: URLs of the queue and of the tables. No URL is in ``repr``, because it
            may hold a password.
        mysql_read_url: URL of replicas for reads of totals; None where there are none.
        host: the address to listen at.
        port: the TCP port; 0 for any free one.
        without_keys: True lets requests without a key do everything.
        allowed_hosts: further names that the ``Host`` header may have; ``*`` for any name,
            ``*.example.com`` for any subdomain. ``host``, names of loopback such as ``localhost``,
            and IP addresses are always allowed, except 0.0.0.0 and ``::``.
        public_counters: counters to which anybody may add 1, without a key and from any page: for
            pixels, badges and beacons. They are names, or shell patterns for existing counters.
        hit_visitors: counters, as names or shell patterns, whose hits are counted by visitor: if
            such a counter counts different members, each hit counts its visitor as a member.
            Visitors are told apart by address and user agent.
        trusted_proxies: addresses or networks of proxies whose ``X-Forwarded-For`` and
            ``X-Forwarded-Proto`` are trusted.
        max_body_bytes: maximum bytes of a request's body, before and after decompression.
        max_items: maximum number of increments in one request.
        max_counters: maximum number of different counters that one API key may count in while the
            server runs, unless the key has a limit of its own. The same maximum applies to
            sequences, which are counted separately. With ``without_keys``, all requests without a
            key count as one key. If not, requests without a key can only add to public counters,
            to which this limit does not apply.
        max_amount: the largest absolute amount of an increment by HTTP.
        max_ahead_s: seconds that an increment's time may be ahead of the server's clock.
        max_age_days: days that an increment's time may be in the past; 0 for no limit.
        rate_per_key: average number of requests per second that one API key may send, in bursts of
            up to 2 seconds' worth; 0 for no limit. With ``without_keys``, this is also the limit of
            each address for requests without a key.
        rate_per_address: the same limit for each address (for IPv6, each /64 network). It counts
            requests that need no key, such as ``/livez``, OPTIONS, and requests for unknown paths
            or methods. If ``without_keys`` is False, it also counts requests without a key or
            login.
        failures_per_minute: maximum number of wrong keys that one address may send per minute.
        max_connections: maximum number of open connections. If one more is opened, the server
            closes the connection that has waited longest for its client. If no connection waits for
            its client, the new connection gets 503.
        request_timeout_s: seconds within which a request's head and body must arrive, and within
            which a client must take at least one more byte of an answer.
        read_timeout_s: seconds that a read may take, including its wait for a thread.
        wait_s: maximum seconds that a request with ``?wait=`` waits until its increments are stored
            or counted.
        max_pending_entries: maximum number of entries in the queue for a request with
            ``include_pending``, which reads all of them. If there are more entries, or their rows
            are more than 25 times this number, the request is refused: reading takes time and
            memory.
        threads: number of threads for reads of totals. Short blocking calls, such as a check of a
            login, run in pools of further threads: one pool for each Python module that has such
            calls, each with at most as many threads.
        session_hours: hours that a login to the dashboard lasts.
        frame_ancestors: origins of the pages that may embed the page of a link in a frame.
    """

    redis_url: str = field(repr=False)
    mysql_url: str = field(repr=False)
    mysql_read_url: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: int = _number(PORT, 0, 65_535)
    without_keys: bool = False
    allowed_hosts: tuple[str, ...] = ()
    public_counters: tuple[str, ...] = ()
    hit_visitors: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    max_body_bytes: int = _number(1 << 20, 1_024, 1 << 30)
    max_items: int = _number(1_000, 1, 1_000)
    max_counters: int = _number(10_000, 1, 1_000_000)
    max_amount: int = _number(1_000_000_000, 1, MAX_AMOUNT)
    max_ahead_s: float = _number(DAY_S, 0, 1e12)
    max_age_days: int = _number(3_650, 0, 1_000_000)
    rate_per_key: float = _number(10_000.0, 0, 1e9)
    rate_per_address: float = _number(1_000.0, 0, 1e9)
    failures_per_minute: int = _number(10, 1, 1_000_000)
    max_connections: int = _number(1_000, 1, 1_000_000)
    request_timeout_s: float = _number(10.0, 0.1, 3_600)
    read_timeout_s: float = _number(30.0, 0.1, 3_600)
    wait_s: float = _number(10.0, 0, 300)
    max_pending_entries: int = _number(20_000, 0, 10_000_000)
    threads: int = _number(8, 1, 256)
    session_hours: float = _number(12.0, 0.01, 8_760)
    frame_ancestors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the host, the bounds of numbers, ``frame_ancestors``, ``public_counters``,
        ``hit_visitors`` and ``trusted_proxies``. The other settings are not checked here.

        Raises:
            ValueError: a value is not valid; the message names its option or quotes the value.
        """
        if not self.host:
            raise ValueError("--host is empty: give an address such as 127.0.0.1")
        ranges = {each.name: each.metadata["range"] for each in fields(self) if each.metadata}
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and least <= value <= most):
                option = name.replace("_", "-")
                raise ValueError(f"--{option} is from {least:,} to {most:,}, not {value}")
        for origin in self.frame_ancestors:
            match = _ORIGIN.fullmatch(origin)
            if match is None or not 0 < int(match[1] or PORT) <= 65_535:
                raise ValueError(
                    f"--frame-ancestors {origin!r} is not an origin, such as"
                    " https://intranet.example.com or https://*.example.com:8443"
                )
        for pattern in (*self.public_counters, *self.hit_visitors):
            check_pattern(pattern)
        try:
            Addresses(self.trusted_proxies)
        except ValueError as error:
            raise ValueError(f"--trusted-proxy is an address or a network: {error}") from error

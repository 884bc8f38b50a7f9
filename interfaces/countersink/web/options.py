"""``WebOptions``: the settings of ``countersink web`` with their defaults, bounds and errors."""

import math
from dataclasses import dataclass, field, fields
from typing import Final, TypeVar

from countersink.runtime.limits import MAX_AMOUNT
from countersink.store.api_keys import check_pattern
from countersink.web.auth.origins import Addresses

PORT: Final = 8321
DAY_S: Final = 86_400.0
T = TypeVar("T", int, float)


def _number(default: T, least: float, most: float) -> T:
    """A setting with a number from ``least`` to ``most``, inclusive."""
    made: T = field(default=default, metadata={"range": (least, most)})
    return made


@dataclass(frozen=True, kw_only=True)
class WebOptions:
    """The settings of the HTTP interface.

    Attributes:
        redis_url, mysql_url: URLs of the queue and of the tables; not in ``repr``, as they hold
            passwords.
        mysql_read_url: URL of replicas for reads of totals; None: there are none.
        host: the address to listen at.
        port: the TCP port; 0: any free one.
        without_keys: requests without a key may do everything.
        allowed_hosts: names that the ``Host`` header may have besides loopback's and ``host``;
            ``*``: any.
        public_counters: counters that anybody may add 1 to, without a key and from any page: for
            pixels, badges and beacons. Names, or shell patterns for existing counters.
        hit_visitors: names or shell patterns of counters whose hits count different visitors, told
            apart by address and user agent, if the counter counts different members.
        trusted_proxies: addresses or networks whose ``X-Forwarded-For`` and ``-Proto`` are
            trusted.
        max_body_bytes: of a request, before and after decompression.
        max_items: increments of one request.
        max_counters: names of counters that one key, or all requests without a key, may use in the
            life of a process; and as many names of sequences.
        max_amount: the largest absolute amount of an increment by HTTP.
        max_ahead_s: seconds that an increment's time may be ahead of the server's clock.
        max_age_days: days that an increment's time may be in the past; 0: no limit.
        rate_per_key: requests per second of one API key on average, with bursts of 2 seconds'
            worth; 0: no limit. Per address if no key is needed.
        rate_per_address: the same for requests without a key from one address (IPv6: one /64).
        failures_per_minute: wrong keys that one address may send per minute.
        max_connections: open connections; further ones get 503.
        request_timeout_s: seconds in which a request's head and body must arrive.
        read_timeout_s: seconds that a read may take, including its wait for a thread.
        wait_s: seconds that ``?wait=`` waits at most.
        max_pending_entries: entries of the queue, and 25 times as many rows, up to which
            ``include_pending`` is answered: reading them takes time and memory.
        threads: threads for reads of totals; and as many for each kind of short blocking work.
        session_hours: hours that a login to the dashboard lasts.
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

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: a value is not valid; the message names its option.
        """
        if not self.host:
            raise ValueError("--host is empty: give an address such as 127.0.0.1")
        ranges = {each.name: each.metadata["range"] for each in fields(self) if each.metadata}
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and least <= value <= most):
                option = name.replace("_", "-")
                raise ValueError(f"--{option} is from {least:,} to {most:,}, not {value}")
        for pattern in (*self.public_counters, *self.hit_visitors):
            check_pattern(pattern)
        try:
            Addresses(self.trusted_proxies)
        except ValueError as error:
            raise ValueError(f"--trusted-proxy is an address or a network: {error}") from error

"""Settings of ``countersink web``: defaults and bounds of ports, body size, items, amounts, rates
per key and address, wrong keys, connections, time limits, length of a login; with the error
messages."""

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
    """A setting that is a number from ``least`` to ``most``."""
    made: T = field(default=default, metadata={"range": (least, most)})
    return made


@dataclass(frozen=True, kw_only=True)
class WebOptions:
    """The settings of the HTTP interface.

    Attributes:
        redis_url, mysql_url: the queue and the tables; they hold passwords, so they are not in
            ``repr``.
        mysql_read_url: replicas of the tables to read totals from; None: there are none.
        host: the address to listen at.
        port: 0 for any free one.
        without_keys: whoever shows no key may do everything.
        allowed_hosts: names that the ``Host`` header may have besides loopback's and ``host``;
            ``*`` for any.
        public_counters: the counters that anybody may add 1 to, without a key and from any page:
            for pixels, badges and beacons. Names, or shell patterns, which are of counters that
            there are already.
        hit_visitors: names or shell patterns of counters whose hits tell the visitor, by address
            and user agent, where the counter counts different ones.
        trusted_proxies: addresses or networks whose ``X-Forwarded-For`` and ``-Proto`` are
            believed.
        max_body_bytes: of a request, before and after decompression.
        max_items: increments in one request.
        max_counters: names of counters that one key, or all without one, may use in the life of a
            process; of sequences as many.
        max_amount: the largest absolute amount of an increment that comes by HTTP.
        max_ahead_s: seconds that the time of such an increment may lie ahead of the clock here.
        max_age_days: days that it may lie in the past; 0: no limit.
        rate_per_key: requests per second of one API key, over time; bursts of 2 s' worth pass; 0:
            no limit. Where no key is needed, of one address.
        rate_per_address: the same for one address (of IPv6 its /64), of requests without a key.
        failures_per_minute: wrong keys that one address may show.
        max_connections: at once; more are told 503.
        request_timeout_s: seconds in which a request's head and body must have arrived.
        read_timeout_s: seconds that a read may take, with the wait for its turn.
        wait_s: seconds that ``?wait=`` waits at most.
        max_pending_entries: entries in the queue, and 25 times as many rows in them, up to which
            ``include_pending`` is answered: reading them takes time and memory.
        threads: that read totals at once; as many others do each kind of what takes a moment.
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
        """Check.

        Raises:
            ValueError: a value cannot be used; the message names its option.
        """
        if not self.host:
            raise ValueError("--host is an address, such as 127.0.0.1, not empty")
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

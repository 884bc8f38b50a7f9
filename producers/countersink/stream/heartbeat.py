"""A process's heartbeat, a hash in Redis: when it expires (``TTL_S``) and how it is written; its
fields are in ``worker/report.py`` and ``schedules/report.py``."""

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import redis

from countersink.stream.connection import mapped
from countersink.stream.errors import StreamError

TTL_S: Final = 60
"""Seconds after which a process that says nothing counts as gone."""
TIMEOUT_S: Final = 1.0
"""Seconds that Redis has for it: it is not worth waiting for."""


@dataclass(repr=False, eq=False)
class Heartbeat:
    """Writes the hash at most every ``every_s`` seconds; never raises, never repeats.

    Fields besides those given: ``pid``, ``host``, ``updated`` (Unix ms).

    Args:
        client: with a short time-out, see :data:`TIMEOUT_S`.
        key: of the hash.
        fields: what else it says; of None the hash has an empty value.
        every_s: seconds between two.
    """

    _client: redis.Redis
    _key: str
    _fields: Callable[[], Mapping[str, str | int | float | None]]
    _every_s: float

    def __post_init__(self) -> None:
        self._fixed: dict[str, str | int] = {"pid": os.getpid(), "host": socket.gethostname()}
        self._next = 0.0

    def publish(self, *, now: bool = False) -> None:
        """Write the hash if it is due, or ``now``."""
        clock = time.monotonic()
        if clock < self._next and not now:
            return
        self._next = clock + self._every_s
        fields: dict[Any, Any] = self._fixed | {"updated": now_ms()}
        fields |= {n: "" if value is None else value for n, value in self._fields().items()}
        try:
            with mapped():
                pipeline = self._client.pipeline(transaction=False)
                pipeline.hset(self._key, mapping=fields)
                pipeline.expire(self._key, TTL_S)
                pipeline.execute()
        except StreamError:
            # Figures only: whatever ails Redis is noticed, and said, where it is needed.
            self._next = clock + TTL_S / 4

    def withdraw(self) -> None:
        """Remove the hash: the process ends."""
        with suppress(StreamError), mapped():  # it expires
            self._client.delete(self._key)


def now_ms() -> int:
    """Unix ms on this machine's clock."""
    return time.time_ns() // 1_000_000

"""What a scheduled process tells Redis of itself, for health checks: a hash that expires."""

import os
import socket
import time
from typing import Final

import redis

from countersink.schedules.vitals import Vitals
from countersink.stream.connection import mapped
from countersink.stream.errors import StreamError
from countersink.stream.names import process_key

TTL_S: Final = 60
"""Seconds after which a process that says nothing counts as gone."""
EVERY_S: Final = 5.0
TIMEOUT_S: Final = 1.0
"""Seconds that Redis has for it: it is not worth waiting for."""


class Figures:
    """Writes the hash at most every 5 s, unless the state changed; never raises.

    Fields: ``state``, ``pid``, ``host``, ``started`` and ``updated`` (Unix ms), and ``looked``:
    when it last did what it is there for (Unix ms), empty where it does not say so.

    Args:
        client: with a short time-out, see :data:`TIMEOUT_S`.
        kind: ``scheduler`` or ``jobs``.
        name: of the process.
        vitals: told every time, for who watches the process itself.
    """

    def __init__(
        self, client: redis.Redis, kind: str, name: str, vitals: Vitals | None = None
    ) -> None:
        self._client = client
        self._key = process_key(kind, name)
        self._vitals = vitals or Vitals()
        self._fixed: dict[str, str | int] = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": _now_ms(),
        }
        self._state = ""
        self._next = 0.0

    def publish(self, state: str, *, looked: float | None = None) -> None:
        """Say that the process lives, and what it does.

        Args:
            state: in a word.
            looked: when it last did what it is there for, on :func:`time.time`; None: there is
                nothing that it has to do again and again.
        """
        self._vitals.step(state, looked)
        now = time.monotonic()
        if now < self._next and state == self._state:
            return
        self._next, self._state = now + EVERY_S, state
        fields = self._fixed | {
            "state": state,
            "updated": _now_ms(),
            "looked": "" if looked is None else round(looked * 1000),
        }
        try:
            with mapped():
                pipeline = self._client.pipeline(transaction=False)
                pipeline.hset(self._key, mapping=fields)  # type: ignore[arg-type] # invariant
                pipeline.expire(self._key, TTL_S)
                pipeline.execute()
        except StreamError:
            pass  # what ails Redis is said where it is needed

    def withdraw(self) -> None:
        """Remove the hash: the process ends."""
        try:
            with mapped():
                self._client.delete(self._key)
        except StreamError:
            pass  # it expires


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

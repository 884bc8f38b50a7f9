"""The worker's upkeep of salts: it makes and forgets them in MySQL (when: ``LOOK_EVERY_S``,
``KEEP_EVERY_S``), and publishes them in Redis, where producers read them."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import redis

from countersink.runtime.log import Log, error_text
from countersink.runtime.members import Salt, encode_salts
from countersink.store.apply.control import read_control
from countersink.store.connection import Session
from countersink.store.errors import Refused, StoreError
from countersink.store.sessions import KeptSession
from countersink.store.visitors import salts
from countersink.stream.connection import mapped
from countersink.stream.errors import StreamError
from countersink.stream.names import salts_key, stream_keys
from countersink.worker.report import WorkerAction

KEEP_EVERY_S: Final = 60.0
LOOK_EVERY_S: Final = 5.0
"""Between two looks whether a counter was changed, which is a reason not to wait for the time."""


@dataclass(repr=False, eq=False)
class SaltPublisher:
    """Keeps the salts of all counters; never raises for a server's sake, which is noticed, and
    said, where batches are read and applied.

    Args:
        connect: makes a session with a short time-out; called again after every error.
        client: of Redis, with a short time-out.
        log: the worker's; told what somebody has to look into, such as a right that is missing.
    """

    _connect: Callable[[], Session]
    _client: redis.Redis
    _log: Log

    def __post_init__(self) -> None:
        self._session = KeptSession(self._connect)
        self._version = -1
        self._look_at = self._keep_at = 0.0
        self._published: dict[str, list[Salt]] | None = None
        self._gone: set[bytes] = set()

    def keep(self) -> None:
        """Make and forget salts where that is due; on the loop's thread."""
        clock = time.monotonic()
        if clock < self._look_at:
            return
        self._look_at = clock + LOOK_EVERY_S
        try:
            version = read_control(self._session(), lock="").policy_version
            if version == self._version and clock < self._keep_at:
                return
            self._published = salts.keep(self._session())
            self._session.used()
            self._version, self._keep_at = version, clock + KEEP_EVERY_S
        except StoreError as error:
            self._session.close()
            self._look_at = clock + KEEP_EVERY_S / 4
            if isinstance(error, Refused):
                self._log(
                    WorkerAction.SALTS,
                    "the salts of different members cannot be kept",
                    level=logging.WARNING,
                    error=error_text(error),
                )

    def publish(self) -> None:
        """Write to Redis what was kept since the last time."""
        published, self._published = self._published, None
        if published is None:
            return
        try:
            with mapped():
                self._write(published)
        except StreamError:
            if self._published is None:
                self._published = published

    def _write(self, published: dict[str, list[Salt]]) -> None:
        fields = {name.encode(): encode_salts(own) for name, own in published.items()}
        mapping: dict[Any, Any] = dict(fields)
        gone: set[bytes] = set()
        for stream in stream_keys(self._client):
            key = salts_key(stream)
            there: set[Any] = set(self._client.hkeys(key))
            if mapping:
                self._client.hset(key, mapping=mapping)
            gone |= there - fields.keys()
            # Twice, as another worker may have published what this one has not seen yet.
            if old := (there - fields.keys()) & self._gone:
                self._client.hdel(key, *old)
        self._gone = gone

    def close(self) -> None:
        """Close the session."""
        with suppress(StoreError):
            self._session.close()

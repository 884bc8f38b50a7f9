"""The sender's way to Redis: connected or not, when to try again, and which stream."""

import logging
import random
import time
from collections.abc import Sequence
from typing import Final

import redis

from countersink.producers.applied import Trail
from countersink.producers.clock import RedisClock
from countersink.producers.journal import Journal
from countersink.producers.parcel import Parcel
from countersink.producers.transport import Delivery, deliver
from countersink.stream.connection import connect, mapped
from countersink.stream.errors import StreamError
from countersink.stream.names import stream_key
from countersink.stream.partitions import partitions

FIRST_BACKOFF_SECONDS: Final = 0.1
MAX_BACKOFF_SECONDS: Final = 5.0
HELD_BACK_SECONDS: Final = 1.0


class Link:
    """One connection, used by one thread; only the attributes and :meth:`abort` are for others.

    Attributes:
        connected: Redis answered the last time.
        held_back: it answered, but its stream is longer than it may get.
        failures: failed attempts so far, to connect or to send.
        last_error: the last failure's text, without passwords.
        trail: told of each entry that this process has stored.
    """

    def __init__(
        self, url: str, socket_timeout: float, max_length: int, clock: RedisClock, journal: Journal
    ) -> None:
        self.connected = False
        self.held_back = False
        self.failures = 0
        self.last_error: str | None = None
        self.trail = Trail(journal)
        self._url = url
        self._socket_timeout = socket_timeout
        self._max_length = max_length
        self._clock = clock
        self._journal = journal
        self._client: redis.Redis | None = None
        self._partition = 0
        self._share = random.SystemRandom().random()  # which partition: the same all life long
        self._backoff = FIRST_BACKOFF_SECONDS
        self._not_before = 0.0
        self._aborted = False

    @property
    def _stream(self) -> str:
        return stream_key(self._partition)

    @property
    def usable(self) -> bool:
        """Whether the last thing known is that entries can be sent."""
        return self.connected and not self.held_back

    def seconds_to_next_try(self) -> float:
        """Seconds until :meth:`ready` will try again."""
        return max(0.0, self._not_before - time.monotonic())

    def try_now(self) -> None:
        """Let the next :meth:`ready` try at once. From any thread."""
        if not self.held_back:
            self._not_before = 0.0

    def ready(self) -> bool:
        """Connect if needed and due; whether entries can be sent now."""
        if time.monotonic() < self._not_before:
            return False
        try:
            if not self.connected:
                self._connect()
            if self._client is not None and self._clock.stale():
                self._clock.learn(self._client)
            if self._client is not None and self.held_back:
                with mapped():
                    self._judge(int(self._client.xlen(self._stream)))
        except StreamError as error:
            self._fail(error)
        return self.usable

    def send(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Send stamped parcels; those that Redis stored. Never raises for a failure of Redis."""
        client = self._client
        if client is None:
            return []
        try:
            delivery: Delivery = deliver(client, self._partition, parcels)
        except StreamError as error:
            for parcel in parcels:
                parcel.in_doubt = True
            self._fail(error)
            return []
        if delivery.last_id is not None:
            self.trail.stored(self._stream, delivery.last_id)
        if delivery.error is not None:
            self._fail(delivery.error)
        else:
            self._judge(delivery.length)
        return delivery.stored

    def abort(self) -> None:
        """Break the connection, so that a call that hangs in it fails at once. From any thread."""
        self._aborted = True
        client = self._client
        if client is not None:
            client.connection_pool.disconnect()

    def close(self) -> None:
        """Hang up."""
        client, self._client = self._client, None
        self.connected = False
        if client is not None:
            try:
                client.close()
            except (redis.RedisError, OSError):
                pass  # nothing is lost with a connection that cannot even be closed

    def _connect(self) -> None:
        self.close()  # what an attempt that ended in an unexpected exception has left
        client = connect(
            self._url, socket_timeout=self._socket_timeout, client_name="countersink-producer"
        )
        self._client = client  # from here on, abort() can break it off
        self._clock.learn(client)
        self._partition = int(self._share * partitions(client))
        self.trail.follow(client, self._stream)
        self.connected = True
        self._backoff = FIRST_BACKOFF_SECONDS
        if self.failures:
            self._journal.say(logging.INFO, "connected", "Redis answers again")
        with mapped():
            self._judge(int(client.xlen(self._stream)))

    def _judge(self, length: int) -> None:
        """Hold entries back while the stream is too long."""
        if length > self._max_length:
            self.held_back = True
            self.last_error = (
                f"{self._stream} has {length} entries; at most {self._max_length} may wait"
            )
            self._not_before = time.monotonic() + HELD_BACK_SECONDS * random.uniform(0.5, 1.5)
            self._journal.seldom(logging.WARNING, "held_back", "%s", self.last_error)
        else:
            self.held_back = False

    def _fail(self, error: StreamError) -> None:
        self.failures += 1
        self.last_error = str(error)
        self._not_before = time.monotonic() + self._backoff * random.uniform(0.5, 1.0)
        self._backoff = min(MAX_BACKOFF_SECONDS, self._backoff * 2)
        if not self._aborted:
            self._journal.seldom(logging.WARNING, "unavailable", "%s; rows wait in memory", error)
        self.close()

"""Idempotency-Keys with the digests of the bodies that they came with: days for which they are kept
(``DAYS``), how long a request waits for Redis (``WAIT_S``), and the 409 for another body.

The guard in MySQL counts a name once. It is written when the entry is applied, and knows no body.
So digests are in Redis, where each web process finds them from the first request on, while its
entry is still in the queue. They lie in many small hashes, which Redis packs: 25 bytes each.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b, sha256
from typing import Final, Literal

import anyio

from countersink.producers import Increment
from countersink.producers.batch import Asked
from countersink.stream.connection import mapped
from countersink.stream.errors import StreamError
from countersink.stream.names import bodies_key
from countersink.web.errors import Problem
from countersink.web.services import Services

LOGGER: Final = logging.getLogger("countersink.web")
DAYS: Final = 3
"""Days for which a digest is kept at least, as guards are by default (``ledger_days``)."""
WAIT_S: Final = 0.5
"""Seconds for which a request waits for Redis; then it is accepted without a comparison."""
THREADS: Final = 8
"""Requests that ask Redis at once."""
_DAY_S: Final = 86_400
_BUCKETS: Final = 4096
_NAME_BYTES: Final = 10
_DIGEST_BYTES: Final = 8


class RequestBodies:
    """Digests of the bodies of named requests. For the event loop's thread.

    Args:
        services: of the process.
    """

    def __init__(self, services: Services) -> None:
        self._redis = services.redis
        self._scope = services.producer.id_scope
        self._threads = anyio.CapacityLimiter(THREADS)
        self._compared = True

    @asynccontextmanager
    async def noted(
        self, name: str, increments: Sequence[Asked | Increment]
    ) -> AsyncIterator[None]:
        """Keep the digest of a request; given back if the block raises, as nothing is counted then.

        While Redis does not answer nothing is compared.

        Args:
            name: of the request, in the scope of its API key.
            increments: of its body. Spaces, members that have their default, and how a time is
                written make no other body of it; the order of increments does.

        Raises:
            Problem: 409 another body came with this name before.
        """
        place = sha256(f"{self._scope}\n{name}".encode()).digest()
        today = int(time.time()) // _DAY_S
        bucket = int.from_bytes(place[:2]) % _BUCKETS
        keys = [bodies_key(bucket, today - back) for back in range(DAYS + 1)]
        field = place[2 : 2 + _NAME_BYTES]
        work = partial(self._note, keys, field, name, increments)
        task = asyncio.create_task(anyio.to_thread.run_sync(work, limiter=self._threads))
        done, _ = await asyncio.wait({task}, timeout=WAIT_S)
        if not done:
            task.cancel()  # if it has a thread already, it keeps that until Redis answers
        found = task.result() if done else None
        self._tell(compared=found is not None)
        if found == "other":
            raise Problem(
                409,
                "This Idempotency-Key came with another body before, so nothing was counted:"
                " give another request another key",
            )
        try:
            yield
        except Problem:
            if found == "first":
                await anyio.to_thread.run_sync(
                    self._give_back, keys[0], field, limiter=self._threads
                )
            raise

    def _note(
        self, keys: Sequence[str], field: bytes, name: str, increments: Iterable[Asked | Increment]
    ) -> Literal["first", "same", "other"] | None:
        """Which body of the name it is; None: Redis did not tell."""
        digest = _digest(name, increments)
        today, *before = keys
        try:
            with mapped(), self._redis.pipeline(transaction=False) as pipe:
                for key in before:
                    pipe.hget(key, field)
                pipe.hsetnx(today, field, digest)
                pipe.hget(today, field)
                pipe.expire(today, (DAYS + 1) * _DAY_S)
                *earlier, made, now, _ = pipe.execute()
        except StreamError:
            return None
        first = next((each for each in earlier if each is not None), None)
        if made and first is None:
            return "first"
        if (first or now) == digest:
            return "same"
        if made:
            self._give_back(today, field)
        return "other"

    def _give_back(self, key: str, field: bytes) -> None:
        """Forget a digest; one that Redis does not take back goes by itself."""
        try:
            with mapped():
                self._redis.hdel(key, field)
        except StreamError as error:
            LOGGER.debug("a digest stays: %s", error)

    def _tell(self, *, compared: bool) -> None:
        if self._compared and not compared:
            LOGGER.warning(
                "Redis does not answer, or refuses: bodies of Idempotency-Keys are not compared",
                extra={"action": "not_compared"},
            )
        self._compared = compared


def _digest(name: str, increments: Iterable[Asked | Increment]) -> bytes:
    """The digest of a body. With the name in it, so that who reads Redis cannot try visitors."""
    body = [
        (
            counter,
            key if isinstance(key, str) else sorted(key.items()),
            amount,
            None if at is None else at.timestamp(),
            rest,
        )
        for counter, key, amount, at, *rest in increments
    ]
    return blake2b(json.dumps([name, body]).encode(), digest_size=_DIGEST_BYTES).digest()

"""Waiting until all that was in the streams at one moment is counted.

A worker removes an entry from its stream once its transaction is committed. So nothing of what was
there is left to be counted when no stream holds an entry up to what was its last one then.
"""

import time
from collections.abc import Callable
from typing import Final

import redis

from countersink.stream.connection import mapped
from countersink.stream.delivery import ends as stream_ends
from countersink.stream.epoch import order
from countersink.stream.partitions import stream_keys

POLL_S: Final = 0.05
"""Seconds between two looks; each costs Redis one small read per stream."""

Ends = dict[str, str]
"""By the stream's key the id of its last entry; without the empty ones."""


def now_ms(client: redis.Redis) -> int:
    """Unix ms on Redis's clock, by which entries are stamped.

    Raises:
        StreamError: Redis did not do its part.
    """
    with mapped():
        seconds, microseconds = client.time()
    return seconds * 1000 + microseconds // 1000


def ends(client: redis.Redis) -> Ends:
    """Where every stream ends now.

    Raises:
        StreamError: Redis did not do its part.
    """
    found: Ends = {}
    for stream in stream_keys(client):
        if there := stream_ends(client, stream):
            found[stream] = there[1]
    return found


def left(client: redis.Redis, upto: Ends) -> Ends:
    """The streams that still hold an entry up to their end of then.

    Raises:
        StreamError: Redis did not do its part.
    """
    return {
        stream: end
        for stream, end in upto.items()
        if (there := stream_ends(client, stream)) and order(there[0]) <= order(end)
    }


def drain(client: redis.Redis, upto: Ends, *, seconds: float, look: Callable[[Ends], bool]) -> Ends:
    """Wait until nothing is left; what still is where that took too long or ``look`` said so.

    Args:
        client: where the streams are.
        upto: from :func:`ends`.
        seconds: how long to wait.
        look: is given what is left, after each look; false ends the waiting.

    Raises:
        StreamError: Redis did not do its part.
    """
    deadline = time.monotonic() + seconds
    while True:
        upto = left(client, upto)
        if not upto or not look(upto) or time.monotonic() >= deadline:
            return upto
        time.sleep(POLL_S)

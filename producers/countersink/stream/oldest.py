"""The oldest of what waits in the streams, pending or not: when it was sent, when it arrived.

A stream is ordered by arrival. What a spool replays arrives today and was first sent long ago, so
the first entry need not be the one that was sent first: all of them are looked at.
"""

from collections.abc import Callable, Iterable
from typing import Final

import redis

from countersink.stream.connection import mapped
from countersink.stream.delivery import ends, script

PAGE: Final = 20
"""Entries that Redis looks at per call, which keeps it for about 2 ms if they are full flushes."""


class Interrupted(Exception):
    """Told to stop before all entries were looked at."""


def first_sent(
    client: redis.Redis,
    streams: Iterable[str],
    *,
    page: int = PAGE,
    stop: Callable[[], bool] = lambda: False,
) -> int | None:
    """Unix ms of the earliest first attempt to send of any entry in ``streams``; None if all are
    empty.

    An entry that is pending with a consumer, dead or alive, is still in its stream until it is
    acknowledged.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        streams: their keys.
        page: entries per call.
        stop: asked between two calls.

    Raises:
        Interrupted: ``stop`` said so.
        StreamError: Redis did not do its part.
    """
    look = client.register_script(script("oldest"))
    oldest: int | None = None
    for stream in streams:
        start = "-"
        found = page
        while found == page:
            if stop():
                raise Interrupted("stopped while looking for the oldest entry")
            with mapped():
                reply = look(keys=[stream], args=[start, page])
            found = int(reply[0])
            if found:
                sent = int(reply[1])
                oldest = sent if oldest is None else min(oldest, sent)
                start = f"({reply[2].decode()}"
    return oldest


def first_arrived(client: redis.Redis, streams: Iterable[str]) -> int | None:
    """Unix ms at which the entry that has waited longest in ``streams`` arrived; None if all are
    empty.

    Raises:
        StreamError: Redis did not do its part.
    """
    arrived = []
    for stream in streams:
        if found := ends(client, stream):
            arrived.append(int(found[0].partition("-")[0]))
    return min(arrived, default=None)

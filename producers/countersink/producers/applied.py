"""Whether entries have left the streams: workers delete what they have applied, or laid aside."""

from collections.abc import Mapping, Sequence

import redis

from countersink.stream.connection import command
from countersink.stream.errors import StreamError

Mark = Mapping[str, str]
"""Stream → id of the last entry that somebody had stored there at some moment."""


def passed(client: redis.Redis, marks: Sequence[Mark]) -> list[bool]:
    """For each mark whether there is nothing up to it any more, in any of its streams. False where
    Redis does not tell.
    """
    lasts: dict[str, tuple[int, ...]] = {}
    for mark in marks:
        for stream, last in mark.items():
            lasts[stream] = max(lasts.get(stream, ()), _order(last))
    # One look at each stream for all marks: the oldest entry tells.
    oldest: dict[str, tuple[int, ...] | None] = {}
    for stream, latest in lasts.items():
        try:
            upto = "-".join(map(str, latest))
            entries = command(client, "XRANGE", stream, "-", upto, "COUNT", 1)
        except StreamError:
            oldest[stream] = ()  # older than all
        else:
            oldest[stream] = _order(entries[0][0].decode()) if entries else None
    return [
        all(
            (first := oldest[stream]) is None or first > _order(last)
            for stream, last in mark.items()
        )
        for mark in marks
    ]


def _order(stream_id: str) -> tuple[int, ...]:
    return tuple(map(int, stream_id.split("-")))

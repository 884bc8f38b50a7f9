"""How many streams there are, and which of them may hold entries.

Producers spread over ``countersink:partitions`` streams. Whoever sends to one notes its number in
``countersink:partitions:used`` with what it sends, and nobody takes a number out again: so readers
find every stream that ever held an entry, whatever the operator sets, and whenever.
"""

from typing import Any, Final

import redis

from countersink.stream.connection import mapped
from countersink.stream.errors import StreamMisconfigured
from countersink.stream.names import PARTITIONS_KEY, PARTITIONS_USED_KEY, stream_key

MAX_PARTITIONS: Final = 1024


def partitions(client: redis.Redis) -> int:
    """The number of partitions that producers spread over, 1 unless ``countersink:partitions`` says
    otherwise.

    Raises:
        StreamMisconfigured: the key does not hold a number from 1 to 1024.
        StreamUnavailable: Redis did not answer.
    """
    with mapped():
        raw = client.get(PARTITIONS_KEY)
    if raw is None:
        return 1
    text = raw.decode("ascii", "replace") if isinstance(raw, bytes) else raw
    if not (text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MAX_PARTITIONS):
        raise StreamMisconfigured(
            f"{PARTITIONS_KEY} holds {text[:40]!r}: SET it to a number from 1 to {MAX_PARTITIONS}"
        )
    return int(text)


def note_use(client: Any, partition: int) -> None:
    """Note that ``partition`` is sent to. ``client`` may be a pipeline: the note then travels with
    what is sent.

    Raises:
        StreamError: Redis did not do its part.
    """
    with mapped():
        client.sadd(PARTITIONS_USED_KEY, partition)


def used_partitions(client: redis.Redis) -> list[int]:
    """Every partition that may hold entries, in order: those in use now, and those ever used.

    Raises:
        StreamMisconfigured: ``countersink:partitions`` does not hold a number from 1 to 1024.
        StreamUnavailable: Redis did not answer.
    """
    current = range(partitions(client))
    with mapped():
        noted: set[Any] = client.smembers(PARTITIONS_USED_KEY)
    used = {int(text) for text in noted if text.isdigit() and len(text) <= 4}
    return sorted(used.union(current))


def stream_keys(client: redis.Redis) -> list[str]:
    """The streams of :func:`used_partitions`; raises the same."""
    return [stream_key(partition) for partition in used_partitions(client)]

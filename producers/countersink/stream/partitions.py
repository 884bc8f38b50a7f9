"""How many streams there are, and which of them may still hold entries."""

from typing import Final

import redis

from countersink.stream.connection import mapped
from countersink.stream.errors import StreamMisconfigured, StreamUnavailable
from countersink.stream.names import PARTITIONS_KEY, PARTITIONS_USED_KEY, stream_key

MAX_PARTITIONS: Final = 1024


def partitions(client: redis.Redis) -> int:
    """The number of partitions that producers spread over, 1 unless ``countersink:partitions`` says
    otherwise.

    Raises:
        StreamMisconfigured: the key does not hold a number from 1 to 1024.
        StreamUnavailable: Redis did not answer.
    """
    return _count(client, PARTITIONS_KEY)


def stream_keys(client: redis.Redis) -> list[str]:
    """The streams a worker has to read: every partition that was ever used, also after their number
    was lowered.

    The largest number seen is kept in ``countersink:partitions:used``; this call raises it.

    Raises:
        StreamMisconfigured: a key does not hold a number from 1 to 1024.
        StreamUnavailable: Redis did not answer.
    """
    now = partitions(client)
    used = _count(client, PARTITIONS_USED_KEY)
    if now > used:
        # Two workers may race here; both only ever write what they read from the operator's key.
        try:
            with mapped():
                client.set(PARTITIONS_USED_KEY, now)
        except StreamUnavailable:
            pass  # a full Redis takes no SET, and has to be emptied all the same: the next call
    return [stream_key(partition) for partition in range(max(now, used))]


def _count(client: redis.Redis, key: str) -> int:
    with mapped():
        raw = client.get(key)
    if raw is None:
        return 1
    text = raw.decode("ascii", "replace") if isinstance(raw, bytes) else raw
    if not (text.isdecimal() and 1 <= int(text) <= MAX_PARTITIONS):
        raise StreamMisconfigured(
            f"{key} holds {text!r}: SET it to a number from 1 to {MAX_PARTITIONS}"
        )
    return int(text)

"""Names of all Redis keys, how many partitions there may be (with the error for a wrong number),
and which partition a sender sends to.

==============================  ======  ==========================================================
key                             type    meaning; who writes it
==============================  ======  ==========================================================
``{countersink:P}:events``      stream  partition P's entries; producers XADD, workers XACK, XDEL
``{countersink:P}:applied``     hash    the life of partition P's group (``group``), and how many
                                        entries were acknowledged (``count``); producers, workers
``countersink:partitions``      string  the number of partitions, default 1; the operator
``countersink:partitions:used`` set     the partitions ever sent to; producers add theirs
``{countersink:P}:tail:HASH``   hash    how far a log has been read; ``countersink tail``
``countersink:worker:CONSUMER`` hash    a worker's figures for ``info``, expires; the worker
``countersink:process:K:NAME``  hash    a scheduler or job process lives, expires; that process
``rq:*``                        many    the scheduled jobs' queue (RQ's own); in the Redis of
                                        COUNTERSINK_JOBS_REDIS_URL, as the line above
==============================  ======  ==========================================================

The part in braces is a Redis Cluster hash tag: everything of one partition lives in one slot.

Producers spread over ``countersink:partitions`` streams. Whoever sends to one notes its number in
``countersink:partitions:used`` with what it sends, and nobody takes a number out again: so readers
find every stream that ever held an entry, whatever the operator sets, and whenever.
"""

from hashlib import sha256
from random import SystemRandom
from typing import Any, Final

import redis

from countersink.stream.connection import mapped
from countersink.stream.errors import StreamMisconfigured

GROUP: Final = "countersink"
"""The one consumer group on every stream."""
MAX_PARTITIONS: Final = 1024
PARTITIONS_KEY: Final = "countersink:partitions"
PARTITIONS_USED_KEY: Final = "countersink:partitions:used"
WORKER_KEY_PREFIX: Final = "countersink:worker:"
PROCESS_KEY_PREFIX: Final = "countersink:process:"
_EVENTS: Final = ":events"


def stream_key(partition: int) -> str:
    """The stream of partition ``partition``, counted from 0."""
    return f"{{countersink:{partition}}}{_EVENTS}"


def applied_key(stream: str) -> str:
    """The hash, in the hash slot of ``stream``, that tells applied entries from lost ones."""
    return f"{stream.removesuffix(_EVENTS)}:applied"


def tail_key(partition: int, source: str) -> str:
    """The hash that holds how far ``source`` (any text that names a log and its options) was read.

    Its fields: :mod:`countersink.producers.access_log.position`. It lies in the hash slot of the
    partition's stream, so that rows and position move in one transaction.
    """
    digest = sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return f"{{countersink:{partition}}}:tail:{digest}"


def worker_key(consumer: str) -> str:
    """The hash with the figures of the worker that reads as ``consumer``."""
    return WORKER_KEY_PREFIX + consumer


def process_key(kind: str, name: str) -> str:
    """The hash by which a process of ``kind`` (``scheduler`` or ``jobs``) says that it lives."""
    return f"{PROCESS_KEY_PREFIX}{kind}:{name}"


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


def choose_partition(client: redis.Redis, share: float | None = None) -> int:
    """The partition that a sender sends to.

    Args:
        share: from 0 up to 1, without it; the same share is the same partition as long as their
            number stays. Default: at random.

    Raises:
        StreamMisconfigured, StreamUnavailable: see :func:`partitions`.
    """
    return int((SystemRandom().random() if share is None else share) * partitions(client))


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

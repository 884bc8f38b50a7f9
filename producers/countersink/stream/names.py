"""Every Redis key countersink uses: its name, type, meaning, and who writes it.

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
"""

from hashlib import sha256
from typing import Final

GROUP: Final = "countersink"
"""The one consumer group on every stream."""
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

    Its fields: :mod:`countersink.producers.log_position`. It lies in the hash slot of the
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

"""Names of all Redis keys; functions for the salts and the number of partitions, which some keys
store; and the choice of the partition to which a sender sends (``PartitionRoute``), also while a
master of a cluster is away.

Functions with a client raise ``StreamError`` when Redis does not answer, or refuses.

==============================  ======  ==========================================================
key                             type    meaning; writers
==============================  ======  ==========================================================
``{countersink:P}:events``      stream  partition P's entries; producers XADD, workers XACK, XDEL
``{countersink:P}:applied``     hash    the random name of partition P's group (``group``), and the
                                        number of acknowledged entries (``count``); producers,
                                        workers
``{countersink:P}:salts``       hash    counter → its salts, ``runtime/members.py``; workers write
                                        it for each partition, producers read that of their
                                        partition, ``countersink counter delete`` removes a counter
``countersink:partitions``      string  the number of partitions, default 1, on a cluster four
                                        per master; ``countersink partitions set``
``countersink:partitions:used`` set     the partitions ever sent to; producers add theirs
``{countersink:P}:tail:HASH``   string  the position of a log's reader; ``countersink tail``
``countersink:worker:CONSUMER`` hash    a worker's figures for ``info``, expires; the worker
``rq:*``                        many    the scheduled jobs' queue (RQ's own); in the Redis of
                                        COUNTERSINK_JOBS_REDIS_URL
==============================  ======  ==========================================================

The part in braces is a hash tag of Redis Cluster: all keys of a partition are in one hash slot.

Each producer sends to one of ``countersink:partitions`` streams. It adds its partition's number to
``countersink:partitions:used`` with its entries, and no number is ever removed. So readers find
every stream that ever had an entry, even if the operator changes the number of partitions.

On a cluster each of these two keys is on one master, whose failure must not stop producers. So
``countersink:partitions:used`` is not used there: a partition is in use if its stream exists, and
nothing removes a stream. While the master of ``countersink:partitions`` is away, producers use the
default number instead. This does no harm, because readers find the streams of all numbers."""

import time
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final, TypeVar

import redis

from countersink.runtime.members import SALT_SECONDS, Salt, decode_salts
from countersink.stream.connection import cluster_of, mapped
from countersink.stream.errors import (
    StreamError,
    StreamMisconfigured,
    StreamRefused,
    StreamUnavailable,
)

if TYPE_CHECKING:
    from countersink.stream.cluster import ClusterClient

GROUP: Final = "countersink"
"""The name of the consumer group, which is the same on every stream."""
MAX_PARTITIONS: Final = 1024
PARTITIONS_PER_MASTER: Final = 4
"""Default number of partitions for each master of a cluster."""
RETURN_SECONDS: Final = 30.0
"""Seconds until a sender tries its home partition again after it has left that partition's
master.
"""
PARTITIONS_KEY: Final = "countersink:partitions"
PARTITIONS_USED_KEY: Final = "countersink:partitions:used"
WORKER_KEY_PREFIX: Final = "countersink:worker:"
_EVENTS: Final = ":events"
_SALT_POLL_S: Final = 0.1

T = TypeVar("T")
OnSilence = Callable[[str, StreamError], object]


def stream_key(partition: int) -> str:
    """Return the key of the stream of partition number ``partition``; the numbers begin at 0."""
    return f"{{countersink:{partition}}}{_EVENTS}"


def applied_key(stream: str) -> str:
    """Return the key of the hash that shows whether entries of ``stream`` were applied or lost; see
    ``stream/progress.py``. It is in the hash slot of ``stream``."""
    return f"{stream.removesuffix(_EVENTS)}:applied"


def salts_key(stream: str) -> str:
    """Return the key of the hash with the salts of counters, in the hash slot of ``stream``. So a
    sender that can write to the stream can also read the salts.
    """
    return f"{stream.removesuffix(_EVENTS)}:salts"


def salts_of(client: redis.Redis, stream: str, counters: Sequence[str]) -> dict[str, list[Salt]]:
    """Return the salts that the partition of ``stream`` has now, as a dict by counter. The list is
    empty for a counter without salts, or with damaged ones; workers write those again."""
    with mapped():
        pipe = client.pipeline(transaction=False)
        for counter in counters:
            pipe.hget(salts_key(stream), counter)
        replies = pipe.execute()
    return {name: decode_salts(raw) for name, raw in zip(counters, replies, strict=True)}


def read_salts(client: redis.Redis, stream: str, counter: str, minute: int) -> list[Salt]:
    """Return the salts of a counter, or an empty list if it has none. Wait up to ``SALT_SECONDS``
    for a salt that is used at ``minute`` (a Unix minute, not in the future) or later. If none
    comes, return the salts that there are."""
    deadline = time.monotonic() + SALT_SECONDS
    while True:
        salts = salts_of(client, stream, [counter])[counter]
        covered = any(salt.ends is None or salt.ends > minute for salt in salts)
        if covered or time.monotonic() >= deadline:
            return salts
        time.sleep(_SALT_POLL_S)


def remove_salts(client: redis.Redis, counter: str) -> None:
    """Remove a counter's salts from each partition of :func:`used_partitions`, until one raises a
    StreamError. If a master of a cluster does not answer, or refuses the user, its partitions at or
    above the present number of partitions are skipped."""
    for partition in used_partitions(client, on_silence=lambda *_: None):
        with mapped():
            client.hdel(salts_key(stream_key(partition)), counter)


def tail_key(partition: int, source: str) -> str:
    """Return the key of the string with the position up to which a log is read, in the hash slot of
    the partition's stream.

    Args:
        partition: the number of the partition.
        source: the name of the log with its options; see :mod:`countersink.logs.position`.
    """
    digest = sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return f"{{countersink:{partition}}}:tail:{digest}"


def worker_key(consumer: str) -> str:
    """Return the key of the hash with the figures of the worker whose consumer name is
    ``consumer``.
    """
    return WORKER_KEY_PREFIX + consumer


def partitions(client: redis.Redis) -> int:
    """Return the number of partitions that producers send to: the value of
    ``countersink:partitions``. The default is 1, on a cluster 4 for each master. On a cluster, the
    default is also used while the master of this key does not serve or refuses the user, because
    other masters may serve.

    Raises:
        StreamMisconfigured: the key does not hold a number from 1 to 1024, or Redis refuses.
        StreamUnavailable: Redis did not answer.
    """
    cluster = cluster_of(client)
    raw: Any = None
    try:
        with mapped():
            raw = (cluster.with_short_timeout if cluster else client).get(PARTITIONS_KEY)
    except (StreamUnavailable, StreamRefused):
        if cluster is None:
            raise
    if raw is None:
        if cluster is None:
            return 1
        return min(MAX_PARTITIONS, PARTITIONS_PER_MASTER * max(1, len(masters(client))))
    text = raw.decode("ascii", "replace") if isinstance(raw, bytes) else raw
    if not (text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MAX_PARTITIONS):
        raise StreamMisconfigured(
            f"{PARTITIONS_KEY} holds {text[:40]!r}: set a number from 1 to {MAX_PARTITIONS}"
            " with countersink partitions set"
        )
    return int(text)


def set_partitions(client: redis.Redis, number: int) -> None:
    """Set the number of partitions; the caller must check that it is from 1 to 1024. Each producer
    uses it from its next connection on at the latest.
    """
    with mapped():
        client.set(PARTITIONS_KEY, number)


def choose_partition(
    client: redis.Redis, share: float, number: int, *, away: Collection[str] = ()
) -> int:
    """Return the number of the partition to which a sender sends.

    ``share`` selects the partition; on a cluster first a master, then one of its partitions. So all
    masters get equally many senders, even if some have more partitions than others.

    Args:
        client: a client from :func:`countersink.stream.connection.connect`.
        share: the sender's number, at least 0 and below 1. It selects the same partition until the
            number of partitions, or the master of a partition, changes.
        number: the number of partitions.
        away: addresses of masters to avoid, as long as there are others.
    """
    cluster = cluster_of(client)
    if cluster is None:
        return int(share * number)
    by_master: dict[str, list[int]] = {master: [] for master in masters(client)}
    for partition in range(number):
        by_master.get(master_of(client, partition) or "", []).append(partition)
    candidates = [(master, found) for master, found in by_master.items() if found]
    while candidates:
        share *= len(candidates)
        master, found = candidates.pop(int(share))
        share -= int(share)
        # The shares of a master that is away spread over all others.
        if master not in away or not candidates:
            return found[int(share * len(found))]
    return int(share * number)


def note_use(client: Any, partition: int) -> None:
    """Note in ``countersink:partitions:used`` that ``partition`` is in use; ``client`` may be a
    pipeline. On a cluster it does nothing, because there the existence of the stream shows the use.
    """
    if cluster_of(client) is None:
        with mapped():
            client.sadd(PARTITIONS_USED_KEY, partition)


def used_partitions(client: redis.Redis, *, on_silence: OnSilence | None = None) -> list[int]:
    """Return the numbers of all partitions that may have entries, sorted: those below the present
    number of partitions, and those that were ever used.

    Args:
        client: a client from :func:`countersink.stream.connection.connect`.
        on_silence: on a cluster, a function to call with the address and the error of each master
            that is silent for a second, or refuses the user. Of the partitions on such a master
            only those below the present number are returned. By default the error is raised.

    Raises:
        StreamMisconfigured: ``countersink:partitions`` does not hold a number from 1 to 1024.
        StreamRefused: Redis, or all masters, refuse the user (without ``on_silence``: a master).
        StreamUnavailable: Redis, or every node of a cluster, did not answer (without
            ``on_silence``: a master did not).
    """
    found = set(range(partitions(client)))
    cluster = cluster_of(client)
    if cluster is None:
        with mapped():
            noted: set[Any] = client.smembers(PARTITIONS_USED_KEY)
        return sorted(found | {int(text) for text in noted if text.isdigit() and len(text) <= 4})
    by_master: dict[str, list[int]] = {}
    for partition in range(MAX_PARTITIONS):
        by_master.setdefault(master_of(client, partition) or "", []).append(partition)
    refusals = 0
    for master, candidates in by_master.items():
        try:
            found |= _existing(cluster, candidates)
        except StreamError as error:
            refusals += isinstance(error, StreamRefused)
            if on_silence is None or refusals == len(by_master):
                raise
            if master:
                on_silence(master, error)
    return sorted(found)


def masters(client: redis.Redis) -> list[str]:
    """Return the addresses of a cluster's masters that have hash slots, sorted by their lowest hash
    slot; return an empty list for a single Redis."""
    if (cluster := cluster_of(client)) is None:
        return []
    with mapped():
        return [master.text for master in cluster.masters()]


def master_of(client: redis.Redis, partition: int) -> str | None:
    """Return the address of a partition's master by a cluster's latest topology; return None if the
    partition's hash slot has no master, or if Redis is not a cluster."""
    if (cluster := cluster_of(client)) is None:
        return None
    with mapped():
        found = cluster.master_of(stream_key(partition))
    return None if found is None else found.text


def _existing(cluster: "ClusterClient", candidates: Sequence[int]) -> set[int]:
    """Return the partitions among ``candidates`` whose streams exist."""
    with mapped():
        pipe = cluster.with_short_timeout.pipeline(False)
        for partition in candidates:
            pipe.exists(stream_key(partition))
        found = pipe.execute()
    return {partition for partition, there in zip(candidates, found, strict=True) if there}


def stream_keys(client: redis.Redis) -> list[str]:
    """Return the keys of the streams of all partitions that may have entries. Raises the errors of
    :func:`used_partitions`."""
    return [stream_key(partition) for partition in used_partitions(client)]


class PartitionRoute:
    """Chooses the partition to which a sender sends. Normally this is the sender's home, the
    partition that its share selects. On a cluster, while the home's master is away or refuses, it
    is a partition on another master. An entry may be stored on both masters then. It is counted
    once, because it has the same bytes and id.

    Attributes:
        partition: the number of the partition to send to, from the first :meth:`find` on.

    Args:
        share: the sender's number for :func:`choose_partition`; random by default; never changes.
    """

    def __init__(self, share: float | None = None) -> None:
        self.partition = 0
        self._share = SystemRandom().random() if share is None else share
        self._master: str | None = None
        self._left: dict[str, StreamError] = {}  # master → the error for which it was left
        self._home_at = float("inf")

    @property
    def stream(self) -> str:
        """The key of the partition's stream."""
        return stream_key(self.partition)

    def find(self, client: redis.Redis) -> None:
        """Choose the partition, and set :attr:`partition`. Until the sender next tries its home,
        avoid the masters that it has left by :meth:`leave`."""
        number = partitions(client)
        self.partition = choose_partition(client, self._share, number, away=self._left)
        self._master = master_of(client, self.partition)

    def reach(self, client: redis.Redis, work: Callable[[], T]) -> T:
        """Call ``work``, which uses the partition, and return its result. After a StreamError
        choose a partition on another master and call ``work`` again. If no master serves, or
        without a cluster, raise the error that :meth:`leave` returns."""
        while True:
            try:
                return work()
            except StreamError as error:
                if (lasting := self.leave(client, error)) is not None:
                    raise lasting  # noqa: B904 (it has its own cause)

    def leave(self, client: redis.Redis, error: StreamError) -> StreamError | None:
        """Choose a partition on another master that answers, after sending failed with ``error``.

        Returns:
            None if another master answers, else the error to raise. This is the first error that
            says that a master is unavailable, because that may pass without a person's help. If all
            masters refuse, if the search fails, or without a cluster, it is ``error``."""
        if cluster_of(client) is None:
            return error
        reason = error
        try:
            # A master that this search has left stays left until its end, even if many masters
            # hang for long. The first may be a master that was replaced.
            while True:
                if self._master is not None:
                    self._left[self._master] = reason
                self.find(client)
                if self._master is None or self._master in self._left:
                    break
                try:
                    _check_serves(client, self.partition)
                except StreamError as found:
                    reason = found
                else:
                    self._home_at = time.monotonic() + RETURN_SECONDS
                    return None
        except StreamError:
            return error
        reasons = [error, *self._left.values()]
        self._left.clear()  # none serves: the caller begins again, after a pause
        return next((why for why in reasons if isinstance(why, StreamUnavailable)), error)

    def return_home(self, client: redis.Redis) -> bool:
        """Go back to the home partition, after a :meth:`leave`, if its master serves; at the
        earliest :data:`RETURN_SECONDS` after the last leave or try. Return True if the partition
        has changed. If too early, or the master does not serve, return False and raise nothing."""
        now = time.monotonic()
        if now < self._home_at:
            return False
        self._home_at = now + RETURN_SECONDS
        self._left.clear()
        try:
            home = choose_partition(client, self._share, partitions(client))
            if home != self.partition:
                _check_serves(client, home)
            master = master_of(client, home)
        except StreamError:
            return False
        moved = home != self.partition
        self.partition, self._master, self._home_at = home, master, float("inf")
        return moved


def _check_serves(client: redis.Redis, partition: int) -> None:
    """Check that a partition's master answers within a second, else raise a ``StreamError``. Do
    nothing for a single Redis."""
    if (cluster := cluster_of(client)) is not None:
        with mapped():
            cluster.with_short_timeout.xlen(stream_key(partition))

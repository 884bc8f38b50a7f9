"""Names of all Redis keys, the salts and the number of partitions in them, and the partition that a
sender sends to; on a cluster also while a master is away (``PartitionRoute``, ``RETURN_SECONDS``).

Functions with a client raise ``StreamError`` when Redis does not answer, or refuses.

==============================  ======  ==========================================================
key                             type    meaning; writers
==============================  ======  ==========================================================
``{countersink:P}:events``      stream  partition P's entries; producers XADD, workers XACK, XDEL
``{countersink:P}:applied``     hash    the random name of partition P's group (``group``), and the
                                        number of acknowledged entries (``count``); producers,
                                        workers
``{countersink:P}:salts``       hash    counter → its salts, ``runtime/members.py``; workers write
                                        it for each partition, producers read their partition's,
                                        ``countersink counter delete`` removes a counter's
``countersink:partitions``      string  the number of partitions, default 1, on a cluster four
                                        per master; ``countersink partitions set``
``countersink:partitions:used`` set     the partitions ever sent to; producers add theirs
``{countersink:P}:tail:HASH``   string  the position of a log's reader; ``countersink tail``
``countersink:worker:CONSUMER`` hash    a worker's figures for ``info``, expires; the worker
``rq:*``                        many    the scheduled jobs' queue (RQ's own); in the Redis of
                                        COUNTERSINK_JOBS_REDIS_URL
==============================  ======  ==========================================================

The part in braces is a hash tag of Redis Cluster: all keys of a partition are in one hash slot.

Producers spread over ``countersink:partitions`` streams. A sender adds its partition's number to
``countersink:partitions:used`` with its entries, and no number is ever removed: so readers find
every stream that ever had an entry, even if the operator changes the number of partitions.

On a cluster each of these two keys is on one master, whose failure must stop nothing. So the second
one is not used there: a partition is in use if its stream exists, and nothing removes a stream.
While the master of the first is away, any number will do, since readers do not depend on it.
"""

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
"""The one consumer group on every stream."""
MAX_PARTITIONS: Final = 1024
PARTITIONS_PER_MASTER: Final = 4
"""Default number of partitions for each master of a cluster."""
RETURN_SECONDS: Final = 30.0
"""Seconds until a sender tries again a master that it has left."""
PARTITIONS_KEY: Final = "countersink:partitions"
PARTITIONS_USED_KEY: Final = "countersink:partitions:used"
WORKER_KEY_PREFIX: Final = "countersink:worker:"
_EVENTS: Final = ":events"
_SALT_POLL_S: Final = 0.1

T = TypeVar("T")
OnSilence = Callable[[str, StreamError], object]


def stream_key(partition: int) -> str:
    """The stream of partition ``partition``, counted from 0."""
    return f"{{countersink:{partition}}}{_EVENTS}"


def applied_key(stream: str) -> str:
    """The hash by which applied entries are distinguished from lost ones, in the hash slot of
    ``stream``.
    """
    return f"{stream.removesuffix(_EVENTS)}:applied"


def salts_key(stream: str) -> str:
    """The hash with the salts of counters, in the hash slot of ``stream``: a sender that can write
    to the stream can read it.
    """
    return f"{stream.removesuffix(_EVENTS)}:salts"


def salts_of(client: redis.Redis, stream: str, counters: Sequence[str]) -> dict[str, list[Salt]]:
    """The salts of counters that a stream's senders can read now; an empty list for a counter
    without salts, or with damaged ones, which workers publish again.
    """
    with mapped():
        pipe = client.pipeline(transaction=False)
        for counter in counters:
            pipe.hget(salts_key(stream), counter)
        replies = pipe.execute()
    return {name: decode_salts(raw) for name, raw in zip(counters, replies, strict=True)}


def read_salts(client: redis.Redis, stream: str, counter: str, minute: int) -> list[Salt]:
    """The salts of a counter; an empty list if it has none. Waits up to ``SALT_SECONDS`` for a salt
    that covers ``minute``, a Unix minute that is not ahead.
    """
    deadline = time.monotonic() + SALT_SECONDS
    while True:
        salts = salts_of(client, stream, [counter])[counter]
        covered = any(salt.ends is None or salt.ends > minute for salt in salts)
        if covered or time.monotonic() >= deadline:
            return salts
        time.sleep(_SALT_POLL_S)


def remove_salts(client: redis.Redis, counter: str) -> None:
    """Remove the salts of a counter from each partition."""
    for partition in used_partitions(client, on_silence=lambda *_: None):
        with mapped():
            client.hdel(salts_key(stream_key(partition)), counter)


def tail_key(partition: int, source: str) -> str:
    """The string with the position up to which a log is read, in the hash slot of the partition's
    stream; ``source`` names the log and its options. See :mod:`countersink.logs.position`.
    """
    digest = sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return f"{{countersink:{partition}}}:tail:{digest}"


def worker_key(consumer: str) -> str:
    """The hash with the figures of the worker with the consumer name ``consumer``."""
    return WORKER_KEY_PREFIX + consumer


def partitions(client: redis.Redis) -> int:
    """The number of partitions that producers spread over: the value of ``countersink:partitions``,
    by default 1, on a cluster four per master. On a cluster also if the key's master does not
    serve, or refuses the user, as other masters may serve.

    Raises:
        StreamMisconfigured: the key does not hold a number from 1 to 1024.
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
    """Set the number of partitions, from 1 to 1024; producers use it from their next connection."""
    with mapped():
        client.set(PARTITIONS_KEY, number)


def choose_partition(
    client: redis.Redis, share: float, number: int, *, away: Collection[str] = ()
) -> int:
    """The partition that a sender sends to.

    On a cluster a share selects a master, and then one of its partitions: so all masters get equal
    numbers of senders, even if they have unequal numbers of partitions.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        share: at least 0 and below 1; a share always selects the same partition, until the number
            of partitions, or the master of a partition, changes.
        number: the number of partitions.
        away: addresses of masters to avoid if there are others.
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
    """Note that ``partition`` is in use; ``client`` may be a pipeline. On a cluster there is no
    note: the stream's existence shows it.
    """
    if cluster_of(client) is None:
        with mapped():
            client.sadd(PARTITIONS_USED_KEY, partition)


def used_partitions(client: redis.Redis, *, on_silence: OnSilence | None = None) -> list[int]:
    """Every partition that may have entries, in order: the current ones, and those ever used.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        on_silence: on a cluster, called with the address of each master that is silent for a
            second, or refuses the user; its partitions above the current number are left out.
            Default: raise the error.

    Raises:
        StreamMisconfigured: ``countersink:partitions`` does not hold a number from 1 to 1024.
        StreamRefused: all masters refuse.
        StreamUnavailable: Redis, or every node of a cluster, did not answer.
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
    """The addresses of a cluster's masters that have hash slots, by their lowest slot; empty for a
    single Redis.
    """
    if (cluster := cluster_of(client)) is None:
        return []
    with mapped():
        return [master.text for master in cluster.masters()]


def master_of(client: redis.Redis, partition: int) -> str | None:
    """The address of a partition's master in a cluster's latest topology; None: its hash slot has
    none, or Redis is no cluster.
    """
    if (cluster := cluster_of(client)) is None:
        return None
    with mapped():
        found = cluster.master_of(stream_key(partition))
    return None if found is None else found.text


def _existing(cluster: "ClusterClient", candidates: Sequence[int]) -> set[int]:
    """The partitions whose streams exist."""
    with mapped():
        pipe = cluster.with_short_timeout.pipeline(False)
        for partition in candidates:
            pipe.exists(stream_key(partition))
        found = pipe.execute()
    return {partition for partition, there in zip(candidates, found, strict=True) if there}


def stream_keys(client: redis.Redis) -> list[str]:
    """The keys of the streams of :func:`used_partitions`, which also defines the errors."""
    return [stream_key(partition) for partition in used_partitions(client)]


class PartitionRoute:
    """The partition that a sender sends to: its share's own partition; on a cluster, while the
    master of that is away or refuses, a partition on another master.

    Entries keep their bytes and ids, so that an entry that both masters have stored counts once.

    Attributes:
        partition: the partition to send to, from the first :meth:`find` on.

    Args:
        share: see :func:`choose_partition`; never changes. Default: random.
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
        """Choose the partition; avoid the masters that were left lately."""
        number = partitions(client)
        self.partition = choose_partition(client, self._share, number, away=self._left)
        self._master = master_of(client, self.partition)

    def reach(self, client: redis.Redis, work: Callable[[], T]) -> T:
        """The result of ``work``, which uses the partition; after an error it is called again with
        a partition on another master, until no master serves (see :meth:`leave` for the error).
        """
        while True:
            try:
                return work()
            except StreamError as error:
                if (lasting := self.leave(client, error)) is not None:
                    raise lasting  # noqa: B904 (it has its own cause)

    def leave(self, client: redis.Redis, error: StreamError) -> StreamError | None:
        """Choose a partition on another master that answers, after sending failed with ``error``.

        Returns:
            None if there is one, else the error to raise: the first by which a master is merely
            unavailable, as it may come back without a person's help; if there is none, ``error``.
        """
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
        """Return to the share's own partition if that is due and its master serves; return whether
        :attr:`partition` has changed.
        """
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
    """Read the length of a partition's stream; raises if its master does not answer soon."""
    if (cluster := cluster_of(client)) is not None:
        with mapped():
            cluster.with_short_timeout.xlen(stream_key(partition))

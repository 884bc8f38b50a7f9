"""Names of all Redis keys, how many partitions there may be (with the error for a wrong number),
and which partition a sender sends to; of a cluster, which one while a master is away
(``PartitionRoute``), and for how long (``RETURN_SECONDS``).

==============================  ======  ==========================================================
key                             type    meaning; who writes it
==============================  ======  ==========================================================
``{countersink:P}:events``      stream  partition P's entries; producers XADD, workers XACK, XDEL
``{countersink:P}:applied``     hash    the life of partition P's group (``group``), and how many
                                        entries were acknowledged (``count``); producers, workers
``{countersink:P}:salts``       hash    counter → its salts, ``runtime/members.py``; workers write
                                        it for each partition, producers read that of theirs,
                                        ``countersink counter delete`` removes a counter's
``countersink:partitions``      string  the number of partitions, default 1, on a cluster four
                                        per master; ``countersink partitions set``
``countersink:partitions:used`` set     the partitions ever sent to; producers add theirs
``{countersink:P}:tail:HASH``   hash    how far a log has been read; ``countersink tail``
``countersink:worker:CONSUMER`` hash    a worker's figures for ``info``, expires; the worker
``rq:*``                        many    the scheduled jobs' queue (RQ's own); in the Redis of
                                        COUNTERSINK_JOBS_REDIS_URL
==============================  ======  ==========================================================

The part in braces is a Redis Cluster hash tag: everything of one partition lives in one slot.

On a cluster the two keys without one lie on one master each, whose death must hold up nobody. So
the second is not used there: a partition is in use where its stream exists, and nothing removes a
stream. While the master of the first is away, any number is right, as readers do not go by it.

Otherwise producers spread over ``countersink:partitions`` streams. Whoever sends to one notes its
number in ``countersink:partitions:used`` with what it sends, and nobody takes a number out again:
so readers find every stream that ever held an entry, whatever the operator sets, and whenever.
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
"""Of a cluster, by default."""
RETURN_SECONDS: Final = 30.0
"""For which a master that was left is not tried again."""
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
    """The hash, in the hash slot of ``stream``, that tells applied entries from lost ones."""
    return f"{stream.removesuffix(_EVENTS)}:applied"


def salts_key(stream: str) -> str:
    """The hash, in the hash slot of ``stream``, from which its senders learn the salts of
    counters: whoever can send to a partition can read it.
    """
    return f"{stream.removesuffix(_EVENTS)}:salts"


def salts_of(client: redis.Redis, stream: str, counters: Sequence[str]) -> dict[str, list[Salt]]:
    """The salts of counters as its senders have them now; of one that has none, or whose are
    damaged, nothing: workers publish them anew.

    Raises:
        StreamError: Redis did not do its part.
    """
    with mapped():
        pipe = client.pipeline(transaction=False)
        for counter in counters:
            pipe.hget(salts_key(stream), counter)
        told = pipe.execute()
    return {name: decode_salts(raw) for name, raw in zip(counters, told, strict=True)}


def read_salts(client: redis.Redis, stream: str, counter: str, minute: int) -> list[Salt]:
    """The salts of a counter, waited for while one may be due; of one that has none, nothing.

    Args:
        client, stream, counter: where, and whose.
        minute: a Unix minute that is not ahead; one is due while all salts end before it.

    Raises:
        StreamError: Redis did not do its part.
    """
    deadline = time.monotonic() + SALT_SECONDS
    while True:
        salts = salts_of(client, stream, [counter])[counter]
        made = any(salt.ends is None or salt.ends > minute for salt in salts)
        if made or time.monotonic() >= deadline:
            return salts
        time.sleep(_SALT_POLL_S)


def remove_salts(client: redis.Redis, counter: str) -> None:
    """Remove the salts of a counter from each partition.

    Raises:
        StreamError: Redis did not do its part.
    """
    for partition in used_partitions(client, on_silence=lambda *_: None):
        with mapped():
            client.hdel(salts_key(stream_key(partition)), counter)


def tail_key(partition: int, source: str) -> str:
    """The mark of how far ``source`` (any text that names a log and its options) was read: a
    string, in the hash slot of the partition's stream. See :mod:`countersink.logs.position`.
    """
    digest = sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return f"{{countersink:{partition}}}:tail:{digest}"


def worker_key(consumer: str) -> str:
    """The hash with the figures of the worker that reads as ``consumer``."""
    return WORKER_KEY_PREFIX + consumer


def partitions(client: redis.Redis) -> int:
    """The number of partitions that producers spread over: what ``countersink:partitions`` says,
    else 1, on a cluster four per master. The latter also where the key's master does not serve, or
    refuses the user, as others may serve.

    Raises:
        StreamMisconfigured: the key does not hold a number from 1 to 1024.
        StreamUnavailable: Redis did not answer.
    """
    cluster = cluster_of(client)
    raw: Any = None
    try:
        with mapped():
            raw = (cluster.hasty if cluster else client).get(PARTITIONS_KEY)
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
    """Set the number of partitions, from 1 to 1024. A producer goes by it when it connects
    again.

    Raises:
        StreamError: Redis did not do its part.
    """
    with mapped():
        client.set(PARTITIONS_KEY, number)


def choose_partition(
    client: redis.Redis, share: float, number: int, *, away: Collection[str] = ()
) -> int:
    """The partition that a sender sends to.

    On a cluster a share belongs to a master, and then to one of its partitions: so each master gets
    as many senders as the others, however unevenly the partitions lie.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        share: from 0 up to 1, without it; the same share is the same partition as long as their
            number stays, and where they lie.
        number: of :func:`partitions`.
        away: masters of a cluster, as of :func:`master_of`, that are not wanted if there are
            others.

    Raises:
        StreamError: no node of a cluster tells where they lie.
    """
    cluster = cluster_of(client)
    if cluster is None:
        return int(share * number)
    lying: dict[str, list[int]] = {master: [] for master in masters(client)}
    for partition in range(number):
        lying.get(master_of(client, partition) or "", []).append(partition)
    places = [(master, found) for master, found in lying.items() if found]
    while places:
        share *= len(places)
        master, found = places.pop(int(share))
        share -= int(share)
        # The shares of a master that is away spread over all others.
        if master not in away or not places:
            return found[int(share * len(found))]
    return int(share * number)


def note_use(client: Any, partition: int) -> None:
    """Note that ``partition`` is sent to. ``client`` may be a pipeline: the note then travels with
    what is sent. On a cluster the stream itself says so.

    Raises:
        StreamError: Redis did not do its part.
    """
    if cluster_of(client) is None:
        with mapped():
            client.sadd(PARTITIONS_USED_KEY, partition)


def used_partitions(client: redis.Redis, *, on_silence: OnSilence | None = None) -> list[int]:
    """Every partition that may hold entries, in order: those in use now, and those ever used.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        on_silence: of a cluster, told of each master that is silent for a second, or refuses the
            user, by its address; its partitions beyond the number of partitions are left out then.
            Default: that is an error.

    Raises:
        StreamMisconfigured: ``countersink:partitions`` does not hold a number from 1 to 1024.
        StreamRefused: all masters refuse.
        StreamUnavailable: Redis did not answer; of a cluster, no node did.
    """
    found = set(range(partitions(client)))
    cluster = cluster_of(client)
    if cluster is None:
        with mapped():
            noted: set[Any] = client.smembers(PARTITIONS_USED_KEY)
        return sorted(found | {int(text) for text in noted if text.isdigit() and len(text) <= 4})
    lying: dict[str, list[int]] = {}
    for partition in range(MAX_PARTITIONS):
        lying.setdefault(master_of(client, partition) or "", []).append(partition)
    refusals = 0
    for master, theirs in lying.items():
        try:
            found |= _existing(cluster, theirs)
        except StreamError as error:
            refusals += isinstance(error, StreamRefused)
            if on_silence is None or refusals == len(lying):
                raise
            if master:
                on_silence(master, error)
    return sorted(found)


def masters(client: redis.Redis) -> list[str]:
    """The addresses of a cluster's masters that have hash slots, by their lowest one; of a single
    Redis none.

    Raises:
        StreamError: no node tells.
    """
    if (cluster := cluster_of(client)) is None:
        return []
    with mapped():
        return [master.text for master in cluster.masters()]


def master_of(client: redis.Redis, partition: int) -> str | None:
    """The address of the cluster's master on which a partition lies, as was learnt last; None if
    its hash slot has none, and of a single Redis.

    Raises:
        StreamError: no node tells.
    """
    if (cluster := cluster_of(client)) is None:
        return None
    with mapped():
        found = cluster.master_of(stream_key(partition))
    return None if found is None else found.text


def _existing(cluster: "ClusterClient", candidates: Sequence[int]) -> set[int]:
    """The partitions whose streams exist."""
    with mapped():
        pipe = cluster.hasty.pipeline(False)
        for partition in candidates:
            pipe.exists(stream_key(partition))
        found = pipe.execute()
    return {partition for partition, there in zip(candidates, found, strict=True) if there}


def stream_keys(client: redis.Redis) -> list[str]:
    """The streams of :func:`used_partitions`; raises the same."""
    return [stream_key(partition) for partition in used_partitions(client)]


class PartitionRoute:
    """Which partition a sender sends to: the one of its share; of a cluster, while the master of
    that is away or refuses, one on another master.

    Entries go there with the same bytes and ids, so that one that the first master had stored as
    well is counted once.

    Attributes:
        partition: the one to send to, from the first :meth:`find` on.

    Args:
        share: see :func:`choose_partition`; the same all life long.
            Default: at random.
    """

    def __init__(self, share: float | None = None) -> None:
        self.partition = 0
        self._share = SystemRandom().random() if share is None else share
        self._master: str | None = None
        self._left: dict[str, StreamError] = {}  # masters, and why
        self._home_at = float("inf")

    @property
    def stream(self) -> str:
        """The key of the partition's stream."""
        return stream_key(self.partition)

    def find(self, client: redis.Redis) -> None:
        """Choose the partition, on none of the masters that were left lately.

        Raises:
            StreamError: Redis did not do its part.
        """
        number = partitions(client)
        self.partition = choose_partition(client, self._share, number, away=self._left)
        self._master = master_of(client, self.partition)

    def reach(self, client: redis.Redis, work: Callable[[], T]) -> T:
        """What ``work`` returns, which goes to the partition: where it fails it is called again,
        with a partition on each other master.

        Raises:
            StreamError: Redis did not do its part; of a cluster, no master did, see :meth:`leave`.
        """
        while True:
            try:
                return work()
            except StreamError as error:
                if (lasting := self.leave(client, error)) is not None:
                    raise lasting  # noqa: B904 (it has its own cause)

    def leave(self, client: redis.Redis, error: StreamError) -> StreamError | None:
        """The partition cannot be sent to because of ``error``: choose one on another master that
        answers.

        Returns:
            None if there is one, else what to say: ``error``; if that is a refusal, for which a
            person has to act, rather why a master is away, which may come back.
        """
        if cluster_of(client) is None:
            return error
        reason = error
        try:
            # What this search has left stays left until its end, however many masters hang, and
            # however long it takes what is sent to fail. The first may be one that was replaced.
            while True:
                if self._master is not None:
                    self._left[self._master] = reason
                self.find(client)
                if self._master is None or self._master in self._left:
                    break
                try:
                    _ask(client, self.partition)
                except StreamError as found:
                    reason = found
                else:
                    self._home_at = time.monotonic() + RETURN_SECONDS
                    return None
        except StreamError:
            return error
        reasons = [error, *self._left.values()]
        self._left.clear()  # none serves: begin anew, after a pause
        return next((why for why in reasons if isinstance(why, StreamUnavailable)), error)

    def return_home(self, client: redis.Redis) -> bool:
        """Go back to the share's own partition where the time has come and its master serves;
        whether :attr:`partition` is another one now.
        """
        now = time.monotonic()
        if now < self._home_at:
            return False
        self._home_at = now + RETURN_SECONDS
        self._left.clear()
        try:
            home = choose_partition(client, self._share, partitions(client))
            if home != self.partition:
                _ask(client, home)
            master = master_of(client, home)
        except StreamError:
            return False
        moved = home != self.partition
        self.partition, self._master, self._home_at = home, master, float("inf")
        return moved


def _ask(client: redis.Redis, partition: int) -> None:
    """Ask for the length of a partition's stream: whether its master answers soon.

    Raises:
        StreamError: it does not.
    """
    if (cluster := cluster_of(client)) is not None:
        with mapped():
            cluster.hasty.xlen(stream_key(partition))

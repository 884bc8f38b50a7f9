"""What the queue holds and who works on it, for ``countersink info`` and ``doctor``."""

from dataclasses import dataclass
from typing import Any

import redis

from countersink.stream.connection import mapped
from countersink.stream.delivery import ends
from countersink.stream.names import GROUP, WORKER_KEY_PREFIX
from countersink.stream.partitions import stream_keys


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream.

    Attributes:
        stream: its key.
        entries: in it; an applied entry is removed, so all of them wait.
        pending: of those, delivered to a worker.
        oldest: Unix ms at which the oldest entry arrived; None when empty.
        bytes: of memory; None where Redis does not tell.
        group: whether a worker has ever made the consumer group.
    """

    stream: str
    entries: int
    pending: int
    oldest: int | None
    bytes: int | None
    group: bool


@dataclass(frozen=True, slots=True)
class QueueState:
    """The queue at a moment.

    Attributes:
        now: Unix ms, Redis's clock.
        streams: one for each partition that was ever used.
        workers: what each worker published, by consumer name; see ``countersink.worker.figures``.
    """

    now: int
    streams: list[StreamState]
    workers: dict[str, dict[str, str]]

    @property
    def backlog(self) -> int:
        """Entries that wait, in all streams."""
        return sum(stream.entries for stream in self.streams)

    @property
    def pending(self) -> int:
        """Entries that were delivered and not yet acknowledged."""
        return sum(stream.pending for stream in self.streams)

    @property
    def oldest(self) -> int | None:
        """Unix ms at which the oldest waiting entry arrived; None when nothing waits."""
        return min((s.oldest for s in self.streams if s.oldest is not None), default=None)

    @property
    def lag_ms(self) -> int:
        """For how long the oldest waiting entry has waited."""
        return 0 if self.oldest is None else max(0, self.now - self.oldest)

    @property
    def rate(self) -> float:
        """Rows per second, of all workers together, over about the last ten seconds."""
        return round(sum(_number(worker.get("rate", "0")) for worker in self.workers.values()), 1)


def look(client: redis.Redis) -> QueueState:
    """Ask Redis.

    Raises:
        StreamError: it did not do its part.
    """
    with mapped():
        seconds, microseconds = client.time()
    streams = [_stream(client, key) for key in stream_keys(client)]
    return QueueState(seconds * 1000 + microseconds // 1000, streams, _workers(client))


def _stream(client: redis.Redis, key: str) -> StreamState:
    with mapped():
        entries = int(client.xlen(key))
        groups: Any = client.xinfo_groups(key) if client.exists(key) else []
        size: Any = client.memory_usage(key)
    ours = next((g for g in groups if _text(g["name"]) == GROUP), None)
    found = ends(client, key)
    return StreamState(
        stream=key,
        entries=entries,
        pending=int(ours["pending"]) if ours else 0,
        oldest=int(found[0].partition("-")[0]) if found else None,
        bytes=None if size is None else int(size),
        group=ours is not None,
    )


def _workers(client: redis.Redis) -> dict[str, dict[str, str]]:
    workers: dict[str, dict[str, str]] = {}
    with mapped():
        for key in sorted(client.scan_iter(match=f"{WORKER_KEY_PREFIX}*", count=1000)):
            fields: Any = client.hgetall(key)
            if fields:  # it may have expired since
                name = _text(key).removeprefix(WORKER_KEY_PREFIX)
                workers[name] = {_text(k): _text(v) for k, v in fields.items()}
    return workers


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0

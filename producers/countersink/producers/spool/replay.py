"""Replaying a spool directory on demand, for processes that are gone."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import redis

from countersink.producers.clock import RedisClock
from countersink.producers.journal import Journal
from countersink.producers.parcel import PARCELS_AT_A_TIME
from countersink.producers.spool.backlog import Backlog
from countersink.producers.spool.directory import segment_paths
from countersink.producers.spool.errors import SpoolError
from countersink.producers.spool.segment import Segment
from countersink.producers.transport import deliver
from countersink.stream.partitions import partitions


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did.

    Attributes:
        segments: segments sent to their end and deleted (or kept as ``….damaged``).
        entries: stream entries sent; increments: the increments in them.
        held: segments left alone because a live process holds them.
        unreadable: files left alone because they cannot be read, or not be written to.
        damaged_bytes: bytes of corrupt records that were passed over.
        kept: files that were kept as ``….damaged``, to be looked at.
        problems: for people: why files were left alone.
        stopped: it was asked to stop before the end.
    """

    segments: int
    entries: int
    increments: int
    held: int
    unreadable: int
    damaged_bytes: int
    kept: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()
    stopped: bool = False


def replay(
    directory: str | os.PathLike[str],
    client: redis.Redis,
    *,
    on_progress: Callable[[Replayed], object] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
) -> Replayed:
    """Send what dead processes left in ``directory``, oldest segment first.

    Safe beside live producers and other replays: each segment is replayed by whoever gets its lock.
    Safe to interrupt: what is sent again has the id and the time that it had.

    Args:
        directory: a spool directory; one that does not exist has nothing to replay.
        client: from :func:`countersink.stream.connection.connect`.
        on_progress: told what was done so far, after each round trip.
        stop: asked after each round trip whether to leave the rest.

    Raises:
        StreamError: Redis failed; what was sent so far is noted in the segments.
        SpoolError: the directory cannot be read.
    """
    return _Replay(client, on_progress, stop).run(Path(directory))


class _Replay:
    def __init__(
        self,
        client: redis.Redis,
        on_progress: Callable[[Replayed], object],
        stop: Callable[[], bool],
    ) -> None:
        self._client = client
        self._on_progress = on_progress
        self._stop = stop
        self._stopped = False
        self._journal, self._clock = Journal(), RedisClock()
        self._backlog = Backlog(self._journal)
        self._partition = 0
        self._held = 0
        self._problems: list[str] = []

    def run(self, directory: Path) -> Replayed:
        """All segments that nobody holds."""
        self._clock.learn(self._client)
        self._partition = int.from_bytes(os.urandom(4), "big") % partitions(self._client)
        try:
            for path in segment_paths(directory):
                if self._stopped:
                    break
                try:
                    self._one(path)
                except SpoolError as error:  # of this file: others may be well
                    self._journal.say(logging.ERROR, "spool_failed", "%s", error)
                    self._problems.append(str(error))
                    if len(self._backlog):
                        self._backlog.drop_first()
        finally:
            self._backlog.close()
        return self._so_far()

    def _one(self, path: Path) -> None:
        segment = Segment.adopt(path)
        if segment is None:
            self._held += path.exists()
            return
        self._backlog.add(segment)
        while parcels := self._backlog.next(PARCELS_AT_A_TIME, self._clock.now_ms):
            delivery = deliver(self._client, self._partition, parcels)
            self._backlog.delivered(delivery.stored)
            if delivery.error is not None:
                raise delivery.error
            self._on_progress(self._so_far())
            if self._stop():
                self._stopped = True
                return

    def _so_far(self) -> Replayed:
        backlog = self._backlog
        return Replayed(
            backlog.segments_done,
            backlog.entries_done,
            backlog.increments_done,
            self._held,
            len(self._problems),
            backlog.damaged_bytes,
            tuple(backlog.kept),
            tuple(self._problems),
            self._stopped,
        )

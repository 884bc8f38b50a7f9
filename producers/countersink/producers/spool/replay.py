"""Replaying a spool directory on demand, for processes that are gone."""

import logging
import os
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
        unreadable: files left alone because they cannot be read.
        damaged_bytes: bytes of corrupt records that were passed over.
    """

    segments: int
    entries: int
    increments: int
    held: int
    unreadable: int
    damaged_bytes: int


def replay(directory: str | os.PathLike[str], client: redis.Redis) -> Replayed:
    """Send what dead processes left in ``directory``, oldest segment first.

    Safe beside live producers and other replays: each segment is replayed by whoever gets its lock.
    Safe to interrupt: what is sent again has the id and the time that it had.

    Args:
        directory: a spool directory; one that does not exist has nothing to replay.
        client: from :func:`countersink.stream.connection.connect`.

    Raises:
        StreamError: Redis failed; what was sent so far is noted in the segments.
        SpoolError: the directory cannot be read, or a segment cannot be written.
    """
    journal, clock = Journal(), RedisClock()
    clock.learn(client)
    partition = int.from_bytes(os.urandom(4), "big") % partitions(client)
    backlog = Backlog(journal)
    held = unreadable = 0
    try:
        for path in segment_paths(Path(directory)):
            try:
                segment = Segment.adopt(path)
            except SpoolError as error:
                journal.say(logging.ERROR, "spool_failed", "%s", error)
                unreadable += 1
                continue
            if segment is None:
                held += path.exists()
                continue
            backlog.add(segment)
            while parcels := backlog.next(PARCELS_AT_A_TIME, clock.now_ms):
                delivery = deliver(client, partition, parcels)
                backlog.delivered(delivery.stored)
                if delivery.error is not None:
                    raise delivery.error
    finally:
        backlog.close()
    return Replayed(
        backlog.segments_done,
        backlog.entries_done,
        backlog.increments_done,
        held,
        unreadable,
        backlog.damaged_bytes,
    )

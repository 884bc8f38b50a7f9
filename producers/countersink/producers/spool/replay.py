"""Sends what a spool directory holds: order of segments, what is done with damaged ones and logged
of them, and the totals that ``countersink spool replay`` reports. Files in a spool directory: their
names and order, how many bytes they take in all (damaged ones included: ``spool_max_bytes``,
``/metrics``), and what ``countersink spool`` lists of each (state, entries, increments, damage);
what counts as damaged or torn is decided in ``spool/record.py``."""

import fcntl
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import redis

from countersink.producers.errors import SpoolError
from countersink.producers.outbox import PARCELS_AT_A_TIME, Parcel
from countersink.producers.redis_link import deliver
from countersink.producers.spool.segment import (
    DAMAGED_SUFFIX,
    OwnFile,
    Record,
    Records,
    Segment,
    failing_as,
)
from countersink.runtime.log import Log
from countersink.stream.clock import RedisClock
from countersink.stream.names import PartitionRoute

SUFFIX: Final = ".spool"


def new_segment_path(directory: Path) -> Path:
    """A new name; names sort by the time of their creation."""
    return directory / f"{int(time.time() * 1000):014d}-{os.urandom(6).hex()}{SUFFIX}"


def made_ms(name: str) -> int | None:
    """When the file of this name was made, in Unix ms; None: it is no name of ours."""
    found = re.match(r"([0-9]{14})-", name)
    return None if found is None else int(found[1])


def segment_paths(directory: Path) -> list[Path]:
    """The segments in ``directory``, oldest first; none if it does not exist.

    Raises:
        SpoolError: the directory cannot be read.
    """
    return [directory / name for name, _ in files(directory) if name.endswith(SUFFIX)]


def used_bytes(directory: Path) -> int:
    """Size of all segments, damaged ones included.

    Raises:
        SpoolError: the directory cannot be read.
    """
    return sum(size for _, size in files(directory))


def files(directory: Path) -> list[tuple[str, int]]:
    """Names and sizes of the spool's files, damaged ones included, sorted by name; none if the
    directory does not exist.

    Raises:
        SpoolError: the directory cannot be read.
    """
    with failing_as(f"{directory}: cannot read the spool"):
        try:
            with os.scandir(directory) as entries:
                ours = (SUFFIX, SUFFIX + DAMAGED_SUFFIX)
                return sorted((e.name, _size(e)) for e in entries if e.name.endswith(ours))
        except FileNotFoundError:
            return []


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # finished by another process since the directory was read
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """A file in a spool directory.

    Attributes:
        path: the file.
        bytes: its size.
        held: a live process has its lock (it writes it, or replays it).
        damaged: it was replayed, but for corrupt records, because of which it was kept.
        entries: stream entries in it that are not known to be in Redis.
        increments: the increments in them.
        made_ms: Unix ms at which the file was made; None: its name does not tell.
        damaged_bytes: bytes of corrupt records before, between and after them.
        unreadable: why the file cannot be read; None: it can.
    """

    path: Path
    bytes: int
    held: bool = False
    damaged: bool = False
    entries: int = 0
    increments: int = 0
    made_ms: int | None = None
    damaged_bytes: int = 0
    unreadable: str | None = None

    @property
    def state(self) -> str:
        """``held``, ``waiting`` (to be replayed), ``damaged`` or ``unreadable``."""
        if self.unreadable is not None:
            return "unreadable"
        if self.damaged:
            return "damaged"
        return "held" if self.held else "waiting"


def list_segments(directory: str | os.PathLike[str]) -> list[SegmentInfo]:
    """What a spool directory holds, oldest first. Reads all of it, and changes nothing; takes each
    segment's lock for a moment, to see whether it is free.

    Raises:
        SpoolError: the directory cannot be read.
    """
    folder = Path(directory)
    found = []
    for name, size in files(folder):
        path = folder / name
        try:
            found.append(_look(path, size, damaged=name.endswith(DAMAGED_SUFFIX)))
        except FileNotFoundError:
            continue  # replayed since the directory was read
        except (OSError, SpoolError) as error:
            reason = getattr(error, "strerror", str(error)) or type(error).__name__
            found.append(SegmentInfo(path=path, bytes=size, unreadable=reason))
    return found


def _look(path: Path, size: int, *, damaged: bool) -> SegmentInfo:
    # Not waiting for a writer, should it be a pipe.
    with closing(OwnFile(path, os.O_RDONLY | os.O_NONBLOCK)) as file:
        records = Records(path, file.fd)
        offset = records.bytes_done(size)
        if offset is None:
            raise SpoolError("it is not a spool segment")
        held = _is_held(file.fd)
        # Only now: before, its writer may have been in the midst of a record. What could be read of
        # a damaged one was sent.
        size = os.fstat(file.fd).st_size
        entries = increments = passed_over = 0
        while not damaged and (record := records.at_or_after(offset, size)) is not None:
            passed_over += record.offset - offset
            offset = record.end
            entries += 1
            increments += record.parcel.increments
        if not damaged and size > offset and not records.torn(offset, size):
            passed_over += size - offset
    return SegmentInfo(
        path=path,
        bytes=size,
        held=held,
        damaged=damaged,
        entries=entries,
        increments=increments,
        made_ms=made_ms(path.name),
        damaged_bytes=passed_over,
    )


def _is_held(fd: int) -> bool:
    try:
        # Shared: two listings at once do not take each other for a writer.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


@dataclass(slots=True)
class Replayed:
    """What a replay has done so far.

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

    segments: int = 0
    entries: int = 0
    increments: int = 0
    held: int = 0
    unreadable: int = 0
    damaged_bytes: int = 0
    kept: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
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
    log, clock = Log(logging.getLogger("countersink.producers")), RedisClock()
    backlog, route = Backlog(log), PartitionRoute()
    done = backlog.done

    def send() -> bool:
        """Send what comes next; whether there was something."""
        parcels = backlog.next(PARCELS_AT_A_TIME, clock.now_ms)
        if parcels:
            delivery = deliver(client, route.partition, parcels)
            backlog.delivered(delivery.stored)
            if delivery.error is not None:
                raise delivery.error
        return bool(parcels)

    route.find(client)
    route.reach(client, lambda: clock.learn(client, route.stream))
    with closing(backlog):
        for path in segment_paths(Path(directory)):
            try:
                segment = Segment.adopt(path)
                if segment is None:
                    done.held += path.exists()
                    continue
                backlog.add(segment)
                while route.reach(client, send):
                    on_progress(done)
                    if stop():
                        done.stopped = True
                        return done
            except SpoolError as error:  # of this file: others may be well
                log("spool_failed", str(error), level=logging.ERROR)
                done.unreadable += 1
                done.problems.append(str(error))
                if len(backlog):
                    backlog.drop_first()
    return done


class Backlog:
    """Segments to be replayed, all of which this process holds. Used by one thread; any may add.

    Attributes:
        done: what was replayed.
    """

    def __init__(self, log: Log) -> None:
        self.done = Replayed()
        self._log = log
        self._segments: deque[Segment] = deque()
        self._records: list[Record] = []  # read, and not yet in Redis

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: Segment) -> None:
        """Replay ``segment`` after those that are here."""
        self._segments.append(segment)

    def next(self, limit: int, now_ms: Callable[[], int]) -> list[Parcel]:
        """At most ``limit`` parcels to send now, with ``at`` frozen on disk; none: everything is
        replayed.

        Raises:
            SpoolError: they cannot be read or stamped at the moment.
        """
        while self._segments and not self._records:
            segment = self._segments[0]
            while len(self._records) < limit:
                record = segment.records.at_or_after(segment.offset, segment.end)
                if record is None:
                    break
                if record.offset > segment.offset:
                    self._damage(segment, record.offset - segment.offset)
                self._records.append(record)
                segment.offset = record.end
            if not self._records:
                self._finish(segment)
        new = [record for record in self._records if record.parcel.at is None]
        if new:
            self._segments[0].stamp(new, now_ms())
        return [record.parcel for record in self._records]

    def delivered(self, parcels: Sequence[Parcel]) -> None:
        """Redis has these.

        Raises:
            SpoolError: that could not be noted; they may be sent once more.
        """
        ids = {id(parcel) for parcel in parcels}
        for parcel in parcels:
            self.done.entries += 1
            self.done.increments += parcel.increments
        self._records = [record for record in self._records if id(record.parcel) not in ids]
        segment = self._segments[0]
        segment.mark_done(self._records[0].offset if self._records else segment.offset)

    def close(self) -> None:
        """Let other processes have the rest."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        self._records.clear()

    def drop_first(self) -> None:
        """Leave the first segment, which cannot be read, to a later process."""
        self._records.clear()
        self._segments.popleft().close()

    def _finish(self, segment: Segment) -> None:
        left = segment.end - segment.offset
        if left > 0 and segment.records.torn(segment.offset, segment.end):
            self._log(
                "spool_damaged",
                f"{segment.path}: {left} bytes are of a record that was not written to its end",
                level=logging.WARNING,
            )
        elif left > 0:
            self._damage(segment, left)
        self._segments.popleft()
        self.done.segments += 1
        kept = segment.finish()
        if kept is not None:
            self.done.kept.append(kept)
        self._log("replayed", f"{segment.path}: replayed")

    def _damage(self, segment: Segment, size: int) -> None:
        segment.damaged = True
        self.done.damaged_bytes += size
        self._log(
            "spool_damaged",
            f"{segment.path}: {size} bytes are corrupt and were passed over; the file is kept",
            level=logging.ERROR,
        )

"""Sends the entries of a spool directory to Redis (``replay``, ``Backlog``), and lists its files
(``list_segments``, ``SegmentInfo``): their names, their order, their size in all (``used_bytes``,
for ``spool_max_bytes`` and ``/metrics``), log lines about damaged segments, figures for
``countersink spool``.

See ``segment.py`` for when a record counts as corrupt or as incomplete.
"""

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
    Record,
    Records,
    Segment,
    UnsharedFile,
    spool_errors,
)
from countersink.runtime.log import Log
from countersink.runtime.texts import plural
from countersink.stream.entry import RedisClock
from countersink.stream.names import PartitionRoute

SUFFIX: Final = ".spool"
"""End of a segment's name."""


def new_segment_path(directory: Path) -> Path:
    """Return a path for a new segment. Its name begins with the time, so that names sort by age."""
    return directory / f"{int(time.time() * 1000):014d}-{os.urandom(6).hex()}{SUFFIX}"


def made_ms(name: str) -> int | None:
    """Return the time at which a segment was created, in Unix ms, from its file name; None where
    ``name`` does not begin with a time.
    """
    found = re.match(r"([0-9]{14})-", name)
    return None if found is None else int(found[1])


def segment_paths(directory: Path) -> list[Path]:
    """Return the paths of the segments in ``directory``, oldest first, without those that were
    renamed to ``….damaged``. An empty list if the directory does not exist.

    Raises:
        SpoolError: the directory cannot be read.
    """
    return [directory / name for name, _ in files(directory) if name.endswith(SUFFIX)]


def used_bytes(directory: Path) -> int:
    """Return the size of all segments in ``directory`` in bytes, ``….damaged`` ones included; 0 if
    the directory does not exist.

    Raises:
        SpoolError: the directory cannot be read."""
    return sum(size for _, size in files(directory))


def files(directory: Path) -> list[tuple[str, int]]:
    """Return the names and sizes (in bytes) of all segments in ``directory``, ``….damaged`` ones
    included, sorted by name (by age). An empty list if the directory does not exist.

    Raises:
        SpoolError: the directory cannot be read.
    """
    with spool_errors(f"{directory}: cannot read the spool"):
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
    """The state of one segment in a spool directory.

    Attributes:
        path: the file's path.
        bytes: the file's size in bytes.
        held: whether a live process has locked the file, to write or to replay it.
        damaged: whether the file was replayed, and then kept as ``….damaged`` for its corrupt
            records.
        entries: number of readable entries in the file that are not known to be in Redis; 0 if
            ``damaged`` or ``unreadable``.
        increments: number of increments in these entries.
        made_ms: the time at which the file was created, in Unix ms; None if its name does not have
            the time, or if ``unreadable``.
        damaged_bytes: size in bytes of the corrupt records before, between and after these entries;
            0 if ``damaged``: they are not searched for again. An incomplete last record is not
            counted.
        unreadable: the reason why the file cannot be read (``held`` and ``damaged`` are False);
            None where it can be read.
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
        """The segment's state as a word, the first that is true of ``unreadable``, ``damaged`` and
        ``held``; otherwise ``waiting`` (to be replayed)."""
        if self.unreadable is not None:
            return "unreadable"
        if self.damaged:
            return "damaged"
        return "held" if self.held else "waiting"


def list_segments(directory: str | os.PathLike[str]) -> list[SegmentInfo]:
    """List all segments of a spool directory, damaged and unreadable ones included, oldest first;
    an empty list if it does not exist. Reads their contents and changes nothing. Takes the lock of
    each segment for a moment, to find out whether another process holds the lock.

    Raises:
        SpoolError: the directory cannot be read."""
    folder = Path(directory)
    found = []
    for name, size in files(folder):
        path = folder / name
        try:
            found.append(_segment_info(path, size, damaged=name.endswith(DAMAGED_SUFFIX)))
        except FileNotFoundError:
            continue  # replayed since the directory was read
        except (OSError, SpoolError) as error:
            reason = getattr(error, "strerror", str(error)) or type(error).__name__
            found.append(SegmentInfo(path=path, bytes=size, unreadable=reason))
    return found


def _segment_info(path: Path, size: int, *, damaged: bool) -> SegmentInfo:
    # O_NONBLOCK: opening a pipe must not wait for its writer.
    with closing(UnsharedFile(path, os.O_RDONLY | os.O_NONBLOCK)) as file:
        records = Records(path, file.fd)
        offset = records.bytes_done(size)
        if offset is None:
            raise SpoolError("it is not a spool segment")
        held = _is_held(file.fd)
        # Read again: the writer may have completed a record since. The readable records of a
        # damaged file were sent, so they are not counted.
        size = os.fstat(file.fd).st_size
        entries = increments = passed_over = 0
        while not damaged and (record := records.at_or_after(offset, size)) is not None:
            passed_over += record.offset - offset
            offset = record.end
            entries += 1
            increments += record.parcel.increments
        if not damaged and size > offset and not records.is_torn(offset, size):
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
        # Shared: two lists made at the same time must not report each other as a writer.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


@dataclass(slots=True)
class Replayed:
    """Figures of a replay, which grow while it runs. Only :func:`replay` counts ``held`` and
    ``unreadable`` and sets ``problems`` and ``stopped``; a producer's :class:`Backlog` does not.

    Attributes:
        segments: number of segments that were sent completely, and then deleted (or kept as
            ``….damaged``).
        entries: number of entries sent to Redis.
        increments: number of increments in these entries.
        held: number of segments that were skipped because a live process has locked them.
        unreadable: number of files that were skipped because they cannot be read or written.
        damaged_bytes: size in bytes of the corrupt records, which were not sent.
        kept: paths of the damaged files that were kept as ``….damaged``, for inspection.
        problems: error messages of the unreadable files.
        stopped: whether the caller has stopped the replay before its end.
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
    """Send to Redis the entries of all segments that no live process has locked, the oldest segment
    first, and delete these segments (damaged ones are renamed instead); return the figures.

    It is safe to run next to live producers and other replays, because only the process that has
    locked a segment replays it. It is safe to interrupt, because entries that are sent again keep
    their id and time.

    Args:
        directory: a spool directory; it may be missing.
        client: a client of Redis from :func:`countersink.stream.connection.connect`.
        on_progress: called with the figures after each round trip.
        stop: called after each round trip; if it returns True, the replay ends.

    Raises:
        StreamError: Redis failed. The segments note which entries were sent, so that a later replay
            continues there.
        SpoolError: the directory cannot be read."""
    log, clock = Log(logging.getLogger("countersink.producers")), RedisClock()
    backlog, route = Backlog(log), PartitionRoute()
    done = backlog.done

    def send() -> bool:
        """Send the next parcels to Redis; returns whether there were any. Raises StreamError."""
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
            except SpoolError as error:  # of this file only
                log("spool_failed", str(error), level=logging.ERROR)
                done.unreadable += 1
                done.problems.append(str(error))
                if len(backlog):
                    backlog.release_first()
    return done


class Backlog:
    """Segments that this process has locked and that are to be replayed. One thread replays them;
    any thread may add segments.

    Attributes:
        done: figures of the replay.
        released: whether a segment that was released after an error may still wait: True from the
            release until a search finds no segment to lock and no unreadable one.
    """

    def __init__(self, log: Log) -> None:
        self.done = Replayed()
        self.released = False
        self._log = log
        self._segments: deque[Segment] = deque()
        self._records: list[Record] = []  # read, and not yet in Redis

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: Segment) -> None:
        """Add a segment, to be replayed after the others."""
        self._segments.append(segment)

    def next(self, limit: int, now_ms: Callable[[], int]) -> list[Parcel]:
        """Return the next parcels to be sent, at most ``limit``; return an empty list when all
        segments are replayed. Parcels are returned again until they are passed to
        :meth:`delivered`. A parcel without a time ``at`` gets one, which is fsynced before the
        parcel is returned. A segment without further records is deleted, or renamed to
        ``….damaged`` if it is damaged.

        Args:
            limit: maximum of parcels.
            now_ms: returns the time to be used as ``at``, in Unix ms on Redis's clock.

        Raises:
            SpoolError: a segment cannot be read, written (to note a time) or deleted now."""
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
        """Remove ``parcels``, which belong to the first segment, because Redis has stored them; add
        them to :attr:`done`; and note in the segment up to which record all are stored.

        Raises:
            SpoolError: the note could not be written; the parcels may be sent again."""
        ids = {id(parcel) for parcel in parcels}
        for parcel in parcels:
            self.done.entries += 1
            self.done.increments += parcel.increments
        self._records = [record for record in self._records if id(record.parcel) not in ids]
        segment = self._segments[0]
        segment.mark_done(self._records[0].offset if self._records else segment.offset)

    def close(self) -> None:
        """Release the locks of all segments, so that other processes may replay them."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        self._records.clear()

    def release_first(self) -> None:
        """Remove the first segment, which cannot be read or written now, and release its lock, so
        that a later replay can try again; set :attr:`released`. There must be a segment."""
        self.released = True
        self._records.clear()
        self._segments.popleft().close()

    def _finish(self, segment: Segment) -> None:
        left = segment.end - segment.offset
        if left > 0 and segment.records.is_torn(segment.offset, segment.end):
            self._log(
                "spool_damaged",
                f"{segment.path}: last record ({plural(left, 'byte')}) not written to its end",
                level=logging.WARNING,
            )
        elif left > 0:
            self._damage(segment, left)
        kept = segment.finish()
        self._segments.popleft()
        self.done.segments += 1
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

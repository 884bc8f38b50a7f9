"""Files in a spool directory: their names and order, how many bytes they take in all (damaged ones
included: ``spool_max_bytes``, ``/metrics``), and what ``countersink spool`` lists of each (state,
entries, increments, damage); what counts as damaged or torn is decided in ``spool/record.py``."""

import fcntl
import os
import re
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from countersink.producers.errors import SpoolError
from countersink.producers.spool.segment import DAMAGED_SUFFIX, OwnFile, Records, failing_as

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

"""A spool directory: its segments, oldest first, and their size."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from countersink.producers.spool.errors import SpoolError
from countersink.producers.spool.segment import DAMAGED_SUFFIX, Segment

SUFFIX: Final = ".spool"


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A file in a spool directory.

    Attributes:
        path: the file.
        bytes: its size.
        held: a live process has its lock (it writes it, or replays it).
        damaged: it was replayed, but for corrupt records, because of which it was kept.
    """

    path: Path
    bytes: int
    held: bool
    damaged: bool


def new_segment_path(directory: Path) -> Path:
    """A new name; names sort by the time of their creation."""
    return directory / f"{int(time.time() * 1000):014d}-{os.urandom(6).hex()}{SUFFIX}"


def segment_paths(directory: Path) -> list[Path]:
    """The segments in ``directory``, oldest first; none if it does not exist.

    Raises:
        SpoolError: the directory cannot be read.
    """
    return [directory / name for name, _ in _files(directory) if name.endswith(SUFFIX)]


def used_bytes(directory: Path) -> int:
    """Size of all segments, damaged ones included.

    Raises:
        SpoolError: the directory cannot be read.
    """
    return sum(size for _, size in _files(directory))


def list_segments(directory: str | os.PathLike[str]) -> list[SegmentInfo]:
    """What a spool directory holds, oldest first. Takes each segment's lock for a moment, to see
    whether it is free.

    Raises:
        SpoolError: the directory cannot be read.
    """
    folder = Path(directory)
    found = []
    for name, size in _files(folder):
        path = folder / name
        held = damaged = name.endswith(DAMAGED_SUFFIX)
        if not damaged:
            segment = Segment.adopt(path)
            held = segment is None
            if segment is not None:
                segment.close()
        found.append(SegmentInfo(path, size, held and not damaged, damaged))
    return found


def _files(directory: Path) -> list[tuple[str, int]]:
    """Names and sizes of the spool's files, sorted by name."""
    try:
        with os.scandir(directory) as entries:
            names = [
                entry for entry in entries if entry.name.endswith((SUFFIX, SUFFIX + DAMAGED_SUFFIX))
            ]
            return sorted((entry.name, _size(entry)) for entry in names)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SpoolError(f"{directory}: cannot read the spool: {error.strerror}") from error


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # finished by another process since the directory was read
        return 0

"""What a spool directory holds, for whoever wants to know before it is replayed."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from countersink.producers.spool import descriptors
from countersink.producers.spool.directory import files, made_ms
from countersink.producers.spool.errors import SpoolError
from countersink.producers.spool.reading import Records
from countersink.producers.spool.segment import DAMAGED_SUFFIX


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
        except OSError as error:
            reason = error.strerror or type(error).__name__
            found.append(SegmentInfo(path=path, bytes=size, unreadable=reason))
        except SpoolError as error:
            found.append(SegmentInfo(path=path, bytes=size, unreadable=str(error)))
    return found


def _look(path: Path, size: int, *, damaged: bool) -> SegmentInfo:
    with _opened(path) as fd:
        records = Records(path, fd)
        header = records.file_header(size)
        if header is None:
            raise SpoolError("it is not a spool segment")
        if damaged:  # what could be read of it was sent
            return SegmentInfo(path=path, bytes=size, damaged=True, made_ms=made_ms(path.name))
        held = _is_held(fd)
        # Only now: before, its writer may have been in the midst of a record.
        size = os.fstat(fd).st_size
        offset = header.done
        entries = increments = 0
        passed_over = header.done if header.lost else 0
        while (record := records.at_or_after(offset, size)) is not None:
            passed_over += record.offset - offset
            offset = record.end
            entries += 1
            increments += record.parcel.increments
        left = max(size, header.synced) - offset
        if left > 0 and not records.torn(offset, size, header.synced):
            passed_over += left
    return SegmentInfo(
        path=path,
        bytes=size,
        held=held,
        entries=entries,
        increments=increments,
        made_ms=made_ms(path.name),
        damaged_bytes=passed_over,
    )


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    token = object()
    # Not waiting for a writer, should it be a pipe.
    fd = descriptors.open_file(token, str(path), os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        descriptors.close_file(token)


def _is_held(fd: int) -> bool:
    try:
        # Shared: two listings at once do not take each other for a writer.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False

"""Rotated logs: which names count as rotated (``access.log.1``, dates, ``.gz``), their order, how
the file of a position is found again, and the notices about lines that may be lost.

Rotated names are the log's own name with a number or a date behind it or before its extension,
compressed or not: ``access.log.1``, ``access.log-20261121``, ``access.log.2.gz``,
``access-2026-11-21.log``. A higher number is older, a higher date is newer.
"""

import os
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from typing import Final

from countersink.producers.access_log.file import LogFile
from countersink.producers.access_log.lines import Reporter
from countersink.producers.access_log.position import (
    NONE,
    PREFIX_BYTES,
    UNKNOWN,
    Position,
    prefix_of,
)
from countersink.producers.errors import LogError, TailError
from countersink.runtime.process import Stop

POLL: Final = 0.25
"""Seconds between two looks at a file that does not grow."""
_ATTEMPTS: Final = 20
_NUMBERS: Final = r"\d+(?:[-._T:]\d+)*"
_HIGHEST_NUMBER: Final = 100_000
"""Below, digits behind the name count rotations; from here on, they are a date."""


@dataclass(frozen=True, slots=True)
class NamedLog:
    """A log that is rotated: its name stands for one file after the other.

    Attributes:
        path: its name, absolute.
        reporter: told of waits and of files that are gone.
        follow: wait for it where it is not there.
        stop: ends waiting.
    """

    path: str
    reporter: Reporter
    _: KW_ONLY
    follow: bool
    stop: Stop

    def bears(self, file: LogFile) -> bool:
        """Whether ``file`` is the one that has the name now."""
        return _is(self.path, file)

    def open(self, position: Position, move: Callable[[Position], Position]) -> LogFile | None:
        """What came after the file of the position, else the log itself; waits for it when
        following. None when stopped while waiting. That there is no log yet is a position, too,
        which ``move`` stores: all files that come later are new.

        Raises:
            LogError: it is not there, and not followed; or it cannot be read.
        """
        waiting = False
        while True:
            newer = since(self.path, position) if position.older else None
            if newer is not None:
                return newer
            try:
                return LogFile(self.path)
            except LogError:
                if not os.path.lexists(self.path) and not position.older:
                    newest, changed = older(self.path, None)
                    position = move(position.moved(older=newest, older_at=changed))
                if not self.follow or os.path.exists(self.path):
                    raise
            if not waiting:
                self.reporter.notice(f"waiting for {self.path} to appear")
                waiting = True
            if self.stop.wait(POLL):
                return None

    def replaces(self, file: LogFile, position: Position) -> bool:
        """Whether ``file`` follows one that is gone, of which lines may be lost; says so.

        Raises:
            TailError: it is the file of the position, but shorter.
        """
        is_log = file.path == self.path
        if is_log and position.prefix_bytes == PREFIX_BYTES and begins_as(file, position):
            file.close()
            raise TailError(
                f"{self.path} is shorter than when its line {position.line} was counted: "
                "if it was put back from a copy, wait until it has grown, "
                "or use --from-start to count it all again"
            )
        gone = position.prefix_bytes > 0 or (
            is_log and position.inode not in (0, file.inode) and not has_newer(self.path, position)
        )
        if gone:
            self.reporter.notice(
                f"{file.path} is another file than the one counted up to line {position.line}, "
                "and that one is gone; lines written to it later cannot be counted"
            )
        return gone


@dataclass(frozen=True, slots=True)
class Rotated:
    """A rotated file.

    Attributes:
        path: where it lies.
        order: sorts the older before the newer.
    """

    path: str
    order: tuple[int, ...]


def siblings(path: str) -> list[Rotated]:
    """The rotated files of the log at ``path``, oldest first; each once, plain before gzip."""
    directory, name = os.path.split(path)
    stem, extension = os.path.splitext(name)
    pattern = re.compile(
        rf"(?:{re.escape(name)}[-._](?P<behind>{_NUMBERS})"
        rf"|{re.escape(stem)}[-._](?P<before>{_NUMBERS}){re.escape(extension)})(?:\.gz)?"
    )
    found: dict[str, Rotated] = {}
    for other in sorted(_names(directory)):  # "x.1" comes before "x.1.gz" and stays
        match = pattern.fullmatch(other)
        if match is None:
            continue
        numbers = tuple(int(n) for n in re.findall(r"\d+", match["behind"] or match["before"]))
        counting = len(numbers) == 1 and numbers[0] < _HIGHEST_NUMBER
        order = (0, -numbers[0]) if counting else (1, *numbers)
        found.setdefault(other.removesuffix(".gz"), Rotated(os.path.join(directory, other), order))
    return sorted(found.values(), key=lambda rotated: rotated.order)


def find(path: str, position: Position) -> LogFile | None:
    """The file that ``position`` was taken in, wherever it lies by now; None if it is gone.

    First whatever still is the same inode, then, since a copy or a compressed file is another,
    what begins with the same bytes. A file that held none cannot be known again: its inode may
    have been given to another one.
    """
    if position.prefix_bytes == 0:
        return None
    directory = os.path.dirname(path)
    rotated = [each.path for each in reversed(siblings(path))]
    others = (os.path.join(directory, name) for name in _names(directory))
    by_inode = [path, *rotated, *(o for o in others if o not in rotated and o != path)]
    same = (each for each in by_inode if _is_at(each, position.device, position.inode))
    for candidate in chain(same, (path, *rotated)):
        file = _open_if(candidate, position)
        if file is not None:
            return file
    return None


def begins_as(file: LogFile, position: Position) -> bool:
    """Whether the first bytes of ``file`` are those that ``position`` was taken behind.

    Raises:
        LogError: the file cannot be read.
    """
    return prefix_of(file.read(position.prefix_bytes, 0)) == position.prefix


def older(path: str, file: LogFile | None) -> tuple[str, int]:
    """What a position in ``file`` (None: the log is not there yet) notes of the rotated files that
    are older: its fields ``older`` and ``older_at``.
    """
    newest, changed = NONE, file.changed_ns() if file else 0
    rotated = siblings(path)
    own = next((i for i, each in enumerate(rotated) if file and _is(each.path, file)), None)
    for each in rotated[:own]:
        try:
            with LogFile(each.path) as other:
                changed = max(changed, other.changed_ns())
                head = other.read(PREFIX_BYTES, 0)
        except LogError:
            continue
        if head:
            newest = f"{len(head)}:{prefix_of(head)}"
    return newest, changed


def since(path: str, position: Position) -> LogFile | None:
    """The oldest of the rotated files that are newer than the file of ``position``, opened; None if
    there is none. For a position whose own file cannot be found.

    Raises:
        LogError: the log is rotated faster than it can be read.
    """
    return _opened(path, lambda: next(iter(_newer(path, position)), None))


def has_newer(path: str, position: Position) -> bool:
    """Whether any rotated file, if an empty one, is newer than the file of ``position``."""
    return bool(_newer(path, position, empty=True))


def _newer(path: str, position: Position, *, empty: bool = False) -> list[str]:
    """The rotated files that are newer than the file of ``position``, oldest first: those with
    something in them, the position's own, and, if ``empty``, the others.
    """
    rotated = siblings(path)
    heads = [_head(each.path) for each in rotated]
    known: tuple[int, ...] | None = None
    if position.older not in (NONE, UNKNOWN):
        size, _, prefix = position.older.partition(":")
        for each, head in zip(rotated, heads, strict=True):
            if prefix_of(head[: int(size)]) == prefix:
                known = each.order
    log = _head(path)
    return [
        each.path
        for each, head in zip(rotated, heads, strict=True)
        if not _same_beginning(head, log)  # of a log that was copied and not truncated
        and (empty or head or _is_at(each.path, position.device, position.inode))
        and (
            position.older == NONE
            or (
                each.order > known
                if known is not None and known[0] == each.order[0]
                else _changed_ns(each.path) > position.older_at
            )
        )
    ]


def _head(path: str) -> bytes:
    try:
        with LogFile(path) as file:
            return file.read(PREFIX_BYTES, 0)
    except LogError:
        return b""


def _same_beginning(one: bytes, other: bytes) -> bool:
    """Whether two files are one and its copy: they share a line, or as much as is looked at."""
    common = one[: len(other)]
    return other.startswith(common) and (b"\n" in common or len(common) == PREFIX_BYTES)


def _changed_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def after(path: str, file: LogFile, position: Position) -> LogFile | None:
    """The file that was begun after ``file``, opened; None when ``file`` is the log itself.

    Args:
        position: one taken in ``file``.

    Raises:
        LogError: the log is rotated faster than it can be read.
    """
    return _opened(path, lambda: _path_after(path, file, position))


def _opened(path: str, find: Callable[[], str | None]) -> LogFile | None:
    """The file that ``find`` names, opened; None: there is none.

    Renaming goes on while we look: what was opened is right only if it still is the answer
    afterwards.
    """
    for _ in range(_ATTEMPTS):
        found = find()
        if found is None:
            return None
        try:
            opened = LogFile(found)
        except LogError:
            if found == path:
                return None  # renamed, and the new one not there yet
            continue
        again = find()
        if again is not None and _is(again, opened):
            return opened
        opened.close()
    raise LogError(f"{path} is rotated faster than it can be read")


def _path_after(path: str, file: LogFile, position: Position) -> str | None:
    if _is(path, file):
        return None
    rotated = siblings(path)
    place = next((i for i, each in enumerate(rotated) if _is(each.path, file)), None)
    if place is None:
        place = _copy_of(file, rotated)
    if place is None:
        # Deleted, while we read it.
        newer_paths = _newer(path, position)
        return newer_paths[0] if newer_paths else path
    here = rotated[place]
    newer = [each for each in rotated[place + 1 :] if each.order[0] == here.order[0]]
    return newer[0].path if newer else path


def _copy_of(file: LogFile, rotated: list[Rotated]) -> int | None:
    """The index of the newest of ``rotated`` that begins as ``file``, which was compressed or
    copied and deleted while it was open; None if there is none.
    """
    head = file.read(PREFIX_BYTES, 0)
    if not head:
        return None
    copies = (i for i, each in enumerate(rotated) if _head(each.path).startswith(head))
    return max(copies, default=None)


def _is(path: str, file: LogFile) -> bool:
    return _is_at(path, file.device, file.inode)


def _is_at(path: str, device: int, inode: int) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (device, inode)


def _open_if(path: str, position: Position) -> LogFile | None:
    """The file at ``path``, opened, if it begins as ``position`` says and reaches as far."""
    try:
        file = LogFile(path)
    except LogError:
        return None
    try:
        if begins_as(file, position) and file.holds(position.offset):
            return file
    except LogError:
        pass
    file.close()
    return None


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []

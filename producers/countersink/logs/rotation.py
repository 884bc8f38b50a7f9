"""Rotated logs: which file names are rotated (``access.log.1``, dates, ``.gz``), their order, and
finding the file of a position again.

Rotated names are the log's own name with a number or a date behind it or before its extension,
compressed or not: ``access.log.1``, ``access.log-20261121``, ``access.log.2.gz``,
``access-2026-11-21.log``. A higher number is older, a higher date is newer.

If the log is a link, they are also searched in the target's directory, under the target's name; if
that has a date (``2026-11-21.log``), the files of other dates are rotated files.
"""

import os
import re
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

from countersink.logs.errors import LogError
from countersink.logs.file import EXTENSIONS, LogFile
from countersink.logs.position import (
    NONE,
    PREFIX_BYTES,
    UNKNOWN,
    Position,
    head_of,
    prefix_of,
    shared_bytes,
)

_ATTEMPTS: Final = 20
_NUMBERS: Final = r"\d+(?:[-._T:]\d+)*"
_HIGHEST_NUMBER: Final = 100_000
"""Digits behind the name that are less count rotations; others are a date."""
_PACKED: Final = rf"(?P<packed>{'|'.join(map(re.escape, EXTENSIONS))})?"
_DATE: Final = re.compile(r"(?<!\d)(?:20\d\d[-._]?[01]\d(?:[-._T:]?\d\d)*|1\d{9})(?!\d)")
"""A date in a name, to the day or finer; or Unix seconds."""


@dataclass(frozen=True, slots=True)
class LogPath:
    """A log's name, and the directories of its rotated files.

    Attributes:
        path: the log's name, absolute.
        rotated_in: another directory of rotated files, besides the log's; '': none.
    """

    path: str
    rotated_in: str = ""

    def places(self) -> dict[str, list[str]]:
        """Directories of rotated files, each with the patterns of their names."""
        directory, name = os.path.split(self.path)
        target_directory, target = os.path.split(os.path.realpath(self.path))
        names = [_rotated(name)]
        found = {directory: names}
        if os.path.islink(self.path):
            names = [*names, _dated(target) or _rotated(target)]
            found = {directory: names, target_directory: names}
        return found | ({self.rotated_in: names} if self.rotated_in else {})


def _rotated(name: str) -> str:
    """The pattern of the names of a log's rotated files."""
    stem, extension = os.path.splitext(name)
    return (
        rf"(?:{re.escape(name)}[-._](?P<behind>{_NUMBERS})"
        rf"|{re.escape(stem)}[-._](?P<before>{_NUMBERS}){re.escape(extension)}){_PACKED}"
    )


def _dated(name: str) -> str:
    """The pattern of file names with any date in the place of ``name``'s date; '': it has none."""
    date = _DATE.search(name)
    if date is None:
        return ""
    before, after = re.escape(name[: date.start()]), re.escape(name[date.end() :])
    return rf"{before}(?P<date>{_NUMBERS}){after}(?:[-._](?P<behind>{_NUMBERS}))?{_PACKED}"


@dataclass(frozen=True, slots=True)
class Rotated:
    """A rotated file.

    Attributes:
        path: of the file.
        order: sorts the older before the newer.
    """

    path: str
    order: tuple[int, ...]


def siblings(log: LogPath) -> list[Rotated]:
    """The rotated files of a log, oldest first; each once, plain before compressed."""
    found: dict[object, Rotated] = {}
    seen = {_identity(log.path)}
    for directory, patterns in log.places().items():
        for other in sorted(_names(directory)):  # "x.1" comes before "x.1.gz" and stays
            path = os.path.join(directory, other)
            matches = (re.fullmatch(pattern, other) for pattern in patterns)
            match = next(filter(None, matches), None)
            if match is None or (identity := _identity(path)) is None or identity in seen:
                continue
            seen.add(identity)
            plain = path.removesuffix(match["packed"] or "")
            found.setdefault(plain, Rotated(path, _order(**match.groupdict())))
    return sorted(found.values(), key=lambda rotated: rotated.order)


def _order(
    *, date: str | None = None, behind: str | None = None, before: str | None = None, **_: object
) -> tuple[int, ...]:
    """The sort key of a rotated file, by the numbers in its name."""
    numbers = [int(number) for number in re.findall(r"\d+", behind or before or "")]
    if len(numbers) == 1 and numbers[0] < _HIGHEST_NUMBER:
        numbers = [-numbers[0]]
        kind = 0
    else:
        kind = 1
    if date is None:
        return kind, *numbers
    # The file of a date comes after those that were rotated on it.
    return 1, *map(int, re.findall(r"\d+", date)), *(numbers or [sys.maxsize])


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of a regular file; None: there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def find(log: LogPath, position: Position) -> LogFile | None:
    """The file that ``position`` was taken in, opened, under its present name; None: it was not
    found.

    First the file with the same inode, then files with the same first bytes, since a copy or a
    compressed file has another inode. A file without bytes cannot be recognized: its inode may
    belong to another file by now.

    Raises:
        LogError: the file was not found, and a file that may be it cannot be read.
    """
    if position.prefix_bytes == 0:
        return None
    known = [log.path, *(each.path for each in reversed(siblings(log)))]
    names = (os.path.join(place, name) for place in log.places() for name in _names(place))
    inode = position.device, position.inode
    same = (each for each in (*known, *names) if _identity(each) == inode)
    unread: LogError | None = None
    for candidate in chain(same, known):
        try:
            file = _open_if(candidate, position)
        except LogError as error:
            if _changed_ns(candidate) > position.older_at:
                unread = unread or error
            continue
        if file is not None:
            return file
    if unread is not None:
        raise unread
    return None


def find_below(log: LogPath, position: Position) -> tuple[LogPath, LogFile] | None:
    """The file of a position in a subdirectory of the log's directory, and the paths with that
    subdirectory.
    """
    directory = os.path.dirname(log.path)
    for place in (os.path.join(directory, name) for name in _names(directory)):
        below = LogPath(log.path, place)
        with suppress(LogError):
            if file := find(below, position):
                return below, file
    return None


def begins_as(file: LogFile, position: Position) -> bool:
    """Whether ``file`` begins with the first bytes of ``position``; LogError: it cannot be read."""
    found = b""
    # A compressed file that is cut off gives the bytes before the cut, then the error.
    while more := file.read(position.prefix_bytes - len(found), len(found)):
        found += more
    return prefix_of(found) == position.prefix


def older_fields(log: LogPath, file: LogFile | None) -> tuple[str, int]:
    """The fields ``older`` and ``older_at`` of a position in ``file`` (None: the log does not exist
    yet).
    """
    newest, changed = NONE, file.changed_ns() if file else 0
    rotated = siblings(log)
    index = next(
        (i for i, each in enumerate(rotated) if file and is_name_of(each.path, file)), None
    )
    for each in rotated[:index]:
        changed = max(changed, _changed_ns(each.path))
        try:
            head = _head(each.path)
        except LogError:
            newest = UNKNOWN
            continue
        if head[shared_bytes(head) :]:
            newest = f"{len(head)}:{prefix_of(head)}"
    return newest, changed


def open_newer(log: LogPath, position: Position) -> LogFile | None:
    """The oldest of the rotated files newer than the file of ``position``, opened, or None. For
    a position whose own file was not found.

    Raises:
        LogError: the log is rotated faster than it can be read.
    """
    return _opened(log, lambda: next(iter(_newer(log, position)), None))


def has_newer(log: LogPath, position: Position) -> bool:
    """Whether a rotated file, even an empty one, is newer than the file of ``position``."""
    return bool(_newer(log, position, empty=True))


def _newer(log: LogPath, position: Position, *, empty: bool = False) -> list[str]:
    """Rotated files newer than the file of ``position``, oldest first: those with data behind their
    directives, the position's own, and, if ``empty``, the others.

    Raises:
        LogError: one of them cannot be read.
    """
    rotated = siblings(log)
    known: tuple[int, ...] | None = None
    if position.older not in (NONE, UNKNOWN):
        size, _, prefix = position.older.partition(":")
        for each in rotated:
            with suppress(LogError):
                if prefix_of(_head(each.path)[: int(size)]) == prefix:
                    known = each.order
    log_head = _head(log.path)
    found: list[str] = []
    for each in rotated:
        if position.older == NONE:
            newer = True
        elif known is not None and known[0] == each.order[0]:
            newer = each.order > known
        else:
            newer = _changed_ns(each.path) > position.older_at
        if not newer:
            continue
        head = _head(each.path)
        if _same_beginning(head, log_head):
            continue  # a copy of a log that was not truncated
        filled = head[shared_bytes(head) :]
        if empty or filled or _identity(each.path) == (position.device, position.inode):
            found.append(each.path)
    return found


def _head(path: str) -> bytes:
    """The bytes that identify a file, none if it does not exist; LogError: it cannot be read."""
    file = _open(path)
    if file is None:
        return b""
    with file:
        return head_of(file)


def _same_beginning(one: bytes, other: bytes) -> bool:
    """Whether two heads are of a file and its copy: they share a line, or a whole prefix."""
    common = one[: len(other)]
    data = common[shared_bytes(common) :]
    return other.startswith(common) and (b"\n" in data or len(data) == PREFIX_BYTES)


def _changed_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def open_following(log: LogPath, file: LogFile, position: Position) -> LogFile | None:
    """The file that was begun after ``file``, opened; None when ``file`` is the log itself.

    Args:
        position: a position in ``file``.

    Raises:
        LogError: the log is rotated faster than it can be read.
    """
    return _opened(log, lambda: _path_after(log, file, position))


def _opened(log: LogPath, find: Callable[[], str | None]) -> LogFile | None:
    """The file that ``find`` names, opened; None: there is none.

    Files may be renamed meanwhile: the opened file is right only if ``find`` still names it
    afterwards.
    """
    for _ in range(_ATTEMPTS):
        found = find()
        if found is None:
            return None
        opened = _open(found)
        if opened is None:
            if found == log.path:
                return None  # renamed, and the new log does not exist yet
            continue
        again = find()
        if again is not None and is_name_of(again, opened):
            return opened
        opened.close()
    raise LogError(f"{log.path} is rotated faster than it can be read")


def _path_after(log: LogPath, file: LogFile, position: Position) -> str | None:
    if is_name_of(log.path, file):
        return None
    rotated = siblings(log)
    place = next((i for i, each in enumerate(rotated) if is_name_of(each.path, file)), None)
    if place is None:
        place = _copy_of(file, rotated)
    if place is None:
        # Deleted while it was read.
        newer_paths = _newer(log, position)
        return newer_paths[0] if newer_paths else log.path
    here = rotated[place]
    newer = [
        each
        for each in rotated[place + 1 :]
        if each.order[0] == here.order[0] and each.order > here.order
    ]
    return newer[0].path if newer else log.path


def _copy_of(file: LogFile, rotated: list[Rotated]) -> int | None:
    """The index of the newest of ``rotated`` that begins as ``file``, which was compressed or
    copied and deleted while it was open; None if there is none.
    """
    head = head_of(file)
    if not head[shared_bytes(head) :]:
        return None
    for place in reversed(range(len(rotated))):
        with suppress(LogError):
            if _head(rotated[place].path).startswith(head):
                return place
    return None


def is_name_of(path: str, file: LogFile) -> bool:
    """Whether ``path`` is the present name of ``file``."""
    return _identity(path) == (file.device, file.inode)


def _open(path: str) -> LogFile | None:
    """The file at ``path``, opened; None: there is none.

    Raises:
        LogError: the file cannot be read.
    """
    try:
        return LogFile(path)
    except LogError:
        if os.path.exists(path):
            raise
        return None


def _open_if(path: str, position: Position) -> LogFile | None:
    """The file at ``path``, opened, if it begins as ``position`` says and is long enough.

    Raises:
        LogError: the file exists, but cannot be read.
    """
    file = _open(path)
    if file is None:
        return None
    found = False
    try:
        found = begins_as(file, position) and file.holds(position.offset)
    finally:
        if not found:
            file.close()
    return file if found else None


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []

"""Rotated logs: recognizes rotated files by their names (``access.log.1``, dates, ``.gz``), sorts
them by age, and finds the file of a position again.

The name of a rotated file is the log's name with a number or a date behind it or before its
extension, compressed or not: ``access.log.1``, ``access.log-20261121``, ``access.log.2.gz``,
``access-2026-11-21.log``. A higher number is older, a higher date is newer.

If the log is a symbolic link, rotated files are also found in its target's directory, by the
target's name. If that has a date (``2026-11-21.log``), names with other dates are rotated files.
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
"""A single number below this one behind a name counts rotations; other digits are a date."""
_PACKED: Final = rf"(?P<packed>{'|'.join(map(re.escape, EXTENSIONS))})?"
_DATE: Final = re.compile(r"(?<!\d)(?:20\d\d[-._]?[01]\d(?:[-._T:]?\d\d)*|1\d{9})(?!\d)")
"""The pattern of a date in a name, to the day or finer, or of Unix seconds."""


@dataclass(frozen=True, slots=True)
class LogPath:
    """The path of a log, and where its rotated files are.

    Attributes:
        path: the absolute path of the log.
        rotated_in: a directory of rotated files besides the log's own; '' for none.
    """

    path: str
    rotated_in: str = ""

    def directories(self) -> dict[str, list[str]]:
        """Return the directories of rotated files, each with regular expressions of their names."""
        directory, name = os.path.split(self.path)
        target_directory, target = os.path.split(os.path.realpath(self.path))
        names = [_rotated(name)]
        found = {directory: names}
        if os.path.islink(self.path):
            names = [*names, _dated(target) or _rotated(target)]
            found = {directory: names, target_directory: names}
        return found | ({self.rotated_in: names} if self.rotated_in else {})


def _rotated(name: str) -> str:
    """Return the regular expression of the names of rotated files of a log called ``name``."""
    stem, extension = os.path.splitext(name)
    return (
        rf"(?:{re.escape(name)}[-._](?P<behind>{_NUMBERS})"
        rf"|{re.escape(stem)}[-._](?P<before>{_NUMBERS}){re.escape(extension)}){_PACKED}"
    )


def _dated(name: str) -> str:
    """Return the regular expression of names like ``name`` with any date; '' if it has no date."""
    date = _DATE.search(name)
    if date is None:
        return ""
    before, after = re.escape(name[: date.start()]), re.escape(name[date.end() :])
    return rf"{before}(?P<date>{_NUMBERS}){after}(?:[-._](?P<behind>{_NUMBERS}))?{_PACKED}"


@dataclass(frozen=True, slots=True)
class Rotated:
    """A rotated file of a log.

    Attributes:
        path: the path of the file.
        order: the sort key by which older files come before newer ones.
    """

    path: str
    order: tuple[int, ...]


def rotated_files(log: LogPath) -> list[Rotated]:
    """Return a log's rotated files, oldest first, without compressed copies of plain files."""
    found: dict[object, Rotated] = {}
    seen = {_identity(log.path)}
    for directory, patterns in log.directories().items():
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
    """Return the sort key of a rotated file, by parts of its name: a ``date`` in the log's name,
    and a number or date ``behind`` the name or ``before`` the extension. Ignore other parts.
    """
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
    """Return the device and inode of the regular file at ``path``; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def find(log: LogPath, position: Position) -> LogFile | None:
    """Open the file of ``position``, even if it was renamed; return None if it was not found.

    The file must begin with the bytes of the position's prefix and reach the position's offset.
    Files with the position's inode are tried first. The log and its rotated files follow, because a
    copy or a compressed file has another inode. A position without a prefix finds nothing: its
    inode may belong to another file by now.

    Raises:
        LogError: the file was not found, and another file, which might be it, cannot be read.
    """
    if position.prefix_bytes == 0:
        return None
    known = [log.path, *(each.path for each in reversed(rotated_files(log)))]
    names = (os.path.join(each, name) for each in log.directories() for name in _names(each))
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
    """Look for the file of a position in the subdirectories of the log's directory. Return the
    log's path with the subdirectory as ``rotated_in``, and the open file. Return None if no
    readable file was found."""
    directory = os.path.dirname(log.path)
    for place in (os.path.join(directory, name) for name in _names(directory)):
        below = LogPath(log.path, place)
        with suppress(LogError):
            if file := find(below, position):
                return below, file
    return None


def begins_as(file: LogFile, position: Position) -> bool:
    """Return whether ``file`` begins with the position's prefix. Raises LogError if unreadable."""
    found = b""
    # A compressed file that is cut off gives the bytes before the cut, then the error.
    while more := file.read(position.prefix_bytes - len(found), len(found)):
        found += more
    return prefix_of(found) == position.prefix


def older_fields(log: LogPath, file: LogFile | None) -> tuple[str, int]:
    """Return ``older`` and ``older_at`` for a position in ``file`` (None if there is no log yet).
    ``older`` is the newest older rotated file with lines, as ``size:SHA-256`` of its first bytes:
    ``-`` without such a file, ``?`` if it cannot be read. ``older_at`` is the last write to
    ``file`` or any older one, in Unix ns."""
    newest, changed = NONE, file.changed_ns() if file else 0
    rotated = rotated_files(log)
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
    """Open the oldest rotated file that is newer than ``position.older``: the file of ``position``
    itself, if it is among them, or else a later one. Return None if there is none.

    Raises:
        LogError: a newer file cannot be read, or the log is rotated faster than it can be read.
    """
    return _opened(log, lambda: next(iter(_newer(log, position)), None))


def has_newer(log: LogPath, position: Position) -> bool:
    """Return whether any rotated file, even an empty one, is newer than ``position.older``. Copies
    of the log do not count. Raises LogError if a newer file or the log cannot be read."""
    return bool(_newer(log, position, empty=True))


def _newer(log: LogPath, position: Position, *, empty: bool = False) -> list[str]:
    """Return the paths of rotated files that are newer than ``position.older``, oldest first: also
    the file of ``position``, if it was rotated. Leave out copies of the log. Unless ``empty`` is
    true, also leave out files with nothing but W3C directives, except the file of ``position``.

    Raises:
        LogError: a newer file, or the log, cannot be read."""
    rotated = rotated_files(log)
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
    """Return the bytes that identify the file at ``path``; b"" for no file. Raises LogError."""
    file = _open(path)
    if file is None:
        return b""
    with file:
        return head_of(file)


def _same_beginning(one: bytes, other: bytes) -> bool:
    """Return whether one of two files seems to be a copy of the other, by the first bytes of each:
    the longer begins with the shorter, which has a line or 1,024 bytes after its W3C directives."""
    common = one[: len(other)]
    data = common[shared_bytes(common) :]
    return other.startswith(common) and (b"\n" in data or len(data) == PREFIX_BYTES)


def _changed_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def open_following(log: LogPath, file: LogFile, position: Position) -> LogFile | None:
    """Open the log's next file after ``file``, the file of ``position``: a rotated file, or else
    the log. Return None if ``file`` is the log, or if the next is the log and does not exist yet.

    Raises:
        LogError: a file cannot be read, or the log is rotated faster than it can be read.
    """
    return _opened(log, lambda: _path_after(log, file, position))


def _opened(log: LogPath, find: Callable[[], str | None]) -> LogFile | None:
    """Open the file whose path ``find`` returns. Return None if ``find`` returns None, or returns
    the path of the log and there is no log. Raises LogError if the file cannot be read.

    A rotation may rename files meanwhile. So ``find`` is called again after the file was opened. If
    it finds another file then, everything is repeated; LogError after 20 attempts."""
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
    rotated = rotated_files(log)
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
    """Return the index in ``rotated`` of the newest file that begins like ``file``; None if none
    does. Used for an open file that was copied or compressed, and then deleted."""
    head = head_of(file)
    if not head[shared_bytes(head) :]:
        return None
    for place in reversed(range(len(rotated))):
        with suppress(LogError):
            if _head(rotated[place].path).startswith(head):
                return place
    return None


def is_name_of(path: str, file: LogFile) -> bool:
    """Return whether ``path`` is the present name of ``file``."""
    return _identity(path) == (file.device, file.inode)


def _open(path: str) -> LogFile | None:
    """Open the file at ``path``; return None where there is none.

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
    """Open the file at ``path`` if it may be the file of ``position``: if it begins with the prefix
    and reaches the offset. Otherwise return None.

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

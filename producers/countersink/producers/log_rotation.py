"""Finding a log again after it was rotated.

Rotated names are the log's own name with a number or a date behind it or before its extension,
compressed or not: ``access.log.1``, ``access.log-20261121``, ``access.log.2.gz``,
``access-2026-11-21.log``. A higher number is older, a higher date is newer.
"""

import os
import re
from dataclasses import dataclass
from typing import Final

from countersink.producers.log_files import LogError, LogFile
from countersink.producers.log_position import Position, prefix_of

_ATTEMPTS: Final = 20
_NUMBERS: Final = r"\d+(?:[-._T:]\d+)*"
_HIGHEST_NUMBER: Final = 100_000
"""Below, digits behind the name count rotations; from here on, they are a date."""


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
    what begins with the same bytes.
    """
    directory = os.path.dirname(path)
    rotated = [each.path for each in reversed(siblings(path))]
    others = (os.path.join(directory, name) for name in _names(directory))
    by_inode = [path, *rotated, *(o for o in others if o not in rotated and o != path)]
    for candidate in by_inode:
        try:
            status = os.stat(candidate)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) == (position.device, position.inode):
            file = _open_if(candidate, position)
            if file is not None:
                return file
    if position.prefix_bytes == 0:
        return None
    for candidate in (path, *rotated):
        file = _open_if(candidate, position)
        if file is not None:
            return file
    return None


def begins_as(file: LogFile, position: Position) -> bool:
    """Whether the first bytes of ``file`` are those that ``position`` was taken behind.

    Raises:
        LogError: the file cannot be read.
    """
    return prefix_of(file.head(position.prefix_bytes)) == position.prefix


def after(path: str, file: LogFile) -> LogFile | None:
    """The file that was begun after ``file``, opened; None when ``file`` is the log itself.

    Renaming goes on while we look: what was opened is right only if it still is the answer
    afterwards.
    """
    for _ in range(_ATTEMPTS):
        following = _path_after(path, file)
        if following is None:
            return None
        try:
            opened = LogFile(following)
        except LogError:
            if following == path:
                return None  # renamed, and the new one not there yet
            continue
        again = _path_after(path, file)
        if again is not None and _is(again, opened):
            return opened
        opened.close()
    raise LogError(f"{path} is rotated faster than it can be read")


def _path_after(path: str, file: LogFile) -> str | None:
    if _is(path, file):
        return None
    rotated = siblings(path)
    place = next((i for i, each in enumerate(rotated) if _is(each.path, file)), None)
    if place is None:
        return path
    here = rotated[place]
    newer = [each for each in rotated[place + 1 :] if each.order[0] == here.order[0]]
    return newer[0].path if newer else path


def _is(path: str, file: LogFile) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (file.device, file.inode)


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

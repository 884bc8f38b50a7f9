"""Which files the names, patterns and directories on the command line stand for, their order, what
is left out, and the texts for names that give none."""

import glob
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from countersink.backfill.options import SourceReport

STDIN: Final = "-"


def trouble(error: OSError) -> str:
    """What went wrong, as a phrase."""
    return error.strerror or str(error)


@dataclass(frozen=True, slots=True)
class Input:
    """A file, or standard input, that is a source.

    Attributes:
        name: as people know it; printable.
        path: absolute; None: standard input.
        size: bytes on disk; None: not known (a pipe).
    """

    name: str
    path: Path | None
    size: int | None


def expand(sources: Sequence[str]) -> tuple[list[Input], list[SourceReport]]:
    """The files that ``sources`` name, and a report for each name that gives none.

    A source is a file, a FIFO, ``-`` (standard input), a shell pattern (``**`` matches
    directories), or a directory: then all files in it and below, without hidden ones. A name that
    is there is never taken for a pattern. The same file twice, by whatever name, is there once.
    """
    search = _Search()
    for source in sources:
        if source == STDIN:
            search.found.setdefault(STDIN, Input(STDIN, None, None))
        elif os.path.lexists(source) or not glob.has_magic(source):
            search.add(source)
        else:
            search.add_matches(source)
    return list(search.found.values()), search.failed


class _Search:
    """Files by their device and inode, and reports of names that give none."""

    def __init__(self) -> None:
        self.found: dict[object, Input] = {}
        self.failed: list[SourceReport] = []

    def add(self, name: str) -> None:
        """Add a file, or those of a directory."""
        try:
            status = os.stat(name)
            if stat.S_ISDIR(status.st_mode):
                self._add_directory(name)
                return
            regular = stat.S_ISREG(status.st_mode)
            if not (regular or stat.S_ISFIFO(status.st_mode)):
                raise OSError(0, "it is a device or a socket, no file; standard input is named -")
            size = status.st_size if regular else None
            file = Input(_shown(name), Path(os.path.abspath(name)), size)
            self.found.setdefault((status.st_dev, status.st_ino), file)
        except OSError as error:
            self._fail(name, error)

    def add_matches(self, pattern: str) -> None:
        """Add the files, and those of directories, that a pattern matches."""
        matches = sorted(glob.glob(pattern, recursive=True))
        if "**" in pattern:  # which gives the directories and all that is in them
            matches = [match for match in matches if not os.path.isdir(match)]
        if not matches:
            self._fail(pattern, OSError(0, "no file matches the pattern"))
        for match in matches:
            self.add(match)

    def _add_directory(self, top: str) -> None:
        failed = len(self.failed)
        names = list(_files_below(top, lambda error: self._fail(error.filename, error)))
        for name in names:
            self.add(name)
        if not names and len(self.failed) == failed:
            raise OSError(0, "there is no file in this directory (hidden ones are left out)")

    def _fail(self, name: str, error: OSError) -> None:
        report = SourceReport(source=_shown(name), outcome="failed", detail=trouble(error))
        self.failed.append(report)


def _files_below(top: str, fail: Callable[[OSError], None]) -> Iterator[str]:
    """Regular files, directory by directory, by name; links to directories are not followed."""
    for folder, folders, files in os.walk(top, onerror=fail):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for file in sorted(files):
            path = os.path.join(folder, file)
            if not file.startswith(".") and os.path.isfile(path):
                yield path


def _shown(name: str) -> str:
    """A name that can be printed and stored: bytes that are no UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")

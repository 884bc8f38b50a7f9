"""Which files the names, patterns and directories on the command line stand for, their order, what
is left out, and the texts for names that give none."""

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from countersink.backfill.options import SourceReport

STDIN: Final = "-"

_ADVICE: Final = {
    PermissionError: "no permission to read it; run this as a user who may, or change its mode",
    FileNotFoundError: "there is no such file or directory",
    NotADirectoryError: "there is no such file or directory",
    IsADirectoryError: "it is a directory",
}


def trouble(error: OSError) -> str:
    """What went wrong, as a phrase."""
    return _ADVICE.get(type(error)) or error.strerror or type(error).__name__


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


class _Refused(Exception):
    """A source cannot be; the message says why."""


def expand(sources: Sequence[str]) -> tuple[list[Input], list[SourceReport]]:
    """The files that ``sources`` name, and a report for each name that gives none.

    A source is a file, a FIFO, ``-`` (standard input), a shell pattern (``**`` matches
    directories), or a directory: then all files in it and below, without hidden ones. A name that
    is there is never taken for a pattern. The same file twice, by whatever name, is there once.
    """
    search = _Search()
    for source in sources:
        search.add(source)
    return search.found, search.failed


class _Search:
    def __init__(self) -> None:
        self.found: list[Input] = []
        self.failed: list[SourceReport] = []
        self._seen: set[tuple[int, int]] = set()
        self._stdin = False

    def add(self, source: str) -> None:
        try:
            if source == STDIN:
                if not self._stdin:
                    self.found.append(Input(STDIN, None, None))
                self._stdin = True
            elif os.path.lexists(source) or not glob.has_magic(source):
                self._add(source)
            else:
                self._add_matches(source)
        except (_Refused, OSError, ValueError) as error:
            self._fail(source, error)

    def _add_matches(self, pattern: str) -> None:
        matches = sorted(glob.glob(pattern, recursive=True))
        if not matches:
            raise _Refused("no file matches the pattern")
        for match in matches:
            try:
                # ``**`` gives the directories and all that is in them.
                if not ("**" in pattern and os.path.isdir(match)):
                    self._add(match)
            except (_Refused, OSError) as error:
                self._fail(match, error)

    def _add(self, name: str) -> None:
        try:
            status = os.stat(name)
        except FileNotFoundError:
            if os.path.islink(name):
                raise _Refused(
                    f"it is a link to {_shown(os.readlink(name))}, which is not there"
                ) from None
            raise
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            self._add_directory(name)
        elif kind == stat.S_IFREG or kind == stat.S_IFIFO:
            self._add_file(name, status)
        elif kind == stat.S_IFSOCK:
            raise _Refused("it is a socket, not a file")
        else:
            raise _Refused("it is a device, not a file; standard input is named -")

    def _add_file(self, name: str, status: os.stat_result) -> None:
        if not os.access(name, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError
        if (status.st_dev, status.st_ino) in self._seen:
            return
        self._seen.add((status.st_dev, status.st_ino))
        size = status.st_size if stat.S_ISREG(status.st_mode) else None
        self.found.append(Input(_shown(name), Path(os.path.abspath(name)), size))

    def _add_directory(self, top: str) -> None:
        errors: list[OSError] = []
        empty = True
        for name in _files_below(top, errors):
            empty = False
            try:
                self._add_file(name, os.stat(name))
            except OSError as error:
                self._fail(name, error)
        for problem in errors:
            self._fail(problem.filename or top, problem)
        if empty and not errors:
            raise _Refused("there is no file in this directory (hidden ones are left out)")

    def _fail(self, name: str, error: Exception) -> None:
        if isinstance(error, OSError):
            detail = trouble(error)
        elif isinstance(error, _Refused):
            detail = str(error)
        else:
            detail = f"this is no name of a file: {error}"
        self.failed.append(SourceReport(source=_shown(str(name)), outcome="failed", detail=detail))


def _files_below(top: str, errors: list[OSError]) -> Iterator[str]:
    """Regular files, directory by directory, by name; links to directories are not followed."""
    for folder, folders, files in os.walk(top, onerror=errors.append):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for file in sorted(files):
            path = os.path.join(folder, file)
            if not file.startswith(".") and os.path.isfile(path):
                yield path


def _shown(name: str) -> str:
    """A name that can be printed and stored: bytes that are no UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace").replace("\0", "\\0")

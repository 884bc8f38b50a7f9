"""The file of rejected lines: an object a line. Writing it destroys nothing that is not one."""

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import IO, Any, Final, Self

from countersink.backfill.inputs import Input
from countersink.backfill.listing import RejectedLine
from countersink.backfill.options import WrongOption

_MADE_UP: Final = re.compile(r"backfill-[0-9]+-rejects\.ndjson")
"""A name that nobody has asked for: no file may go for it."""
_KEYS: Final = {"source", "line", "reason", "text"}
_LONGEST_LINE: Final = 1024 * 1024
"""Bytes; an object of ours is shorter."""


def check(path: Path, sources: Sequence[Input]) -> None:
    """See to it that rejected lines may be written there, before anything is read.

    Raises:
        WrongOption: it is one of the sources, a file that is not ours, or no file.
    """
    try:
        status = path.stat()
    except OSError:
        return  # not there: or it is said when it cannot be written
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISCHR(status.st_mode)):
        raise WrongOption(
            f"--rejects {path} is no regular file: name one; `countersink backfills show RUN"
            " --rejects` prints them for a pipe"
        )
    for source in sources:
        if _is(source, status):
            raise WrongOption(
                f"--rejects {path} is one of the sources ({source.name}), and would be overwritten:"
                " name another file"
            )
    if stat.S_ISREG(status.st_mode) and status.st_size and not _ours(path):
        raise WrongOption(
            f"--rejects {path} is there, and does not begin as a file of rejected lines does: name"
            " another file, or remove it"
        )


def _is(source: Input, status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False  # a terminal may be both
    with contextlib.suppress(OSError):
        own = os.fstat(0) if source.path is None else os.stat(source.path)
        return os.path.samestat(own, status)
    return False


def _ours(path: Path) -> bool:
    """Whether it begins with an object of ours."""
    try:
        with path.open("rb") as file:
            found: Any = json.loads(file.readline(_LONGEST_LINE))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and set(found) == _KEYS


class RejectsFile:
    """The file of the rejected lines of a run, a JSON object a line: source, line, reason, text.
    It is made for the first of them. A context manager.

    Args:
        path: where; beside it if that is a name that was made up and is taken. None: nowhere.
        instead: where to find them if it cannot be written.
    """

    def __init__(self, path: Path | None, instead: str) -> None:
        self._path = path
        self._instead = instead
        self._file: IO[str] | None = None
        self._error: OSError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def write(self, rejected: Iterable[RejectedLine]) -> None:
        """Write some more, unless it has failed."""
        if self._path is None or self._error is not None:
            return
        try:
            for one in rejected:
                if self._file is None:
                    self._path, self._file = _opened(self._path)
                text = one.text.decode("utf-8", "backslashreplace")
                about = {"source": one.source, "line": one.line, "reason": one.reason, "text": text}
                self._file.write(json.dumps(about, ensure_ascii=False) + "\n")
        except OSError as error:
            self._error = error

    def notices(self) -> list[str]:
        """For people, once all are written: where they are, or why they are not there."""
        self._close()
        if error := self._error:
            why = error.strerror or type(error).__name__
            return [
                f"the rejected lines could not be written to {self._path} ({why}): {self._instead}"
            ]
        return [] if self._file is None else [f"the rejected lines are in {self._path}"]

    def _close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._error = self._error or error


def _opened(path: Path) -> tuple[Path, IO[str]]:
    if _MADE_UP.fullmatch(str(path)) is None:
        return path, path.open("w", encoding="utf-8")
    free = path
    for number in count(2):
        with contextlib.suppress(FileExistsError):
            return free, free.open("x", encoding="utf-8")
        free = path.with_stem(f"{path.stem}-{number}")
    raise AssertionError("numbers do not end")

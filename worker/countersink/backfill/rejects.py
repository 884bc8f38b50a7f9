"""Rejected lines of a backfill. This module writes them to the file of ``--rejects``, stores the
first ``KEPT`` of them with the run, and makes the notice of their reasons. See ``options.py`` and
``count/transaction.py`` for the maximum of rejected lines.

The file has one JSON object per line. The rejected lines of a chunk are appended once the chunk is
committed, or if it is not committed because it exceeds the maximum. An existing file is kept and
appended to, because a later run does not read the lines of committed chunks again.
"""

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from countersink.backfill import history
from countersink.backfill.content import Input, os_error_text
from countersink.backfill.errors import BackfillError, WrongOption
from countersink.backfill.history import RejectedLine
from countersink.database.session import Session
from countersink.database.sql import parts
from countersink.logs.formats.reader import Rejected
from countersink.runtime.texts import plural

KEPT: Final = 10
"""Maximum number of rejected lines that are stored with their run."""
_AT_ONCE: Final = 1000
"""Number of lines that one write appends."""
_LONGEST_LINE: Final = 1024 * 1024
"""Maximum length in bytes of the JSON object of a rejected line."""
_NAMED: Final = 3
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
"""Matches the parts of a reason that differ between lines: quoted texts and numbers."""


def rejected_lines(source: str, rejected: Iterable[Rejected]) -> list[RejectedLine]:
    """Convert rejected lines to the form for users, in which bytes that are not UTF-8 are escaped.
    ``source`` is the path of their source.
    """
    return [
        RejectedLine(source, one.line, one.reason, one.text.decode("utf-8", "backslashreplace"))
        for one in rejected
    ]


def store_first(session: Session, run: int, rejected: Sequence[RejectedLine]) -> None:
    """Add the rejected lines of a chunk to those in the run's row of ``backfill_run``, which the
    transaction must have locked. Lines beyond :data:`KEPT` per run are not stored.
    """
    if rejected and len(kept := history.rejects(session, run)) < KEPT:
        first = [asdict(one) for one in [*kept, *rejected][:KEPT]]
        session.execute(
            "UPDATE backfill_run SET rejects = %s WHERE id = %s",
            (json.dumps(first, ensure_ascii=False), run),
        )


class RejectsFile:
    """The file of ``--rejects``; a context manager, which closes the file at its end. The file is
    opened (and created, if it is missing) at the first rejected line.

    Args:
        path: path of the file; None to write no file.
        sources: sources of the run; the file may not be one of them.

    Attributes:
        first: the first :data:`KEPT` rejected lines of this run; kept even if ``path`` is None.
        notice: text for users with the path of the file; '' if nothing was written.

    Raises:
        WrongOption: the file cannot be written, or is one of the sources; or it exists, is not
            empty, and its first line is not a rejected line in JSON. The constructor checks this.
    """

    def __init__(self, path: Path | None, sources: Sequence[Input]) -> None:
        self.first: list[RejectedLine] = []
        self.notice = ""
        self._path = path
        self._file: BinaryIO | None = None
        if path is not None:
            _check_path(path, sources)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # ``write`` has raised an error before
                self._file.close()

    def write(self, source: str, rejected: Sequence[Rejected]) -> None:
        """Append rejected lines to the file, unless ``path`` is None. Append them to ``first``,
        too, as long as it has fewer than :data:`KEPT`.

        Args:
            source: path of their source.
            rejected: the lines.

        Raises:
            BackfillError: the file cannot be written.
        """
        self.first += rejected_lines(source, rejected[: KEPT - len(self.first)])
        if self._path is None or not rejected:
            return
        try:
            if self._file is None:
                self._file = open(self._path, "ab", opener=_private)  # noqa: SIM115
                if _ends_within_line(self._path):
                    self._file.write(b"\n")
            for some in parts(rejected, _AT_ONCE):
                lines = rejected_lines(source, some)
                texts = (json.dumps(asdict(line), ensure_ascii=False) for line in lines)
                self._file.write("".join(f"{text}\n" for text in texts).encode())
            self._file.flush()
        except OSError as error:
            raise BackfillError(
                f"rejected lines, beginning with line {rejected[0].line:,}, cannot be written to"
                f" {self._path}: {os_error_text(error)}. Lines are not read again: to have the"
                " rejected ones in a file, undo the run and repeat it"
            ) from error
        self.notice = f"the rejected lines are in {self._path}"


def _check_path(path: Path, sources: Sequence[Input]) -> None:
    for source in sources:
        if _is_same_file(source, path):
            raise WrongOption(
                f"--rejects {path} is one of the sources ({source.name}): give another file"
            )
    exists, folder = path.exists(), path.parent
    is_file = path.is_file() or path.is_char_device() if exists else folder.is_dir()
    if not is_file or not os.access(path if exists else folder, os.W_OK):
        raise WrongOption(
            f"--rejects {path} cannot be written: give a file in an existing directory, which this"
            " user may write"
        )
    if path.is_file() and path.stat().st_size and not _is_rejects_file(path):
        raise WrongOption(
            f"--rejects {path} exists and is not a file of rejected lines: give another file, or"
            " delete this one"
        )


def _ends_within_line(path: Path) -> bool:
    """Return whether a file ends without a newline, because a run was killed while it wrote."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _is_rejects_file(path: Path) -> bool:
    """Return whether the first line of a file is the JSON object of a rejected line; False if the
    file cannot be read."""
    try:
        with path.open("rb") as file:
            found: Any = json.loads(file.readline(_LONGEST_LINE))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and set(found) == {one.name for one in fields(RejectedLine)}


def _is_same_file(source: Input, path: Path) -> bool:
    with contextlib.suppress(OSError):  # one of them is not there
        status = os.fstat(0) if source.path is None else os.stat(source.path)
        return os.path.samestat(status, path.stat())
    return False


def reasons(total: int, first: Sequence[RejectedLine]) -> list[str]:
    """Return a list with one notice for users: the number of rejected lines, and up to three of the
    most frequent reasons among ``first``, each with a line as an example. Reasons that differ only
    in numbers and quoted texts count as one. Return an empty list if ``first`` is empty.

    Args:
        total: number of rejected lines.
        first: the first :data:`KEPT` of them.
    """
    if not first:
        return []
    lines = Counter(_QUOTED.sub("…", one.reason) for one in first)
    texts = []
    for reason, number in lines.most_common(_NAMED):
        one = next(one for one in first if _QUOTED.sub("…", one.reason) == reason)
        where = f"line {one.line} of {one.source}"
        if total > 1:
            where = f"{number:,}, such as {where}" if number > 1 else f"1, {where}"
        texts.append(f"{one.reason} ({where})")
    if more := len(lines) - len(texts):
        texts.append(f"and {plural(more, 'more reason')}")
    part = "" if total <= len(first) else f", the first {len(first)} of them"
    return [f"{lines_were(total)} rejected{part}: {'; '.join(texts)}"]


def lines_were(number: int) -> str:
    """Return ``1 line was`` or ``2 lines were``, for notices about rejected lines."""
    return f"{plural(number, 'line')} {'was' if number == 1 else 'were'}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # lines have addresses, and queries with secrets

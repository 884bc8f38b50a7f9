"""Rejected lines of a backfill: the file of ``--rejects``, the first ones that are kept with their
run (``KEPT``), and the sentences that sum up reasons; how many end a run: ``options.py`` and
``count/transaction.py``.

The file has a JSON object a line. The lines of a chunk are appended once it is committed, behind
those of earlier runs, as no run reads them again.
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
from countersink.backfill.content import Input, trouble
from countersink.backfill.errors import BackfillError, WrongOption
from countersink.backfill.history import RejectedLine
from countersink.database.session import Session
from countersink.database.sql import parts
from countersink.logs.formats.reader import Rejected

KEPT: Final = 10
"""Rejected lines that are kept with their run."""
_AT_ONCE: Final = 1000
"""Lines that are written at once."""
_LONGEST_LINE: Final = 1024 * 1024
"""Bytes; an object of ours is shorter."""
_NAMED: Final = 3
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
"""What differs between lines that are rejected for the same reason."""


def named(source: str, rejected: Iterable[Rejected]) -> list[RejectedLine]:
    """Rejected lines as they are listed; bytes that are no UTF-8 are escaped."""
    return [
        RejectedLine(source, one.line, one.reason, one.text.decode("utf-8", "backslashreplace"))
        for one in rejected
    ]


def keep(session: Session, run: int, rejected: Sequence[RejectedLine]) -> None:
    """Keep the first rejected lines of a run, in a transaction that holds its row."""
    if rejected and len(kept := history.rejects(session, run)) < KEPT:
        first = [asdict(one) for one in [*kept, *rejected][:KEPT]]
        session.execute(
            "UPDATE backfill_run SET rejects = %s WHERE id = %s",
            (json.dumps(first, ensure_ascii=False), run),
        )


class RejectsFile:
    """The file of ``--rejects``, to which the rejected lines of each chunk are appended once it is
    committed. A context manager.

    Args:
        path: of it; None: none is asked for.
        sources: none of which it may be.

    Attributes:
        first: the first :data:`KEPT` lines, also where no file is asked for.
        notice: a sentence on where the lines are; '': nowhere.

    Raises:
        WrongOption: it cannot be written, is one of the sources, or a file that is not ours.
    """

    def __init__(self, path: Path | None, sources: Sequence[Input]) -> None:
        self.first: list[RejectedLine] = []
        self.notice = ""
        self._path = path
        self._file: BinaryIO | None = None
        if path is not None:
            _check(path, sources)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # of what could not be written, as was said
                self._file.close()

    def write(self, source: str, rejected: Sequence[Rejected]) -> None:
        """Append lines of a source.

        Raises:
            BackfillError: they cannot be written.
        """
        self.first += named(source, rejected[: KEPT - len(self.first)])
        if self._path is None or not rejected:
            return
        try:
            if self._file is None:
                self._file = open(self._path, "ab", opener=_private)  # noqa: SIM115
            for some in parts(rejected, _AT_ONCE):
                lines = (json.dumps(asdict(one), ensure_ascii=False) for one in named(source, some))
                self._file.write("".join(f"{line}\n" for line in lines).encode())
            self._file.flush()
        except OSError as error:
            raise BackfillError(
                f"rejected lines, the first of them line {rejected[0].line:,}, cannot be written"
                f" to {self._path}: {trouble(error)}. What is counted is not read again: to have"
                " them in a file, undo the run and repeat it"
            ) from error
        self.notice = f"the rejected lines are in {self._path}"


def _check(path: Path, sources: Sequence[Input]) -> None:
    for source in sources:
        if _is(source, path):
            raise WrongOption(
                f"--rejects {path} is one of the sources ({source.name}): name another file"
            )
    there, folder = path.exists(), path.parent
    is_file = path.is_file() or path.is_char_device() if there else folder.is_dir()
    if not is_file or not os.access(path if there else folder, os.W_OK):
        raise WrongOption(
            f"--rejects {path} cannot be written: name a file that this user may write to, in a"
            " directory that is there"
        )
    if path.is_file() and path.stat().st_size and not _is_ours(path):
        raise WrongOption(
            f"--rejects {path} is there, and does not begin as a file of rejected lines does:"
            " name another file, or remove it"
        )


def _is_ours(path: Path) -> bool:
    """Whether a file begins with an object of ours."""
    try:
        with path.open("rb") as file:
            found: Any = json.loads(file.readline(_LONGEST_LINE))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and set(found) == {one.name for one in fields(RejectedLine)}


def _is(source: Input, path: Path) -> bool:
    with contextlib.suppress(OSError):  # one of them is not there
        own = os.fstat(0) if source.path is None else os.stat(source.path)
        return os.path.samestat(own, path.stat())
    return False


def reasons(total: int, first: Sequence[RejectedLine]) -> list[str]:
    """Why lines were rejected, in a sentence; nothing if none was.

    Args:
        total: how many were.
        first: the first :data:`KEPT` of them.
    """
    if not first:
        return []
    lines = Counter(_QUOTED.sub("…", one.reason) for one in first)
    said = []
    for reason, number in lines.most_common(_NAMED):
        one = next(one for one in first if _QUOTED.sub("…", one.reason) == reason)
        where = f"line {one.line} of {one.source}"
        if total > 1:
            where = f"{number:,}, such as {where}" if number > 1 else f"1, {where}"
        said.append(f"{one.reason} ({where})")
    if more := len(lines) - len(said):
        said.append(f"and {more:,} more reasons")
    were = "1 line was" if total == 1 else f"{total:,} lines were"
    of = "" if total <= len(first) else f", the first {len(first)} of them"
    return [f"{were} rejected{of}: {'; '.join(said)}"]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # lines have addresses, and queries with secrets

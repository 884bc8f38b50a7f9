"""Rejected lines of a backfill: the file of ``--rejects``, the first ones that are kept with their
run (``KEPT``), and the sentences that sum up reasons; how many end a run: ``options.py`` and
``count/transaction.py``.

The file has a JSON object a line. Writing it destroys nothing that is not such a file. The lines of
a chunk are written once it is committed.
"""

import contextlib
import json
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final, Self

from countersink.backfill import history
from countersink.backfill.errors import BackfillError, WrongOption
from countersink.backfill.history import RejectedLine
from countersink.backfill.input.files import Input, trouble
from countersink.producers.access_log.formats.reader import Rejected
from countersink.store.connection import Session

KEPT: Final = 10
"""Rejected lines that are kept with their run."""
_KEYS: Final = {"source", "line", "reason", "text"}
_LONGEST_LINE: Final = 1024 * 1024
"""Bytes; an object of ours is shorter."""
_NAMED: Final = 3
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
"""What differs between lines that are rejected for the same reason."""
_PREFIX: Final = "countersink-rejects-"


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
    """The file of ``--rejects``, to which the rejected lines of each chunk go once it is committed.
    A context manager.

    Args:
        path: of it; None: none is asked for.

    Attributes:
        first: the first :data:`KEPT` lines, also where no file is asked for.
        notice: a sentence on where the lines are; '': nowhere.
    """

    def __init__(self, path: Path | None) -> None:
        self.first: list[RejectedLine] = []
        self.notice = ""
        self._path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def write(self, rejected: Sequence[RejectedLine]) -> None:
        """Write lines; where that cannot be, they and all later ones go to another file.

        Raises:
            BackfillError: there is no room for that either.
        """
        self.first += rejected[: KEPT - len(self.first)]
        if self._path is None or not rejected:
            return
        text = "".join(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in rejected)
        try:
            self._append(self._path, text)
        except OSError as error:
            self._close()
            before, why, they = self._path, trouble(error), "the others" if self.notice else "they"
            with _room():
                handle, instead = tempfile.mkstemp(prefix=_PREFIX, suffix=".ndjson")
                os.close(handle)
                self._path = Path(instead)
                self._append(self._path, text)
            said = f"could not be written to {before} ({why}): {they} are in {instead}"
            self.notice = f"the rejected lines {said}"

    def _append(self, path: Path, text: str) -> None:
        if self._file is None:
            self._file = open(path, "w", encoding="utf-8", opener=_private)  # noqa: SIM115
        self._file.write(text)
        self._file.flush()
        self.notice = self.notice or f"the rejected lines are in {path}"

    def _close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # what could not be written
                self._file.close()
            self._file = None


@contextlib.contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackfillError(
            f"rejected lines cannot be kept in {tempfile.gettempdir()}: {trouble(error)}. Set"
            " TMPDIR to a directory with room, or leave out --rejects"
        ) from error


def check_file(path: Path, sources: Sequence[Input]) -> None:
    """See to it that rejected lines may be written there, before anything is read.

    Raises:
        WrongOption: it is one of the sources, a file that is not ours, or no file.
    """
    try:
        status = path.stat()
    except OSError:
        return  # not there: or it is said when it cannot be written
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISCHR(status.st_mode)):
        raise WrongOption(f"--rejects {path} is no regular file: name one")
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

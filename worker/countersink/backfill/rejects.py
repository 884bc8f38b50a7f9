"""Rejected lines of a backfill: the table ``backfill_reject``, the file of ``--rejects`` and its
name by default, and the sentences that sum up reasons; how many end a run: ``options.py`` and
``run_state.py``.

The file has a JSON object a line. Writing it destroys nothing that is not such a file.
"""

import contextlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, count
from pathlib import Path
from typing import IO, Any, Final, Self

from countersink.backfill.errors import WrongOption
from countersink.backfill.history import RejectedLine
from countersink.backfill.input.files import Input
from countersink.producers.access_log.formats.reader import Rejected
from countersink.store.connection import Session
from countersink.store.sql import parts

_PER_STATEMENT: Final = 500
_ALL: Final = 2**63 - 1
_KEYS: Final = {"source", "line", "reason", "text"}
_LONGEST_LINE: Final = 1024 * 1024
"""Bytes; an object of ours is shorter."""
_NAMED: Final = 3
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
"""What differs between lines that are rejected for the same reason."""


def insert(
    session: Session, source: int, start_at: int, run: int, rejected: Sequence[Rejected]
) -> None:
    """Keep the rejected lines of a chunk, in its transaction."""
    for part in parts(rejected, _PER_STATEMENT):
        args: list[object] = []
        for one in part:
            args += source, start_at, one.line, run, one.reason, one.text
        values = ", ".join(["(%s, %s, %s, %s, %s, %s)"] * len(part))
        session.execute(
            "INSERT INTO backfill_reject (source, start_at, line, run, reason, text)"
            f" VALUES {values}",
            args,
        )


def take_back(session: Session, source: int, line: int, begins_at: int, before: int) -> None:
    """Forget that an unfinished record was rejected, or lines of it: more of it has come, and it is
    looked at again.

    Args:
        line: the number of its first line.
        begins_at: where it begins.
        before: where the chunk begins with which it goes on.
    """
    session.execute(
        # By the chunks since the one in which it begins.
        "DELETE FROM backfill_reject WHERE source = %s AND line >= %s AND start_at < %s"
        " AND start_at >= (SELECT MAX(c.start_at) FROM backfill_chunk AS c"
        " WHERE c.source = %s AND c.start_at <= %s)",
        (source, line, before, source, begins_at),
    )


def number(session: Session, run: int, source: int | None = None, *, most: int = _ALL) -> int:
    """How many rejected lines are kept of a run, or of one source by it; counted up to ``most``."""
    where, args = "run = %s", [run]
    if source is not None:
        where, args = f"{where} AND source = %s", [run, source]
    ((found,),) = session.query(
        f"SELECT COUNT(*) FROM (SELECT 1 FROM backfill_reject WHERE {where} LIMIT %s) AS kept",
        (*args, most),
    )
    return int(found)


def named(source: str, rejected: Iterable[Rejected]) -> Iterable[RejectedLine]:
    """Rejected lines as they are listed."""
    for one in rejected:
        yield RejectedLine(source=source, line=one.line, reason=one.reason, text=one.text)


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
        path: where; None: a file that is named by the run, nowhere if it is a dry one.
        run: by which they are listed, too; None: a dry run, of which nothing is kept.
    """

    def __init__(self, path: Path | None, run: int | None) -> None:
        self._path = path
        self._run = run
        self._file: IO[str] | None = None
        self._error: OSError | None = None
        self._lines = Counter[str]()
        self._first: dict[str, RejectedLine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def write(self, rejected: Iterable[RejectedLine]) -> None:
        """Write some more, unless it has failed, and note why they were rejected."""
        for one in rejected:
            reason = _QUOTED.sub("…", one.reason)
            self._lines[reason] += 1
            self._first.setdefault(reason, one)
            if (self._path or self._run) and self._error is None:
                self._write(one)

    def _write(self, one: RejectedLine) -> None:
        try:
            if self._file is None:
                self._file = self._opened()
            text = one.text.decode("utf-8", "backslashreplace")
            about = {"source": one.source, "line": one.line, "reason": one.reason, "text": text}
            self._file.write(json.dumps(about, ensure_ascii=False) + "\n")
        except OSError as error:
            self._error = error

    def notices(self) -> list[str]:
        """For people, once all are written: why they were rejected, and where they are, or why they
        are not there.
        """
        return self._why() + self._where()

    def _why(self) -> list[str]:
        """Why they were rejected; nothing if none was."""
        total = self._lines.total()
        if not total:
            return []
        said = []
        for reason, lines in self._lines.most_common(_NAMED):
            first = self._first[reason]
            where = f"line {first.line} of {first.source}"
            if total > 1:
                where = f"{lines:,}, such as {where}" if lines > 1 else f"1, {where}"
            said.append(f"{first.reason} ({where})")
        if more := len(self._lines) - len(said):
            said.append(f"and {more:,} more reasons")
        lines_were = "1 line was" if total == 1 else f"{total:,} lines were"
        return [f"{lines_were} rejected: {'; '.join(said)}"]

    def _where(self) -> list[str]:
        self._close()
        if error := self._error:
            why = error.strerror or type(error).__name__
            instead = "name another file"
            if self._run:
                instead = f"`countersink backfills show {self._run} --rejects` prints them"
            return [f"the rejected lines could not be written to {self._path} ({why}): {instead}"]
        return [] if self._file is None else [f"the rejected lines are in {self._path}"]

    def _opened(self) -> IO[str]:
        if self._path is not None:
            return open(self._path, "w", encoding="utf-8", opener=_private)
        # A name that nobody has asked for: no file may go for it.
        for again in chain([""], map("-{}".format, count(2))):
            self._path = Path(f"backfill-{self._run}-rejects{again}.ndjson")
            with contextlib.suppress(FileExistsError):
                return open(self._path, "x", encoding="utf-8", opener=_private)
        raise AssertionError("numbers do not end")

    def _close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._error = self._error or error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # lines have addresses, and queries with secrets

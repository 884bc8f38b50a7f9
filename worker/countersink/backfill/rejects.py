"""Rejected lines of a backfill: the file of ``--rejects``, the first ones that are kept with their
run (``KEPT``), and the sentences that sum up reasons; how many end a run: ``options.py`` and
``count/transaction.py``.

The file has a JSON object a line. Writing it destroys nothing that is not such a file. It is
written at the end of the run, from a :class:`RejectsSpool` to which the lines of each chunk go
before its COMMIT: so it has those of all chunks that were committed, whoever died after that.
"""

import contextlib
import fcntl
import json
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class RejectsSpool:
    """Where the rejected lines of all chunks that the processes of a run are about to commit stay
    until its end.

    Each line of it is what one transaction wrote; of those for one chunk the last one counts, if
    any: they wait for each other.

    Attributes:
        path: of it.
        file: to be written in the end.
    """

    path: str
    file: Path

    def add(self, source: int, start_at: int, rejected: Sequence[RejectedLine]) -> None:
        """Write down those of a chunk, in its transaction, after it has the chunk locked.

        Raises:
            BackfillError: there is no room for them.
        """
        # Behind a line of its own: the one before may have been cut off as its process was killed.
        data = json.dumps([source, start_at, *map(asdict, rejected)]).encode()
        with _room(), open(self.path, "ab") as spool:
            fcntl.flock(spool, fcntl.LOCK_EX)
            spool.write(b"\n" + data + b"\n")

    def save(self, chunks: Iterable[tuple[int, int]], more: Iterable[RejectedLine] = ()) -> str:
        """Write the file: the rejected lines of chunks, in order, and more of them; a sentence on
        it. If it cannot be written, they go to another one.

        Args:
            chunks: the source and the beginning of each.
            more: without a chunk that was committed.

        Raises:
            BackfillError: there is no room for that either.
        """
        lines = [*chunks], [*more]
        try:
            self._save(self.file, *lines)
        except OSError as error:
            with _room():
                handle, instead = tempfile.mkstemp(prefix=_PREFIX, suffix=".ndjson")
                os.close(handle)
                self._save(Path(instead), *lines)
            why = f"could not be written to {self.file} ({trouble(error)}): they"
            return f"the rejected lines {why} are in {instead}"
        return f"the rejected lines are in {self.file}"

    def _save(
        self, path: Path, chunks: Iterable[tuple[int, int]], more: Iterable[RejectedLine]
    ) -> None:
        places: dict[tuple[int, int], int] = {}
        with (
            open(path, "w", encoding="utf-8", opener=_private) as file,
            open(self.path, "rb") as spool,
        ):
            while line := spool.readline():
                with contextlib.suppress(ValueError):
                    source, start_at, *_ = json.loads(line)
                    places[source, start_at] = spool.tell() - len(line)
            for place in filter(None, map(places.get, chunks)):  # none is at 0
                spool.seek(place)
                _, _, *found = json.loads(spool.readline())
                for one in found:
                    file.write(json.dumps(one, ensure_ascii=False) + "\n")
            for each in more:
                file.write(json.dumps(asdict(each), ensure_ascii=False) + "\n")


@contextlib.contextmanager
def spooled(file: Path | None) -> Iterator[RejectsSpool | None]:
    """A spool for a file, as long as this lasts; None: no file is asked for.

    Raises:
        BackfillError: there is no room for it.
    """
    if file is None:
        yield None
        return
    with _room():
        handle, path = tempfile.mkstemp(prefix=_PREFIX)
        os.close(handle)
    try:
        yield RejectsSpool(path, file)
    finally:
        os.unlink(path)


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

"""The position file of ``tail`` on disk, and where a run begins (``--begin start/end/file/redis``):
what is done or refused when Redis was emptied or restored, up to which age lines are sent again
then (``_AGAIN_MS``), with the texts.

Redis holds the position with the counts; this file says what that position was. By it ``tail``
knows a Redis that was emptied, replaced or restored, and can send what it had sent before again,
cut and named as the first time.

A line of JSON says whose it is, ``{"v": 1, "source": …}``; each further line is a position, in the
order in which Redis stored them, without a gap: the fields of ``position.py``. A position is
appended, and synchronized to disk, after Redis has stored it. A torn last line is cut off; when
there are many lines, the file is replaced by one with the newest.
"""

import fcntl
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import Final, Literal

from countersink.logs import Counts
from countersink.logs.errors import LogError, PositionError, UnknownFormat
from countersink.logs.file import BOM
from countersink.logs.lines import LONGEST, Cutter, Hits, Reporter, Summary
from countersink.logs.position import Ledger, Position
from countersink.logs.rotation import LogPath, find
from countersink.logs.sender import LogSender

Begin = Literal["start", "end", "file", "redis"]
BEGINS: Final[tuple[Begin, ...]] = ("start", "end", "file", "redis")
_AGAIN_MS: Final = 2 * 24 * 3600 * 1000
"""What was sent longer ago is not sent again where nobody knows what Redis had lost of it: guards,
which tell that it was applied, are kept for three days."""
VERSION: Final = 1
KEPT: Final = 4096
"""Positions that are left when the file is replaced; that happens at twice as many."""
_ATTEMPTS: Final = 20


class PositionFile:
    """An open position file, locked: no other process uses it meanwhile.

    Args:
        path: where it is, or will be.
        source: what the position belongs to: the text that names the log and how it is counted.

    Attributes:
        path: as given.
        chain: the positions in it, each one the next of the one before; oldest first.

    Raises:
        OSError: it cannot be opened, locked or written to.
        PositionError: another tail uses it, it belongs to another source, or it is damaged.
    """

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self._head = json.dumps({"v": VERSION, "source": source}).encode() + b"\n"
        self._fd = self._locked()
        self._lines = 0
        self.chain: list[Position] = []
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    @property
    def last(self) -> Position | None:
        """The newest position that Redis has stored; None if it never did."""
        return self.chain[-1] if self.chain and self.chain[-1].token else None

    def append(self, position: Position) -> None:
        """Note a position that Redis has stored.

        Raises:
            PositionError: it cannot be written.
        """
        if self.chain and self.chain[-1].token != position.previous:
            self.restart(position)
            return
        self.chain.append(position)
        try:
            if self._lines >= 2 * KEPT:
                self._replace(self.chain[-KEPT:])
            else:
                _write(self._fd, _line(position))
                self._lines += 1
                os.fdatasync(self._fd)
        except OSError as error:
            raise self._failed(error) from error

    def restart(self, position: Position) -> None:
        """Forget all others: ``position`` is where it begins.

        Raises:
            PositionError: it cannot be written.
        """
        try:
            self._replace([position])
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close and unlock it; once more does no harm."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _locked(self) -> int:
        for _ in range(_ATTEMPTS):
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), os.stat(self.path)):
                    return fd
            except BlockingIOError:
                os.close(fd)
                break
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # it was replaced meanwhile
        raise PositionError(
            f"another countersink tail uses the position file {self.path}; stop one of them"
        )

    def _read(self) -> None:
        with open(self.path, "rb") as file:
            data = file.read()
        end = data.rfind(b"\n") + 1
        if end == 0:
            self._replace([])
            return
        head, *lines = data[:end].splitlines(keepends=True)
        if head != self._head:
            raise PositionError(
                f"{self.path} is not the position file of this log, counter and kind of key: "
                "each has a file of its own"
            )
        try:
            self.chain = [Position(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise PositionError(
                f"the position file {self.path} is damaged ({error}): delete it, and say with "
                "--begin where to go on"
            ) from error
        self._lines = len(lines)
        if end < len(data):
            os.ftruncate(self._fd, end)

    def _replace(self, chain: Sequence[Position]) -> None:
        other = f"{self.path}.new"
        with suppress(FileNotFoundError):
            os.unlink(other)
        fd = os.open(other, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_APPEND, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(fd, self._head + b"".join(map(_line, chain)))
            os.fsync(fd)
            os.rename(other, self.path)
        except BaseException:
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd = fd
        self.chain = list(chain)
        self._lines = len(self.chain)
        directory = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _failed(self, error: OSError) -> PositionError:
        return PositionError(
            f"the position cannot be noted in {self.path}: {error.strerror}. Nothing is lost: "
            "the next run goes on from there"
        )


def default_path(source: str) -> str:
    """Where the position file of ``source`` lies if nobody says otherwise: in the directory for
    state that systemd gives a service, else in the user's (XDG); made if it is missing.

    Raises:
        OSError: it cannot be made.
    """
    service = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    directory = os.path.join(service or os.path.join(state, "countersink"), "tail")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    return os.path.join(directory, file_name(source))


def file_name(source: str) -> str:
    """The name of the position file of ``source`` in a directory for several."""
    return sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:32] + ".jsonl"


def _line(position: Position) -> bytes:
    return json.dumps(asdict(position)).encode() + b"\n"


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


@dataclass(frozen=True, slots=True)
class Resumption:
    """How a run over a log finds the position to go on from.

    ==========================================  ==================================================
    Redis                                       what is done
    ==========================================  ==================================================
    has the file's newest position              it goes on there
    has a later one                             the same; the file was not written to, or is
                                                another's
    has an earlier one, which the file knows    it was restored: what came after is sent again as
                                                it was
    has one of which the file knows nothing     refused
    has none, but the file has                  refused: it was emptied, or is another one
    ==========================================  ==================================================

    What is sent again has the ids and times that it had, since it is cut as it was: workers leave
    out what they applied, and dead-letter what is too old for them to tell.

    Attributes:
        sender, ledger: where rows and position go.
        hits: their parser is of the kind of key wanted, their reporter is told what is sent again.
        log: it.
        file: the position file; None where there is none.
    """

    sender: LogSender
    ledger: Ledger
    hits: Hits
    log: LogPath
    file: PositionFile | None

    def position(self, begin: Begin | None) -> Position:
        """The position to go on from, which Redis and the file agree on afterwards; one without a
        device for a log that is to be counted from its start (or end).

        Raises:
            PositionError: it cannot be told, and ``begin`` does not say it; or it is damaged.
            StreamError, TailError: as of :class:`LogSender`.
        """
        known = self.sender.patiently(self.ledger.read)
        file = self.file
        last = file.last if file else None
        if begin in ("start", "end") or (known is None and last is None):
            first = Position.first(known.token if known else "")
            if file:
                file.restart(first)
            return first
        if file is None or last is None or (known and begin == "redis"):
            assert known is not None
            if file:
                file.restart(known)
            return known
        return self._agreed(file, last, known, begin)

    def _agreed(
        self, file: PositionFile, last: Position, known: Position | None, begin: Begin | None
    ) -> Position:
        if known and (known.token == last.token or _is_later(known, last)):
            if known.token != last.token:
                file.append(known)
            return known
        place = next(
            (i for i, each in enumerate(file.chain) if known and each.token == known.token), None
        )
        if known and place is not None:
            self.hits.reporter.notice(
                f"Redis is at line {known.line}, and was at line {last.line} before: it was "
                "restored or has lost its last moments. What came after is sent again, as it was"
            )
            return self._repeat(file.chain[place:], known.token, all_of_it=begin != "file")
        if known is None and (last.file, last.offset, last.unterminated) == (0, 0, False):
            return self._repeat([last], "", all_of_it=False)  # nothing was counted yet
        if begin != "file":
            raise PositionError(_refusal(file, last, known))
        oldest = self.sender.now() - _AGAIN_MS
        late = next((i for i, each in enumerate(file.chain[1:]) if each.at >= oldest), -1)
        return self._repeat(file.chain[late:], known.token if known else "", all_of_it=False)

    def _repeat(self, chain: Sequence[Position], token: str, *, all_of_it: bool) -> Position:
        """Store again what was stored between the positions of ``chain``, and its last one."""
        lost = ""
        for old, new in pairwise(chain):
            try:
                counts = self._counts(old, new)
            except LogError as error:
                if all_of_it:
                    raise PositionError(
                        f"what was counted before cannot be sent again ({error}): "
                        "--begin file goes on behind it"
                    ) from error
                lost = str(error)
                continue
            begin = old if old.file == new.file else old.next_file()
            self.sender.move(self.ledger, replace(begin, token=token), new, counts, again=True)
            token = new.token
        if lost:
            self.hits.reporter.notice(
                f"not all that was counted before could be sent again: {lost}"
            )
        last = chain[-1]
        if token != last.token:
            self.sender.move(self.ledger, replace(last, token=token), last, {}, again=True)
        return last

    def _counts(self, old: Position, new: Position) -> Counts:
        """The hits between two positions, read again.

        Raises:
            LogError: the file is gone, or holds other lines.
        """
        hits = Hits(self.hits.parser, Reporter(), Summary())
        if new.prefix_bytes == 0:
            return hits.counts
        begin = old if old.file == new.file else old.next_file()
        file = find(self.log, new)
        if file is None:
            raise LogError(f"the file that had line {new.line} is gone")
        with file:
            self.hits.parser.begin(file, begin.offset, counted=begin.unterminated)
            cutter = Cutter(begin.offset, begin.line, counted=begin.unterminated)
            while cutter.reach < new.offset:
                size = min(cutter.wanted, new.offset - cutter.reach)
                hits.count(file.path, cutter.feed(file.read(size, cutter.reach)))
            if cutter.offset < new.offset:
                hits.count(file.path, cutter.finish())
            rest = b""
            if new.unterminated and not cutter.counted:
                rest = file.read(LONGEST, new.offset).partition(b"\n")[0]
                rest = rest if new.offset else rest.removeprefix(BOM)
            try:
                hits.end(rest)
            except UnknownFormat as error:
                raise LogError(f"{file.path}: {error}") from error
            hits.count_unterminated(file.path, rest, new.line + 1, again=True)
            if (cutter.offset, cutter.line) != (new.offset, new.line):
                raise LogError(f"{file.path} was changed before its line {new.line}")
        return hits.counts


def _is_later(known: Position, last: Position) -> bool:
    if known.series == last.series:
        return (known.file, known.offset, known.unterminated) >= (
            last.file,
            last.offset,
            last.unterminated,
        )
    return known.at >= last.at


def _refusal(file: PositionFile, last: Position, known: Position | None) -> str:
    redis = (
        f"Redis is at line {known.line} of it, which that file does not know: it was restored, "
        "or is another one. --begin redis goes on there, and counts again what came after"
        if known
        else "Redis knows nothing of it: it was emptied, or is another one"
    )
    return (
        f"this log was counted up to line {last.line}, as {file.path} says, but {redis}. "
        "--begin file goes on where it was, and sends what it sent last again, which counts once; "
        "--begin start counts the whole log, --begin end what comes from now on"
    )

"""The position of ``tail``: which file of a log is being read and how far (``Position``), the
position file on disk (``PositionFile``), and the mark in Redis (``LogMark``).

**The position file** is authoritative. Each batch of entries is appended to it and synchronized to
disk before it is sent, with the position after the batch. It holds lines of JSON::

    {"v": 1, "source": "page_views path /var/log/nginx/access.log", "instead_of": ""}
    {"series": …, "file": 0, "offset": 8190, …, "at": 1764288000000, "entries": [[id, rows, 12], …]}

**The mark** is one string in Redis, ``series file offset``, set by the script that adds a batch to
the queue. Batches behind the mark are sent again from the file, with their ids and times: workers
apply each id once. This covers a run that was killed between disk and Redis, and a Redis that lost
its last moments. A mark ahead of the file, or of another series, means that another tail has read
this log: :meth:`LogSender.resume` refuses. ``instead_of`` is the mark before ``--begin``.

======================  ==========================================================================
member of a batch       meaning
======================  ==========================================================================
``series``              random, new when a log is begun anew (``--begin``)
``file``                number of files of this log before this one, by rotation
``device``, ``inode``   of the file
``prefix_bytes``        how many of the file's first bytes ``prefix`` covers, up to 1,024 behind
                        the directives of a W3C log, which are alike in several files
``prefix``              their SHA-256 in hex; empty for none
``offset``              uncompressed bytes that have been counted
``line``                lines of this file that have been counted or rejected
``older``               the newest rotated file older than this one, as ``rotation.py`` writes it;
                        ``-`` if there was none
``older_at``            last write to that file or this one, on its disk's clock; Unix ns
``at``                  Unix ms on Redis's clock, as in the entries
``entries``             id, rows and number of increments of each
======================  ==========================================================================

A file is recognized by its prefix: unlike an inode, it survives copying and compressing, and is not
given to the next file. If a file was empty or does not exist any more, the files newer than
``older`` are counted.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from importlib.resources import files
from typing import Final, Literal, Self

import redis

from countersink.logs.errors import LogError, PositionError
from countersink.logs.file import LogFile
from countersink.stream.connection import mapped
from countersink.stream.entry import Sealed
from countersink.stream.names import note_use, partitions, stream_key, tail_key, used_partitions

VERSION: Final = 1
PREFIX_BYTES: Final = 1024
_HEAD: Final = 64 * 1024
_DIRECTIVES: Final = re.compile(rb"(?:\xef\xbb\xbf)?(?>(?:#[^\n]*+\n)*)")
NONE: Final = "-"
"""As ``older``: there was no older file."""
UNKNOWN: Final = "?"
"""As ``older``: the older file could not be read."""
FILE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a position file above which its newest half replaces it."""
_SCRIPT: Final = (files("countersink.logs") / "scripts" / "store.lua").read_text("utf-8")

Outcome = Literal["stored", "full", "other"]
"""``stored`` (also: by an earlier call), ``full`` (the stream), ``other`` (another mark found)."""
_OUTCOMES: Final[dict[str, Outcome]] = {"stored": "stored", "full": "full", "other": "other"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """A place in a log; see the module's table for the fields."""

    series: str
    file: int = 0
    device: int = 0
    inode: int = 0
    prefix_bytes: int = 0
    prefix: str = ""
    offset: int = 0
    line: int = 0
    older: str = ""
    older_at: int = 0

    @classmethod
    def first(cls) -> Self:
        """The beginning of a log that was never read, or is read anew."""
        return cls(series=os.urandom(16).hex())

    @property
    def mark(self) -> str:
        """The text of the mark in Redis."""
        return f"{self.series} {self.file} {self.offset}"

    def is_covered_by(self, mark: str) -> bool:
        """Whether ``mark`` is this position or a later one of the same series."""
        return mark.startswith(self.series) and _place(mark) >= (self.file, self.offset)

    def next_file(self) -> "Position":
        """The beginning of the file after this one."""
        return Position(series=self.series, file=self.file + 1)


def _place(mark: str) -> tuple[int, int]:
    _, file, offset = mark.split(" ")
    return int(file), int(offset)


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Entries, with the position after them; ``at`` is in Unix ms on Redis's clock."""

    position: Position
    at: int
    entries: Sequence[Sealed]


class LogMark:
    """The mark of one source in Redis, and the stream of its entries. ``known`` is the mark's text
    as last read or set, empty for none; ``source`` names the log and how it is counted.

    Raises:
        StreamError: Redis did not answer.
    """

    def __init__(self, client: redis.Redis, source: str) -> None:
        self._client = client
        self._script = client.register_script(_SCRIPT)
        # A source keeps the partition of its mark, also when the number of partitions changes.
        used = used_partitions(client)
        with mapped():
            pipe = client.pipeline(transaction=False)
            for partition in used:
                pipe.exists(tail_key(partition, source))
            there = pipe.execute()
        # By the name alone: two readers must choose one partition while hash slots move.
        home = int(tail_key(0, source)[-8:], 16) * partitions(client) >> 32
        self.partition: int = used[there.index(1)] if 1 in there else home
        note_use(client, self.partition)
        self.key = tail_key(self.partition, source)
        self.stream = stream_key(self.partition)
        self.known = ""

    def read(self) -> str:
        """The mark's text now, empty for none; StreamError: Redis did not answer."""
        with mapped():
            self.known = _text(self._client.get(self.key) or "")
        return self.known

    def store(self, batch: LogBatch, full: int) -> Outcome:
        """Add a batch to the stream and set the mark, both or neither; the call may be repeated.

        Args:
            batch: the lines read behind the known mark.
            full: entries of a full stream.

        Returns:
            ``other``: neither was done, and :attr:`known` is the mark that was found.

        Raises:
            StreamError: Redis did not answer; the outcome is unknown.
        """
        arguments: list[str | bytes | int] = [self.known, batch.position.mark, full]
        for entry in batch.entries:
            fields = entry.fields()
            arguments.append(2 * len(fields))
            for name, value in fields.items():
                arguments += name, value
        with mapped():
            outcome, mark = self._script(keys=[self.key, self.stream], args=arguments)
        self.known = _text(mark)
        return _OUTCOMES[_text(outcome)]


class PositionFile:
    """An open position file, locked for this process by a lock file beside it, since the position
    file is replaced now and then.

    Attributes:
        position: the newest; None in a new file.
        instead_of: the mark before the log was begun; empty: none.

    Raises:
        OSError: the file cannot be opened, locked or written to.
        PositionError: another tail uses it, it belongs to another source, or it is damaged.
    """

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.position: Position | None = None
        self.instead_of = ""
        self._source = source
        self._fd = -1
        self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._open()
        except BlockingIOError:
            self.close()
            raise PositionError(
                f"another countersink tail uses the position file {path}; stop one of them"
            ) from None
        except BaseException:
            self.close()
            raise

    def batches(self) -> Iterator[LogBatch]:
        """Batches of the file, oldest first; PositionError: the file is damaged."""
        with open(self.path, "rb") as file:
            file.readline()
            try:
                for line in file:
                    yield _batch(line)
            except (ValueError, TypeError, KeyError) as error:
                raise PositionError(
                    f"the position file {self.path} is damaged ({error}): delete it, and give by "
                    "--begin where to go on"
                ) from error

    def can_resend_from(self, mark: str) -> bool:
        """Whether the file has all batches behind a mark: there is no mark, or it is of one of the
        batches, or lies before them. A mark between two batches is another reader's.
        """
        if mark in ("", self.instead_of):
            return True
        positions = [batch.position for batch in self.batches()]
        return any(each.mark == mark for each in positions) or (
            mark.startswith(positions[0].series) and not positions[0].is_covered_by(mark)
        )

    def append(self, batch: LogBatch, known: str) -> None:
        """Write a batch to disk; a batch of another series begins the file anew.

        ``known`` is the mark in Redis.

        Raises:
            PositionError: the batch cannot be written.
        """
        line = _line(batch)
        begun_anew = self.position is None or self.position.series != batch.position.series
        try:
            if begun_anew:
                self.instead_of = known
                self._replace(line)
            elif self._size + len(line) > FILE_BYTES:
                self._replace(self._newest(FILE_BYTES // 2) + line)
            else:
                _write(self._fd, line)
                self._size += len(line)
                os.fdatasync(self._fd)
        except OSError as error:
            raise PositionError(
                f"the position cannot be written to {self.path}: {error.strerror}. Nothing is lost:"
                " the next run goes on from the last position"
            ) from error
        self.position = batch.position

    def close(self) -> None:
        """Close and unlock the file; closing twice is harmless."""
        for fd in (self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1

    def _open(self) -> None:
        self._fd = self._opened()
        with open(self.path, "rb") as file:
            head = file.readline()
            if not head.endswith(b"\n"):
                self._replace(b"")
                return
            try:
                found = json.loads(head)
                self.instead_of = found["instead_of"]
            except (ValueError, TypeError, KeyError):
                found = {}
            if (found.get("v"), found.get("source")) != (VERSION, self._source):
                raise PositionError(
                    f"{self.path} is not the position file of this log, counter and kind of key: "
                    "each has a file of its own"
                )
            self._size = len(head)
            for line in file:
                if line.endswith(b"\n"):
                    self._size += len(line)
        os.ftruncate(self._fd, self._size)  # a torn last line
        for batch in self.batches():
            self.position = batch.position

    def _opened(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)

    def _newest(self, size: int) -> bytes:
        """Complete lines of the last ``size`` bytes."""
        with open(self.path, "rb") as file:
            file.seek(self._size - size)
            file.readline()
            return file.read()

    def _replace(self, lines: bytes) -> None:
        """Put a new file with these lines in place of the file."""
        head = {"v": VERSION, "source": self._source, "instead_of": self.instead_of}
        data = json.dumps(head).encode() + b"\n" + lines
        other = f"{self.path}.new"
        with open(other, "wb", opener=partial(os.open, mode=0o600)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(other, self.path)
        os.close(self._fd)
        self._fd = self._opened()
        self._size = len(data)
        directory = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def default_path(source: str) -> str:
    """The default path of the position file of ``source``, in the state directory of a systemd
    service, else of the user (XDG); the directory is made if missing (OSError: it cannot be made).
    """
    service = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    directory = os.path.join(service or os.path.join(state, "countersink"), "tail")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    return os.path.join(directory, file_name(source))


def file_name(source: str) -> str:
    """The name of the position file of ``source`` in a directory of several."""
    return sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:32] + ".jsonl"


def _line(batch: LogBatch) -> bytes:
    entries = [[each.id, each.rows.decode(), each.increments] for each in batch.entries]
    return (
        json.dumps({**asdict(batch.position), "at": batch.at, "entries": entries}).encode() + b"\n"
    )


def _batch(line: bytes) -> LogBatch:
    known = json.loads(line)
    at = known.pop("at")
    entries = [
        Sealed(id=id, at=at, rows=rows.encode(), increments=increments)
        for id, rows, increments in known.pop("entries")
    ]
    return LogBatch(Position(**known), at, entries)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def shared_bytes(head: bytes) -> int:
    """Bytes of the W3C directives at a file's beginning, which other files have as well."""
    found = _DIRECTIVES.match(head)
    return found.end() if found else 0


def known_head(data: bytes) -> bytes:
    """The bytes that identify a file, of its first bytes."""
    return data[: shared_bytes(data) + PREFIX_BYTES]


def head_of(file: LogFile) -> bytes:
    """The bytes that identify a file.

    Raises:
        LogError: the file cannot be read, or begins with too many directives.
    """
    data = file.read(_HEAD, 0)
    if shared_bytes(data) + PREFIX_BYTES > len(data) >= _HEAD:
        raise LogError(
            f"{file.path} begins with 64 KiB of lines with #, and cannot be recognized after a"
            " rotation: remove these lines"
        )
    return known_head(data)


def prefix_of(head: bytes) -> str:
    """SHA-256, in hex, of the first bytes of a file; empty for none."""
    return sha256(head).hexdigest() if head else ""


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

"""The position of ``tail``: which file of a log is being read and how far (``Position``), the
position file on disk (``PositionFile``), and the mark in Redis (``LogMark``).

**The position file** is authoritative. A log batch is the entries of some lines, together with the
position after these lines. Before the entries are sent, the batch is appended to the position file
and synchronized to disk. The file has lines of JSON: first a head, then a line for each batch::

    {"v": 1, "source": "page_views path /var/log/nginx/access.log", "instead_of": ""}
    {"series": …, "file": 0, "offset": 8190, …, "at": 1764288000000, "entries": [[id, rows, 12], …]}

**The mark** is a string in Redis, ``series file offset`` of a position. The script that adds a
batch to the queue also sets the mark to the batch's position. The next run sends batches after the
mark again, with the same ids and times, and workers apply each id once. So nothing is lost if a run
is killed before it has sent its last batch, or if Redis loses its newest data. A mark after the
file's last position, or of another series, shows that another tail has read this log: then
:meth:`LogSender.resume` raises an error. ``instead_of`` is the mark in Redis before ``--begin``.

======================  ==========================================================================
member of a batch       meaning
======================  ==========================================================================
``series``              random; new when counting begins anew (``--begin``)
``file``                number of files of this log that were read before this one, by rotation
``device``, ``inode``   those of the file
``prefix_bytes``        number of first bytes of the file that ``prefix`` covers: the ``#`` lines of
                        a W3C log, which may be the same in many files, and 1,024 bytes or less
``prefix``              SHA-256 of these bytes in hex; empty for none
``offset``              number of uncompressed bytes of the file before the next line to be read
``line``                number of lines of the file up to ``offset``, counted or not
``older``               the newest older rotated file with lines, as ``rotation.py`` writes it;
                        ``-`` for none, ``?`` if it could not be read; empty if not looked for yet
``older_at``            Unix ns of the last write to this or an older file, on their disk's clock
``at``                  Unix ms on Redis's clock, as in the entries
``entries``             id, rows and number of increments of each entry
======================  ==========================================================================

A file is recognized by its prefix. Its copies have the same prefix, compressed or not. If the file
was empty or does not exist any more, the files newer than ``older`` are counted.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
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
"""The value of ``older`` where there was no older file."""
UNKNOWN: Final = "?"
"""The value of ``older`` where the older file could not be read."""
FILE_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of a position file; a file that would grow larger is replaced by its newest half."""
_SCRIPT: Final = (files("countersink.logs") / "scripts" / "store.lua").read_text("utf-8")

Outcome = Literal["stored", "full", "other"]
"""``stored`` (now or earlier), ``full`` (the stream is), ``other`` (Redis has another mark)."""
_OUTCOMES: Final[dict[str, Outcome]] = {"stored": "stored", "full": "full", "other": "other"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """A position in a file of a log; the module's docstring has a table of the fields."""

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
        """Make the position at the beginning of a log that was never read, or is read anew."""
        return cls(series=os.urandom(16).hex())

    @property
    def mark(self) -> str:
        """The text of the mark in Redis for this position."""
        return f"{self.series} {self.file} {self.offset}"

    def is_covered_by(self, mark: str) -> bool:
        """Return whether ``mark`` is of this or a later position of its series; '' gives False."""
        return mark.startswith(self.series) and _place(mark) >= (self.file, self.offset)

    def next_file(self) -> "Position":
        """Make the position at the beginning of the log's next file."""
        return Position(series=self.series, file=self.file + 1)


def _place(mark: str) -> tuple[int, int]:
    _, file, offset = mark.split(" ")
    return int(file), int(offset)


@dataclass(frozen=True, slots=True)
class LogBatch:
    """The entries of some lines, the position after them, and ``at``, when entries were made."""

    position: Position
    at: int
    entries: Sequence[Sealed]


class LogMark:
    """The mark of a log in Redis: the position up to which the log's entries are in ``stream``.
    ``source`` names the log and how it is counted. ``known`` is the mark that :meth:`read` or
    :meth:`store` last found or set: '' before the first call, or for no mark. A new object asks
    Redis which stream belongs to the log. It raises StreamError if Redis is away or refuses."""

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
        """Return the mark in Redis, '' for no mark, and keep it as :attr:`known`. Raises
        StreamError if Redis is away or refuses."""
        with mapped():
            self.known = _text(self._client.get(self.key) or "")
        return self.known

    def store(self, batch: LogBatch, full: int) -> Outcome:
        """Add a log batch to the stream and set the log's mark to its position; or do neither.

        Args:
            batch: the entries of the lines after the mark :attr:`known`.
            full: the number of entries at which a stream is full.

        Returns:
            ``stored``, now or by an earlier call (then nothing is added); ``full`` if the stream is
            full and the batch has entries; or ``other`` if Redis has another mark than
            :attr:`known`. Afterwards ``known`` is the mark in Redis.

        Raises:
            StreamError: Redis did not answer, so that the outcome is unknown; or Redis refuses.
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
    """An open position file, made if it is missing. A lock on ``<path>.lock`` reserves it.

    Attributes:
        position: the newest position in the file; None if it has no batch.
        instead_of: the mark that Redis had before the file was begun; '' for no mark.

    Raises:
        OSError: the file cannot be opened, locked or written to.
        PositionError: another tail uses the file, or it is damaged or belongs to another source.
    """

    def __init__(self, path: str, source: str) -> None:
        self.path = path = os.path.realpath(path)  # a link stays one
        self.position: Position | None = None
        self.instead_of = ""
        self._source = source
        self._fd = -1
        if os.path.exists(path) and not os.path.isfile(path):
            raise PositionError(f"{path} is not a regular file: name another position file")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock = os.open(f"{path}.lock", flags, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._open()
        except BlockingIOError:
            self.close()
            message = f"another countersink tail uses the position file {path}; stop one of them"
            raise PositionError(message) from None
        except BaseException:
            self.close()
            raise

    def batches(self) -> Iterator[LogBatch]:
        """Yield the log batches in the file, oldest first. Raises PositionError if damaged."""
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
        """Return whether the log batches after ``mark`` can be sent again from this file, which
        must have batches. True if ``mark`` is '' or :attr:`instead_of`, belongs to a batch, or lies
        before all batches of its series. False for other marks, which another reader has set."""
        if mark in ("", self.instead_of):
            return True
        positions = [batch.position for batch in self.batches()]
        return any(each.mark == mark for each in positions) or (
            mark.startswith(positions[0].series) and not positions[0].is_covered_by(mark)
        )

    def append(self, batch: LogBatch, known: str) -> None:
        """Append a log batch to the file on disk. The first batch, or one of another series, begins
        a new file, and ``known``, the mark in Redis, becomes its :attr:`instead_of`. If the file
        would exceed 16 MiB, its older half is dropped.

        Raises:
            PositionError: the batch cannot be written."""
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
            if not head:
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
        """Return the whole lines (batches) in the last ``size`` bytes, to keep in a new file."""
        with open(self.path, "rb") as file:
            file.seek(self._size - size)
            file.readline()
            return file.read()

    def _replace(self, lines: bytes) -> None:
        """Replace the file atomically by a new one: a head and ``lines``, synchronized to disk."""
        head = {"v": VERSION, "source": self._source, "instead_of": self.instead_of}
        data = json.dumps(head).encode() + b"\n" + lines
        other = f"{self.path}.new"
        with suppress(FileNotFoundError):
            os.unlink(other)
        with open(other, "xb", opener=partial(os.open, mode=0o600)) as file:
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
    """Return the default path of the position file for ``source``, in the state directory of the
    systemd service, or else of the user (XDG). Make the directory. Raises OSError if that fails."""
    service = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    directory = os.path.join(service or os.path.join(state, "countersink"), "tail")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    return os.path.join(directory, file_name(source))


def file_name(source: str) -> str:
    """Return the name of the position file for ``source``, different for each source."""
    return sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:32] + ".jsonl"


def _line(batch: LogBatch) -> bytes:
    entries = [[each.id, each.rows.decode(), each.increments] for each in batch.entries]
    members = {**asdict(batch.position), "at": batch.at, "entries": entries}
    return json.dumps(members).encode() + b"\n"


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
    """Return how many bytes of ``head`` are a BOM and W3C directives (``#`` lines) at its start."""
    found = _DIRECTIVES.match(head)
    return found.end() if found else 0


def known_head(data: bytes) -> bytes:
    """Return ``data`` up to 1,024 bytes after its directives: the bytes that identify a file."""
    return data[: shared_bytes(data) + PREFIX_BYTES]


def head_of(file: LogFile) -> bytes:
    """Read the bytes that identify a file: W3C directives, and up to 1,024 bytes after them.

    Raises:
        LogError: the file cannot be read, or begins with about 64 KiB of directives.
    """
    data = file.read(_HEAD, 0)
    if shared_bytes(data) + PREFIX_BYTES > len(data) >= _HEAD:
        raise LogError(
            f"{file.path} begins with 64 KiB of lines with #, and cannot be recognized after a"
            " rotation: remove these lines"
        )
    return known_head(data)


def prefix_of(head: bytes) -> str:
    """Return the SHA-256, in hex, of a file's first bytes; '' for no bytes."""
    return sha256(head).hexdigest() if head else ""


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

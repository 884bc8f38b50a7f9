"""Lines of access logs. ``Cutter`` cuts bytes into numbered lines; a line longer than ``LONGEST``
is rejected, also by backfill. ``Parser`` turns lines into keys and minutes, or rejects them.
``Hits`` collects the hits of ``tail`` until they are stored, at the latest after
``ROWS_PER_STORE`` rows or ``LINES_PER_STORE`` lines.

A hit is a line that is counted. Its key is made by a template: a text with fields of the line in
it, such as ``{host}{path}``. Lines that do not fulfil the conditions (``--where``) are left out.
``formats/`` has the formats of lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.logs.errors import UnknownFormat
from countersink.logs.file import BOM, LogFile
from countersink.logs.formats import line_reader
from countersink.logs.formats.detection import AUTO, MOST_LINES, detect, undetected_reason
from countersink.logs.formats.reader import (
    Keys,
    LineReader,
    RecordBlock,
    RecordTally,
    Rejected,
    RejectingReader,
)
from countersink.logs.formats.records import JsonLines
from countersink.logs.formats.w3c import W3cLog
from countersink.logs.line import diagnosis
from countersink.logs.template import Condition
from countersink.logs.times import Clock, no_day
from countersink.runtime.dimensions import RowKey

Counts = dict[tuple[RowKey, int], int]
"""Number of hits by (key or dimensions, whole Unix minute)."""

_HEAD: Final = 64 * 1024
"""Number of bytes that are read at once to detect the format of a file."""


class Parser:
    """Parser of lines of access logs, for one key template. It caches what it has parsed, and is
    not thread-safe.

    Args:
        key: the key template, or the name of a field.
        where: the conditions; a line is counted only if all of them hold.
        dimensions: pairs of a dimension's name and the field with its value; ``key`` is '' then.
        visitor: the fields that together identify a visitor; without any, no visitor is counted.
        input_format: the name of the format; ``auto`` to detect it by the first lines.
        log_format: the format in the notation of the server's configuration, in place of
            ``input_format``.
        envelope: the kind of text around each line, such as ``syslog``. '' means that there is
            none; with the format ``auto``, '' means that it is detected by the first lines.
        time_zone: the IANA name of the zone of times that are written without one. With '', a
            format with such times is refused.

    Raises:
        ValueError: an argument cannot be used; the message says what to do.
    """

    def __init__(
        self,
        key: str = "path",
        where: Sequence[Condition] = (),
        *,
        dimensions: Sequence[tuple[str, str]] = (),
        visitor: Sequence[str] = (),
        input_format: str = AUTO,
        log_format: str = "",
        envelope: str = "",
        time_zone: str = "",
    ) -> None:
        if not (key or dimensions):
            raise ValueError("an empty key names no field: path, status, '{vhost}{path}' …")
        clock = Clock(time_zone=time_zone, begins=no_day, advises=False)
        self._reader_of = partial(
            line_reader,
            keys=Keys(key, where, dimensions=dimensions, visitor=visitor),
            json_lines=partial(JsonLines, clock=clock),
            log_format=log_format,
            time_zone=time_zone,
        )
        self._auto = input_format == AUTO and not log_format
        self._envelope = envelope
        self._detected = not self._auto
        self._reader: LineReader = RejectingReader(diagnosis)
        self._undetected = self._reader
        if self._detected:
            self._reader = self._reader_of(input_format, envelope=envelope)

    def begin(self, file: LogFile, offset: int) -> None:
        """Prepare to parse the lines of ``file`` from ``offset`` on. Callers do this before they
        parse the first of these lines. Unless the user gave the format, detect it by those of the
        file's first lines that are before ``offset``. In a W3C log, note the directives before
        ``offset``.

        Raises:
            UnknownFormat: the lines before ``offset`` are in several formats, or their format lacks
                a requested field or needs a time zone.
            LogError: the file cannot be read."""
        self._detected = not self._auto
        if isinstance(self._reader, W3cLog):
            # Unlike other formats, it depends on the directives of the file itself.
            self._reader = self._undetected if self._auto else self._reader_of("w3c")
        if self._auto:
            self._detect(_first_bytes(file, offset).split(b"\n")[:-1])
        self._reader.look_back(file.read, offset)

    @property
    def knows_format(self) -> bool:
        """Whether the parser has a format for its lines: the format that the user gave; or the one
        detected in the present file; or, until then, the format of the file before, except W3C,
        whose directives belong to each file.
        """
        return self._detected or self._reader is not self._undetected

    def detect_format(self, lines: Sequence[bytes], *, all: bool = False) -> bool:
        """Detect the format by the first lines of the source, unless the user gave it or it was
        detected in this file before.

        Args:
            lines: the first lines, without their newlines.
            all: whether these are all lines of the source.

        Returns:
            True if the lines can be passed to :meth:`count`: a format is known (it may be that of
            the file before); or ``lines`` are all lines of the source, or at least
            :data:`MOST_LINES`, and are blank. In the latter case there is no format yet, and later
            lines may show it. Otherwise False: the caller must call again with more lines.

        Raises:
            UnknownFormat: the lines are in several formats, or their format lacks a requested field
                or needs a time zone. Or no format is known, although ``lines`` are all lines of
                the source, or at least :data:`MOST_LINES`, and are not all blank."""
        if not self._detected:
            self._detect(lines)
        if self.knows_format:
            return True
        if not all and len(lines) < MOST_LINES:
            return False
        if reason := undetected_reason(lines):
            raise UnknownFormat(reason)
        return True

    def count(self, lines: Sequence[bytes], first: int, counts: Counts) -> list[Rejected]:
        """Add the hits of the lines to ``counts``, and return the rejected lines.

        Blank lines, the directives of a W3C log such as ``#Fields:``, and lines that the conditions
        leave out are neither counted nor rejected. NULs before a line, as in a truncated log, are
        ignored. If the file's format is not known yet, it is detected by these lines. If they do
        not show it, the format of the file before is used; if there is none, all are rejected,
        except blank lines.

        Args:
            lines: the lines, without their newlines.
            first: the number of the first line in the source.
            counts: the counts to which the hits are added.

        Raises:
            UnknownFormat: the format was not known, and the lines are in several formats, or their
                format lacks a requested field or needs a time zone.
        """
        if not self._detected:
            self._detect(lines)
        tally = RecordTally()
        bare = [line.lstrip(b"\0") for line in lines]
        self._reader.count(RecordBlock(range(first, first + len(bare)), bare, []), tally)
        for cell, amount in tally.counts.items():
            counts[cell] = counts.get(cell, 0) + amount
        return tally.rejected

    def _detect(self, lines: Sequence[bytes]) -> None:
        """Detect the format by ``lines``, and make its reader. If no line shows the format, the
        parser keeps its present reader: the reader of the file before, or one that rejects all.

        Raises:
            UnknownFormat: the lines are in several formats, or the format lacks a requested field
                or needs a time zone.
        """
        detected = detect(lines)
        if detected is None:
            return
        self._detected = True
        try:
            envelope = self._envelope or detected.envelope
            self._reader = self._reader_of(detected.input_format, envelope=envelope)
        except ValueError as error:
            raise UnknownFormat(str(error)) from None


def _first_bytes(file: LogFile, end: int) -> bytes:
    """Return the first bytes of a file: enough lines for :func:`detect`, but nothing after the
    offset ``end``; the last line may be incomplete. NULs at the beginning are left out: a log
    begins with NULs if it was truncated while a server wrote to it.
    """
    at, data = 0, b""
    while data.count(b"\n") < MOST_LINES:
        more = file.read(min(_HEAD, end - at), at)
        if not more:
            break
        at += len(more)
        data = (data + more).lstrip(b"\0")
    return data


LONGEST: Final = 1024 * 1024
"""Bytes of the longest line that is read, without its newline and NULs before it. A longer line is
rejected.
"""
TOO_LONG: Final = "the line is longer than 1 MiB"
BLOCK_BYTES: Final = 256 * 1024
"""Number of bytes that are read and cut into lines together; more only for a longer line."""
ROWS_PER_STORE: Final = 20_000
"""Number of distinct (key, minute) pairs at which hits are stored."""
LINES_PER_STORE: Final = 200_000
"""Number of lines after which hits are stored."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Successive complete lines of a file.

    Attributes:
        first: the number of the first of ``lines`` in the file, from 1.
        lines: the lines, without their newlines.
        rejected: a list of the line right before ``lines``, if it was too long to be read;
            otherwise an empty list.
    """

    first: int
    lines: list[bytes]
    rejected: list[Rejected]


class Cutter:
    """Cutter of a file's bytes into complete lines. Callers read the bytes, :attr:`read_size` from
    :attr:`read_offset` on, and pass them to :meth:`feed`. The arguments are the first values of the
    attributes; a caller that goes on within a file gives its position.

    Attributes:
        offset: the offset in the file at which the next line to return begins.
        line: the number of the last line that was returned or rejected, from 1; 0 before the first.
    """

    def __init__(self, offset: int = 0, line: int = 0) -> None:
        self.offset = offset
        self.line = line
        self._buffer = b""
        self._passed = 0  # bytes of the line at ``offset`` that are not in the buffer
        self._overlong = False

    @property
    def read_size(self) -> int:
        """Number of bytes to read next from the file."""
        return BLOCK_BYTES - len(self._buffer) % BLOCK_BYTES

    @property
    def read_offset(self) -> int:
        """Offset in the file from which to read the next bytes."""
        return self.offset + self._passed + len(self._buffer)

    def feed(self, data: bytes) -> LineBlock:
        """Take the next bytes of the file; return the lines that they complete, perhaps none."""
        buffer = self._buffer + data
        if self.offset == self._passed == 0 and buffer.startswith(BOM):
            self._passed = len(BOM)
            buffer = buffer[len(BOM) :]
        if buffer[:1] == b"\0" and not self._overlong:
            # In a log that was truncated under a server that does not append; may be gigabytes.
            stripped = buffer.lstrip(b"\0")
            self._passed += len(buffer) - len(stripped)
            buffer = stripped
        cut = buffer.rfind(b"\n") + 1
        first = self.line + 1
        if cut == 0:
            if self._overlong or len(buffer) > LONGEST:
                self._passed += len(buffer)
                self._overlong = True
                buffer = b""
            self._buffer = buffer
            return LineBlock(first, [], [])
        lines = buffer[: cut - 1].split(b"\n")
        self._buffer = buffer[cut:]
        self.offset += self._passed + cut
        self.line += len(lines)
        rejected: list[Rejected] = []
        if self._overlong or len(lines[0]) > LONGEST:
            rejected.append(Rejected(first, TOO_LONG))
            del lines[0]
            first += 1
        self._passed, self._overlong = 0, False
        return LineBlock(first, lines, rejected)

    def finish(self) -> LineBlock:
        """Return the bytes after the last newline as the last line; a block without lines if there
        are no such bytes. Callers do this at the end of the file, when no more bytes will come.
        """
        if self.read_offset == self.offset:
            return LineBlock(self.line + 1, [], [])
        block = self.feed(b"\n")
        self.offset -= 1  # that newline is not in the file
        return block


@dataclass(slots=True)
class Summary:
    """Numbers of one run of ``tail``.

    Attributes:
        counted: number of lines that were counted and stored.
        rejected: number of lines that could not be counted.
        left: 1 if a run without ``--follow`` left the log's last line, which has no newline yet, to
            the next run; else 0.
        lost: number of files in which reading should have gone on, but that were not found; their
            last lines may be uncounted.
    """

    counted: int = 0
    rejected: int = 0
    left: int = 0
    lost: int = 0


class Reporter:
    """Receiver of the notices and rejected lines of ``tail``; this base class ignores both."""

    def notice(self, text: str) -> None:
        """Report a notice, a sentence for people. This base class ignores it."""

    def rejected(self, path: str, rejected: Rejected) -> None:
        """Report a rejected line of the file at ``path``. This base class ignores it."""


class Hits:
    """Hits (counted lines) of a log that are not stored yet.

    Args:
        parser: parses the lines.
        reporter: gets the rejected lines. Other classes send it their notices.
        summary: the numbers of the run; this object updates ``counted`` and ``rejected``.

    Attributes:
        counts: the number of hits by (key or dimensions, whole Unix minute).
        held: (path, lines) pairs that are not parsed yet, because their format is not known.
        lines: number of lines that were parsed since the last store.
    """

    def __init__(self, parser: Parser, reporter: Reporter, summary: Summary) -> None:
        self.counts: Counts = {}
        self.held: list[tuple[str, LineBlock]] = []
        self.lines = 0
        self.summary = summary
        self.parser = parser
        self.reporter = reporter

    @property
    def full(self) -> bool:
        """Whether hits must be stored now: ``ROWS_PER_STORE`` or ``LINES_PER_STORE`` is reached."""
        return len(self.counts) >= ROWS_PER_STORE or self.lines >= LINES_PER_STORE

    def count(self, path: str, block: LineBlock) -> None:
        """Count the lines of ``block``, which are from the file at ``path``; report rejected lines.
        Lines whose format is not known yet are kept in :attr:`held` and counted later.

        Raises:
            UnknownFormat: the lines' format is not recognized, not the same in all, or unusable."""
        self.held.append((path, block))
        self._count_held()

    def end(self) -> None:
        """Count the lines in :attr:`held`. Callers do this when no more lines will come.

        Raises:
            UnknownFormat: the lines' format is not recognized, not the same in all, or unusable."""
        if self.held:
            self._count_held(all=True)

    def _count_held(self, *, all: bool = False) -> None:
        if not self.parser.knows_format:
            lines = [line for _, block in self.held for line in block.lines]
            if lines and not self.parser.detect_format(lines, all=all):
                return
        for path, block in self.held:
            rejected = block.rejected + self.parser.count(block.lines, block.first, self.counts)
            self.lines += len(block.lines)
            self.summary.rejected += len(rejected)
            for each in rejected:
                self.reporter.rejected(path, each)
        self.held.clear()

    def stored(self) -> None:
        """Note that Redis has stored all hits: add them to the summary's ``counted``, empty
        :attr:`counts` and set :attr:`lines` to 0."""
        self.summary.counted += sum(self.counts.values())
        self.counts.clear()
        self.lines = 0

"""Lines of access logs: from a log's bytes to numbered lines (longest line, also of backfill:
``LONGEST``), from lines to keys and minutes or reasons of rejection (``Parser``), and the hits of
``tail`` until they are stored (after ``ROWS_PER_STORE`` rows or ``LINES_PER_STORE`` lines).

A template gives a line's key: text with fields of the format in it, such as ``{host}{path}``.
Conditions leave lines out. See ``formats/`` for the formats.
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
    RecordTally,
    Rejected,
    RejectingReader,
    Window,
)
from countersink.logs.formats.records import JsonLines
from countersink.logs.formats.w3c import W3cLog
from countersink.logs.line import diagnosis
from countersink.logs.template import Condition
from countersink.logs.times import Clock, no_day
from countersink.runtime.dimensions import RowKey

Counts = dict[tuple[RowKey, int], int]
"""(key or dimensions, whole Unix minutes) to hits."""

_HEAD: Final = 64 * 1024
"""Bytes read at once to detect the format of a file."""


class Parser:
    """Parser of lines for one key template. Remembers texts; not thread-safe.

    Args:
        key: the template, or the name of a field.
        where: conditions, all of which must hold; other lines are left out.
        dimensions: (name, field) pairs, instead of ``key``.
        visitor: fields that together identify a visitor.
        input_format: the name of a format; ``auto``: detected by the first lines.
        log_format: the format in the server's notation; then ``input_format`` does not matter.
        envelope: the envelope of each line; '': none, or detected by the first lines.
        time_zone: IANA name for times without one; '': a format with such times is refused.

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
        """Prepare for a file of which nothing was read yet, from ``offset`` on.

        Raises:
            UnknownFormat: its first lines are of several formats, or the format lacks a requested
                field or needs a time zone.
        """
        self._detected = not self._auto
        if isinstance(self._reader, W3cLog):
            # Unlike other formats, it depends on the directives of the file itself.
            self._reader = self._undetected if self._auto else self._reader_of("w3c")
        if self._auto:
            self._detect(_first_bytes(file, offset).split(b"\n")[:-1])
        self._reader.look_back(file.read, offset)

    @property
    def knows_format(self) -> bool:
        """Whether a format is known, if only that of the file before."""
        return self._detected or self._reader is not self._undetected

    def detect_format(self, lines: Sequence[bytes], *, all: bool = False) -> bool:
        """Detect the format by the first lines of the source; whether it is known now.

        Args:
            all: no more lines will come.

        Raises:
            UnknownFormat: as :meth:`begin`; or the format is not recognized.
        """
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
        """Add the hit of each line to ``counts``; returns the rejected lines.

        Blank lines, directives and lines that the conditions leave out give neither. NULs before a
        line, as in a truncated log, are ignored.

        Args:
            lines: without their newlines.
            first: the number of the first of them.
            counts: added to.

        Raises:
            UnknownFormat: as :meth:`begin`, for the first lines.
        """
        if not self._detected:
            self._detect(lines)
        tally = RecordTally()
        bare = [line.lstrip(b"\0") for line in lines]
        self._reader.count(Window(range(first, first + len(bare)), bare, []), tally)
        for cell, amount in tally.counts.items():
            counts[cell] = counts.get(cell, 0) + amount
        return tally.rejected

    def _detect(self, lines: Sequence[bytes]) -> None:
        """Detect the format by lines; until it is detected, lines are rejected."""
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
    """The first bytes up to ``end``, as many lines as :func:`detect` reads, behind the NULs at the
    beginning of a log that was truncated under its writer.
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
"""Bytes of the longest line (without its newline and NULs before it); longer ones are rejected."""
TOO_LONG: Final = "the line is longer than 1 MiB"
WINDOW: Final = 256 * 1024
"""Bytes cut together; more only for a longer line."""
ROWS_PER_STORE: Final = 20_000
"""Distinct (key, minute) pairs from which on a batch is stored."""
LINES_PER_STORE: Final = 200_000
"""Lines from which on a batch is stored."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Complete lines in order, with their numbers, and lines that are too long.

    Attributes:
        first: the number of the first of ``lines``.
        lines: without their newlines.
        rejected: lines before them that were too long to be read.
    """

    first: int
    lines: list[bytes]
    rejected: list[Rejected]


class Cutter:
    """Cuts bytes into complete lines, with their numbers and offsets.

    Attributes:
        offset: of the first line that was not returned yet.
        line: number of lines returned; numbers begin at 1.
    """

    def __init__(self, offset: int = 0, line: int = 0) -> None:
        self.offset = offset
        self.line = line
        self._buffer = b""
        self._passed = 0  # bytes of the line at ``offset`` that are not in the buffer
        self._overlong = False

    @property
    def read_size(self) -> int:
        """Bytes to read next."""
        return WINDOW - len(self._buffer) % WINDOW

    @property
    def read_offset(self) -> int:
        """The offset to read the next bytes from."""
        return self.offset + self._passed + len(self._buffer)

    def feed(self, data: bytes) -> LineBlock:
        """Take the next bytes; returns the lines that they complete."""
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
        """The rest as the last line: no more bytes will come."""
        if self.read_offset == self.offset:
            return LineBlock(self.line + 1, [], [])
        block = self.feed(b"\n")
        self.offset -= 1  # that newline is not in the file
        return block


@dataclass(slots=True)
class Summary:
    """Numbers of a run of ``tail``: lines counted, rejected, left for the next run; files not
    found.

    Attributes:
        counted: lines counted and stored.
        rejected: lines that could not be counted.
        left: 1 when a last line without newline was left for the next run, else 0.
        lost: files that were not found again, whose last lines may be uncounted.
    """

    counted: int = 0
    rejected: int = 0
    left: int = 0
    lost: int = 0


class Reporter:
    """Receiver of the notices and rejected lines of ``tail``; ignores both."""

    def notice(self, text: str) -> None:
        """Report a notice for people, a sentence."""

    def rejected(self, path: str, rejected: Rejected) -> None:
        """Report a line that was not counted."""


class Hits:
    """Hits that were read from a log and are not stored yet.

    Args:
        parser: for the kind of key wanted.
        reporter: gets rejected lines here, and notices from others.
        summary: updated while the run goes on.

    Attributes:
        counts: the hits.
        held: (path, lines) that were read and not counted, since their format is not known yet.
        lines: number of counted lines.
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
        """Whether the hits are to be stored now."""
        return len(self.counts) >= ROWS_PER_STORE or self.lines >= LINES_PER_STORE

    def count(self, path: str, block: LineBlock) -> None:
        """Add the lines of ``block``, from the file at ``path``, once their format is known.

        Raises:
            UnknownFormat: the format is not recognized.
        """
        self.held.append((path, block))
        self._count_held()

    def end(self) -> None:
        """Count the held lines; no more will come.

        Raises:
            UnknownFormat: the format of the lines is not recognized.
        """
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
        """Clear the hits: all of them are in Redis."""
        self.summary.counted += sum(self.counts.values())
        self.counts.clear()
        self.lines = 0

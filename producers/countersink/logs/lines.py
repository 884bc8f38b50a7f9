"""Cuts a log's bytes into numbered lines (longest line, also of backfill: ``LONGEST``), and holds
the hits of ``tail`` until they are stored: after how many rows or lines (``ROWS_PER_STORE``,
``LINES_PER_STORE``). ``Parser``: from lines to their keys and minutes or the reasons of their
rejection, by a format, a key template and conditions; the formats and their readers are in
``formats/``.

What a line's key is, a template says: text with fields of the format in it, such as
``{host}{path}``. Conditions leave lines out. Which formats there are is told in
:mod:`countersink.logs.formats`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.logs.errors import UnknownFormat
from countersink.logs.file import BOM, LogFile
from countersink.logs.formats import line_reader
from countersink.logs.formats.detection import AUTO, MOST_LINES, detect, untold
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
"""Bytes that are read at once to tell the format of a file."""


class Parser:
    """Reads lines for one template of keys. Remembers what it has seen; not thread-safe.

    Args:
        key: the template, or the name of a field.
        where: conditions, all of which must hold; other lines are left out.
        dimensions: (name, field) pairs, in the place of ``key``.
        visitor: fields that together say who was seen.
        input_format: the name of a format; ``auto``: told by the first lines.
        log_format: the format in the server's words; then ``input_format`` does not matter.
        envelope: what each line stands in; '': nothing, or told by the first lines.
        time_zone: IANA name for times without one; '': a format that has such is refused.

    Raises:
        ValueError: something cannot be; the message says what to do.
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
        self._asked = envelope
        self._told = not self._auto
        self._reader: LineReader = RejectingReader(diagnosis)
        self._untold = self._reader
        if self._told:
            self._reader = self._reader_of(input_format, envelope=envelope)

    def begin(self, file: LogFile, offset: int) -> None:
        """Be ready for a file that is read from ``offset`` on.

        Args:
            file: it, of which nothing was read yet.

        Raises:
            UnknownFormat: its first lines are of several formats, or of one that has not a field
                that is asked for, or that needs a time zone.
        """
        self._told = not self._auto
        if isinstance(self._reader, W3cLog):
            # Unlike other formats it goes by what the file itself says.
            self._reader = self._untold if self._auto else self._reader_of("w3c")
        if self._auto:
            self._tell(_first_bytes(file, offset).split(b"\n")[:-1])
        self._reader.look_back(file.read, offset)

    @property
    def knows(self) -> bool:
        """Whether a format is known, be it that of the file before."""
        return self._told or self._reader is not self._untold

    def told(self, lines: Sequence[bytes], *, all: bool = False) -> bool:
        """Whether the format is known, at the latest by these lines: the first that are read.

        Args:
            all: no others will come.

        Raises:
            UnknownFormat: as :meth:`begin`; or it is not known, and will not be.
        """
        if not self._told:
            self._tell(lines)
        if self.knows:
            return True
        if not all and len(lines) < MOST_LINES:
            return False
        if reason := untold(lines):
            raise UnknownFormat(reason)
        return True

    def count(self, lines: Sequence[bytes], first: int, counts: Counts) -> list[Rejected]:
        """Add each line's hit to ``counts`` and return the lines that gave none.

        Blank lines, directives and what the conditions leave out are neither. Runs of NUL before a
        line, as a truncated log has them, are ignored.

        Args:
            lines: without their newlines.
            first: the number of the first of them.
            counts: added to.

        Raises:
            UnknownFormat: as :meth:`begin`, of the first lines.
        """
        if not self._told:
            self._tell(lines)
        tally = RecordTally()
        bare = [line.lstrip(b"\0") for line in lines]
        self._reader.count(Window(range(first, first + len(bare)), bare, []), tally)
        for cell, amount in tally.counts.items():
            counts[cell] = counts.get(cell, 0) + amount
        return tally.rejected

    def _tell(self, lines: Sequence[bytes]) -> None:
        """Tell the format by lines; as long as it cannot be told, they are rejected."""
        detected = detect(lines)
        if detected is None:
            return
        self._told = True
        try:
            envelope = self._asked or detected.envelope
            self._reader = self._reader_of(detected.input_format, envelope=envelope)
        except ValueError as error:
            raise UnknownFormat(str(error)) from None


def _first_bytes(file: LogFile, end: int) -> bytes:
    """The first bytes up to ``end``, of as many lines as tell a format, behind the NULs that a log
    begins with which was truncated under its writer.
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
"""Bytes of a line (without its newline and the NULs before it); a longer one is rejected."""
TOO_LONG: Final = "the line is longer than 1 MiB"
WINDOW: Final = 256 * 1024
"""Bytes looked at together, more only for a longer line."""
ROWS_PER_STORE: Final = 20_000
"""Distinct (key, minute) from which on a batch is stored."""
LINES_PER_STORE: Final = 200_000
"""Lines from which on a batch is stored."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Complete lines in order, with the number of the first, and those that are too long.

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
        offset: where the first line that was not handed out begins.
        line: how many lines were handed out; numbers begin at 1.
    """

    def __init__(self, offset: int = 0, line: int = 0) -> None:
        self.offset = offset
        self.line = line
        self._buffer = b""
        self._passed = 0  # bytes of the line at ``offset`` that are not in the buffer
        self._overlong = False

    @property
    def wanted(self) -> int:
        """How many bytes to read next."""
        return WINDOW - len(self._buffer) % WINDOW

    @property
    def reach(self) -> int:
        """The offset to read them from."""
        return self.offset + self._passed + len(self._buffer)

    def feed(self, data: bytes) -> LineBlock:
        """Take the next bytes and hand out the lines that they complete."""
        buffer = self._buffer + data
        if self.offset == self._passed == 0 and buffer.startswith(BOM):
            self._passed = len(BOM)
            buffer = buffer[len(BOM) :]
        if buffer[:1] == b"\0" and not self._overlong:
            # What a log holds that was truncated under a server that does not append. May be huge.
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
        """Hand out what is left as the last line: nothing more will come."""
        if self.reach == self.offset:
            return LineBlock(self.line + 1, [], [])
        block = self.feed(b"\n")
        self.offset -= 1  # that newline is not in the file
        return block


@dataclass(slots=True)
class Summary:
    """How many lines a run of ``tail`` counted, rejected and left for the next run, and how many
    files it did not find.

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
    """What ``tail`` calls to report notices and rejected lines; both do nothing here."""

    def notice(self, text: str) -> None:
        """Something a person should know, in a sentence."""

    def rejected(self, path: str, rejected: Rejected) -> None:
        """A line was not counted."""


class Hits:
    """Hits that were read from a log and are not stored yet.

    Args:
        parser: of the kind of key wanted.
        reporter: told of rejected lines, and by others of all else.
        summary: what is added to as it goes on, for whoever watches.

    Attributes:
        counts: they.
        held: (path, lines) of what was read and not counted, as it does not tell yet which format
            it is of.
        lines: how many were counted.
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
        """Whether it is time to store."""
        return len(self.counts) >= ROWS_PER_STORE or self.lines >= LINES_PER_STORE

    def count(self, path: str, block: LineBlock) -> None:
        """Add the lines of ``block``, from the file at ``path``, as soon as it is told what they
        are.

        Raises:
            UnknownFormat: that cannot be told.
        """
        self.held.append((path, block))
        self._count_held()

    def end(self) -> None:
        """Count what is held; no more comes.

        Raises:
            UnknownFormat: it cannot be told what the lines are.
        """
        if self.held:
            self._count_held(all=True)

    def _count_held(self, *, all: bool = False) -> None:
        if not self.parser.knows:
            lines = [line for _, block in self.held for line in block.lines]
            if lines and not self.parser.told(lines, all=all):
                return
        for path, block in self.held:
            rejected = block.rejected + self.parser.count(block.lines, block.first, self.counts)
            self.lines += len(block.lines)
            self.summary.rejected += len(rejected)
            for each in rejected:
                self.reporter.rejected(path, each)
        self.held.clear()

    def stored(self) -> None:
        """Everything in it is in Redis."""
        self.summary.counted += sum(self.counts.values())
        self.counts.clear()
        self.lines = 0

"""Cuts a log's bytes into numbered lines (longest line, also of backfill: ``LONGEST``), and holds
the hits of ``tail`` until they are stored: after how many rows or lines (``ROWS_PER_STORE``,
``LINES_PER_STORE``)."""

from dataclasses import dataclass
from typing import Final

from countersink.logs import Counts, Parser, Rejected
from countersink.logs.file import BOM

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

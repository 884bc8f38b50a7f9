"""Reading a content in spans: lines in windows, with numbers and with the digest of the whole.

A span is what one chunk of a source holds. :class:`SpanReader` reads the lines of one,
:func:`measure` cuts the same span without looking at them, :func:`digest` knows one again.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from countersink.backfill.contents import Content
from countersink.backfill.cutting import LONGEST, WINDOW, Cutter, Piece, Span
from countersink.backfill.records import split
from countersink.producers.access_log import Rejected

__all__ = [
    "BYTES",
    "LINES",
    "LONGEST",
    "WINDOW",
    "Span",
    "SpanReader",
    "Window",
    "digest",
    "measure",
]

LINES: Final = 65_536
"""Lines after which a span ends."""
BYTES: Final = 16 * 1024 * 1024
"""Uncompressed bytes after which a span ends; the record that reaches them belongs to it."""

_TOO_LONG: Final = "the line is longer than 1 MiB"
_NOT_CLOSED: Final = "the record is longer than 1 MiB (a quote that is never closed?)"


class Window:
    """Some records, in order.

    Attributes:
        numbers: of the lines they begin at, from 1; a range where every record is one line.
        rejected: lines that are too long to be read; then there are no others.
        open: its only line has no newline: the content, or the span, ends before it comes.

    Args:
        records: without their newlines (CSV records may hold others) and the NULs before them; or,
            where every record is one line, all together with a newline after each.
    """

    __slots__ = ("_records", "numbers", "open", "rejected")

    def __init__(
        self,
        numbers: Sequence[int],
        records: list[bytes] | bytes,
        rejected: list[Rejected],
        open: bool,
    ) -> None:
        self.numbers = numbers
        self.rejected = rejected
        self.open = open
        self._records = records

    @property
    def lines(self) -> list[bytes]:
        """The records without their newlines."""
        if isinstance(self._records, bytes):
            self._records = split(self._records, quoted=False)
        return self._records

    @property
    def data(self) -> bytes:
        """The records with a newline after each."""
        if isinstance(self._records, bytes):
            return self._records
        return b"".join([record + b"\n" for record in self._records])


class SpanReader:
    """Reads one span: iterate over its windows once; then ``span`` says what was read.

    Attributes:
        span: None until all was read, and if there is nothing after ``start``.

    Args:
        content: read from, wherever it stands.
        start: where the span begins, in uncompressed bytes.
        first_line: number of the line that begins at ``reads_from``.
        quoted: records are CSV's, whose quoted fields may hold newlines.
        end: where the span is known to end; None: by the limits or with the content.
        reads_from: where the line begins that ``start`` is in the midst of: windows begin there,
            the digest at ``start``. None: ``start``.
        max_lines, max_bytes: see :data:`LINES` and :data:`BYTES`.

    Raises:
        Unreadable: while iterating. If lines can be read before the damage, and ``end`` is not
            given, the span ends there instead, and reading on from its end raises.
    """

    def __init__(
        self,
        content: Content,
        start: int,
        first_line: int,
        *,
        quoted: bool = False,
        end: int | None = None,
        reads_from: int | None = None,
        max_lines: int = LINES,
        max_bytes: int = BYTES,
    ) -> None:
        self.span: Span | None = None
        self._quoted = quoted
        self._cutter = Cutter(
            content,
            start,
            first_line,
            quoted=quoted,
            end=end,
            reads_from=reads_from,
            max_lines=max_lines,
            max_bytes=max_bytes,
        )

    def __iter__(self) -> Iterator[Window]:
        for piece in self._cutter:
            yield self._window(piece)
        self.span = self._cutter.span()

    def _window(self, piece: Piece) -> Window:
        if piece.overlong:
            reason = _NOT_CLOSED if self._quoted else _TOO_LONG
            return Window((), [], [Rejected(piece.line, reason)], piece.open)
        if piece.open:
            return Window(range(piece.line, piece.line + 1), [piece.data], [], True)
        data = piece.data if piece.stop == len(piece.data) else piece.data[: piece.stop]
        numbers: Sequence[int] = range(piece.line, piece.line + piece.lines)
        if not self._quoted and b"\0" not in data:
            return Window(numbers, data, [], False)
        lines = split(data, quoted=self._quoted)
        if piece.lines != len(lines):
            heights = [record.count(b"\n") + 1 for record in lines]
            numbers = list(accumulate(heights[:-1], initial=piece.line))
        if b"\0" in data:
            lines = [line.lstrip(b"\0") for line in lines]
        return Window(numbers, lines, [], False)


def measure(
    content: Content,
    start: int,
    first_line: int,
    *,
    quoted: bool = False,
    end: int | None = None,
    reads_from: int | None = None,
    max_lines: int = LINES,
    max_bytes: int = BYTES,
) -> Span | None:
    """The span that :class:`SpanReader` would read; None: there is nothing after ``start``.

    Raises:
        Unreadable: as SpanReader does.
    """
    cutter = Cutter(
        content,
        start,
        first_line,
        quoted=quoted,
        end=end,
        reads_from=reads_from,
        max_lines=max_lines,
        max_bytes=max_bytes,
    )
    for _ in cutter:
        pass
    return cutter.span()


def digest(content: Content, start: int, end: int) -> bytes | None:
    """SHA-256 of the bytes [start, end); None: the content ends before ``end``.

    Raises:
        Unreadable: they cannot be read.
    """
    found = hashlib.sha256()
    content.seek(start)
    if content.offset < start:
        return None
    while content.offset < end:
        data = content.read(min(WINDOW, end - content.offset))
        if not data:
            return None
        found.update(data)
    return found.digest()

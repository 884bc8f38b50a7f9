"""Spans: ranges of a source's bytes that hold whole records; a backfill counts each as a chunk.
:class:`SpanReader` cuts a span into pieces, :func:`block_of` splits a piece into records. See
``logs/lines.py`` for the longest line.

A span ends where the caller says, or with the record that reaches ``max_lines`` (``LINES``) lines
or ``max_bytes`` (``BYTES``) bytes. At most 256 KiB after its end are read. A record of any
length is read in parts, with little memory.

If a record is longer than 1 MiB, its first line is skipped, and reading continues with the next
line: with CSV, most likely a quote was not closed. A span with such a record contains more than 1
MiB of it, so that the span's bytes alone show the length when they are read again.

The caller decides whether a last record without a newline belongs to the span or is left out.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Final

from countersink.backfill.content import Content
from countersink.backfill.errors import Unreadable
from countersink.logs.file import BOM
from countersink.logs.formats.reader import RecordBlock, Rejected
from countersink.logs.lines import BLOCK_BYTES, LONGEST, TOO_LONG

LINES: Final = 65_536
"""Number of lines after which a span ends."""
BYTES: Final = 16 * 1024 * 1024
"""Number of uncompressed bytes after which a span ends. The record that reaches it belongs to the
span."""
_NOT_CLOSED: Final = "the record is longer than 1 MiB (a quote that is never closed?)"
# No backtracking (possessive quantifiers, atomic groups): matching takes linear time for hostile
# sources, too. Groups are atomic, not possessive: these fail before Python 3.11.5
# (python/cpython#106052).
_FIELD: Final = rb'"[^"]*+(?>(?:""[^"]*+)*)"'
_ESCAPED_FIELD: Final = rb'"[^"\\]*+(?>(?:(?:\\[\s\S]|"")[^"\\]*+)*)"'
_BARE_FIELD: Final = rb'"[^"\\]*+"'
_MARK: Final = rb"(?>(?:\A\xef\xbb\xbf)?)"


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a source's bytes that holds whole records.

    Attributes:
        start, end: offsets of its first byte and of the byte after its last, uncompressed.
        first_line: number of its first line in the source, from 1.
        lines: number of newlines in the range, plus 1 if its last line has no newline.
        digest: SHA-256 of its bytes.
        open: True if its last record has no newline, since the source ends there.
        torn: True if that open record ends within quotes.
    """

    start: int
    end: int
    first_line: int
    lines: int
    digest: bytes
    open: bool = False
    torn: bool = False

    @property
    def next_line(self) -> int:
        """Number of the first line after the span."""
        return self.first_line + self.lines


@dataclass(frozen=True, slots=True)
class SpanPiece:
    """A part of a span: some whole records, or one record that is too long, or an open last record.

    Attributes:
        line: number of the first line.
        data: bytes that begin with the records; empty for a record that is too long.
        stop: number of bytes that the records have: they are ``data[:stop]``.
        lines: number of newlines in the records; 0 for an open record, or one that is too long.
        records: the records without their newlines, and a last b"", if the newlines were counted by
            splitting; else None.
        overlong: True if the piece stands for the first line of a record that is too long.
        open: True if the source ends within the record, before a newline.
        torn: True if that open record ends within quotes.
    """

    line: int
    data: bytes
    stop: int
    lines: int = 0
    records: list[bytes] | None = None
    overlong: bool = False
    open: bool = False
    torn: bool = False


class Quoting:
    """Regular expressions that find the ends of CSV records: newlines outside quoted fields. Match
    them at the beginning of a record.

    A field that begins with ``"`` is quoted. First a backslash is taken for an escape: the field
    ends at the next ``"`` that is neither doubled nor after a backslash. If neither a delimiter nor
    the end of the line follows there, backslashes are ordinary characters: the field ends at the
    next ``"`` that is not doubled. Any other ``"`` (``5" disk``) is an ordinary character, also in
    comments.

    Args:
        delimiter: the character between fields.
        comment: text with which comment lines begin; '' if there are no comments.

    Attributes:
        record: matches one record with its newline.
        records: matches all whole records, if the bytes end with a record, or at the source's end.
        certain: matches all whole records whose ends do not depend on the bytes that follow.
    """

    def __init__(self, delimiter: str, comment: str = "") -> None:
        after = re.escape(delimiter.encode())
        ends = rb"(?:%s|[\r\n])" % after
        lookahead = rb"(?=%s(?!%s)[\s\S]{%d})" % (_ESCAPED_FIELD, ends, len(delimiter.encode()))
        # The first alternative is only faster than the second.
        closed = rb"(?:%s|%s)(?=%s)" % (_BARE_FIELD, _ESCAPED_FIELD, ends)

        def record(lookahead: bytes) -> bytes:
            field = rb"(?>%s|%s%s)" % (closed, lookahead, _FIELD)
            one = rb'(?>%s|(?!"))[^"\n]*+(?>(?:(?>(?<=%s)%s|(?<!%s)")[^"\n]*+)*)\n' % (
                field,
                after,
                field,
                after,
            )
            if comment:
                one = rb"(?>%s[^\n]*+\n|%s)" % (re.escape(comment.encode()), one)
            return rb"\0*+" + _MARK + one

        self.record: Final = re.compile(record(b""))
        self.records: Final = re.compile(rb"(?>(?:" + record(b"") + rb")*)")
        self.certain: Final = re.compile(rb"(?>(?:" + record(lookahead) + rb")*)")


quoting = lru_cache(Quoting)


@dataclass(slots=True, eq=False)
class SpanReader:
    """Reader of one span: iterate over :meth:`pieces` once, then take :attr:`span`.

    Args:
        content: the source's bytes. Its current offset does not matter.
        start: uncompressed offset at which the span begins.
        first_line: number of the line that begins there.
        quoted: finds the ends of records that may contain newlines; None if each record is a line.
        end: known offset of the span's end; None to end it by the limits, or with the source.
        leave_open: True to leave out a last record without newline; ignored if ``end`` is given.
        max_lines, max_bytes: limits of the span: see :data:`LINES` and :data:`BYTES`.

    Attributes:
        left_open: True if a last record without a newline was left out.

    Raises:
        Unreadable: bytes cannot be read; raised while iterating. If ``end`` is None and there are
            whole records before the damage, the span ends after them without an error, and only
            reading the next span raises.
    """

    content: Content
    start: int
    first_line: int
    _: KW_ONLY
    quoted: Quoting | None = None
    end: int | None = None
    leave_open: bool = False
    max_lines: int = LINES
    max_bytes: int = BYTES
    _offset: int = field(init=False)
    _line: int = field(init=False)
    _lines: int = field(init=False, default=0)
    _digest: "hashlib._Hash" = field(init=False, default_factory=hashlib.sha256)
    left_open: bool = field(init=False, default=False)
    _last: SpanPiece | None = field(init=False, default=None)
    _overlong_to: int = field(init=False, default=0)
    """Offset after the bytes that show that a record is too long."""

    def __post_init__(self) -> None:
        self._offset = self.start
        self._line = self.first_line

    def pieces(self) -> Iterator[SpanPiece]:
        """Iterate over the pieces of the span. Call it once."""
        while self._is_unfinished() and (piece := self._next()):
            yield piece

    @property
    def span(self) -> Span | None:
        """The span that the pieces read so far make up; None if there were no pieces."""
        last = self._last
        if last is None:
            return None
        return Span(
            start=self.start,
            end=self._offset,
            first_line=self.first_line,
            lines=self._lines + last.open,
            digest=self._digest.digest(),
            open=last.open,
            torn=last.torn,
        )

    def _is_unfinished(self) -> bool:
        if self._last is not None and self._last.open:
            return False
        if self.end is not None:
            return self._offset < self.end
        full = self._lines >= self.max_lines or self._offset - self.start >= self.max_bytes
        return not full or self._offset < self._overlong_to

    def _next(self) -> SpanPiece | None:
        """Return the next piece; None if the source ends, or if only a last record without a
        newline is left, which is to be left out. None also if the source is damaged, unless this
        raises Unreadable: see the class."""
        before = self._offset, self._line, self._lines, self._overlong_to, self._digest.copy()
        try:
            self.content.seek(self._offset)
            piece = self._piece()
            if piece is None or not (piece.open and self.leave_open and self.end is None):
                self._last = piece or self._last
                return piece
            self.left_open = True
        except Unreadable:
            # The bytes before the damage are the span; the next one raises.
            offset, overlong_to = before[0], before[3]
            if self.end is not None or offset == self.start or offset < overlong_to:
                raise
        self._offset, self._line, self._lines, self._overlong_to, self._digest = before
        return None

    def _piece(self) -> SpanPiece | None:
        line = self._line
        data, ended = self._fill()
        if not data:
            return None
        while data[:1] == b"\0":
            # A log that was truncated while its server wrote without O_APPEND. May be very many.
            bare = data.lstrip(b"\0")
            self._advance(data, len(data) - len(bare))
            data = bare
            if not data and not ended:
                data, ended = self._fill()
        while not (stop := last_end(data, quoted=self.quoted, ended=ended)):
            if len(data) > LONGEST:
                # Here a backslash before a quote is an ordinary character, since no other quote
                # closes the field.
                if self.quoted is None or not (found := self.quoted.record.match(data)):
                    return self._overlong(data, ended)
                stop = found.end()
                break
            if ended:
                self._advance(data, len(data))
                quoted = self.quoted
                torn = quoted is not None and not quoted.record.fullmatch(data + b"\n")
                return SpanPiece(line, data, len(data), open=True, torn=torn)
            more, ended = self._fill()
            data += more
        if len(data) > LONGEST and end_after(data, data.find(b"\n"), quoted=self.quoted) > (
            LONGEST + 1
        ):
            return self._overlong(data, ended)
        if self.end is not None and self.quoted is None:
            # A known span is cut to be read, which splits it anyway.
            records = data[:stop].split(b"\n")
            self._advance(data, stop, len(records) - 1)
            return SpanPiece(line, data, stop, len(records) - 1, records)
        lines = data.count(b"\n", 0, stop)
        limited = self._limit(data, stop, lines)
        self._advance(data, limited, lines if limited == stop else None)
        return SpanPiece(line, data, limited, self._line - line)

    def _overlong(self, data: bytes, ended: bool) -> SpanPiece:
        """Skip the first line of a record that is too long, and return the piece that stands for
        it. ``data`` has the bytes read so far; ``ended`` is True if the source or the span is
        known to end with them."""
        line = self._line
        self._overlong_to = self._offset + LONGEST + 1
        while (newline := data.find(b"\n")) < 0 and not ended:
            self._advance(data, len(data))
            data, ended = self._fill()
        self._advance(data, len(data) if newline < 0 else newline + 1)
        return SpanPiece(line, b"", 0, overlong=True, open=newline < 0)

    def _limit(self, data: bytes, stop: int, lines: int) -> int:
        """Return the index of ``data`` at which a piece ends: after the first record that reaches a
        limit of the span; or ``stop``, the end of the last whole record, if none does or if the
        span's end is known. A limit before ``_overlong_to`` counts from there. ``lines`` is the
        number of newlines before ``stop``."""
        if self.end is not None:
            return stop
        full: list[int] = []  # newlines that reach a limit
        most_lines = max(1, self.max_lines - self._lines)
        if lines >= most_lines:
            full.append(len(data) - 1 - len(data.split(b"\n", most_lines)[most_lines]))
        most_bytes = self.max_bytes - (self._offset - self.start)
        if stop >= most_bytes:
            full.append(data.find(b"\n", max(0, most_bytes - 1)))
        if not full or self._offset + stop < self._overlong_to:
            return stop
        newline = data.find(b"\n", max(min(full), self._overlong_to - self._offset - 1))
        return end_after(data, newline, quoted=self.quoted)

    def _advance(self, data: bytes, stop: int, lines: int | None = None) -> None:
        """Add the first ``stop`` bytes of ``data`` to the span: to its offset, number of lines and
        digest. ``lines`` is the number of newlines in them; None to count them."""
        if lines is None:
            lines = data.count(b"\n", 0, stop)
        self._digest.update(memoryview(data)[:stop])
        self._lines += lines
        self._line += lines
        self._offset += stop

    def _fill(self) -> tuple[bytes, bool]:
        """Read the next 256 KiB or less. Returns the bytes, and True if the source or the span is
        known to end with them. Raises Unreadable if bytes cannot be read, or if the source ends
        before the known end of the span."""
        content, end = self.content, self.end
        data = content.read(BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - content.offset))
        if end is None or content.offset == end:
            return data, not data or end is not None
        if not data:
            raise Unreadable(
                f"{content.name} ends at byte {content.offset:,}, but had been read to byte"
                f" {end:,} before"
            )
        return data, False


def block_of(piece: SpanPiece, quoted: Quoting | None) -> RecordBlock:
    """Return the records of a piece with their line numbers, as readers of formats take them. A
    record that is too long becomes a rejected line. A byte order mark of the source, and zero bytes
    before a record, are left out.

    Args:
        quoted: the ``quoted`` of the span reader that has cut the piece.
    """
    if piece.overlong:
        reason = _NOT_CLOSED if quoted is not None else TOO_LONG
        return RecordBlock((), [], [Rejected(piece.line, reason)])
    data = piece.data[: piece.stop]
    if piece.line == 1:
        data = data.removeprefix(BOM)
    if piece.open:
        return RecordBlock(range(piece.line, piece.line + 1), [data], [])
    numbers: Sequence[int] = range(piece.line, piece.line + piece.lines)
    if quoted is None and b"\0" not in data:
        block = RecordBlock(numbers, data, [])
        if piece.records is not None and len(data) == piece.stop:
            block.lines = piece.records[:-1]
        return block
    lines = split(data, quoted=quoted)
    if piece.lines != len(lines):
        heights = [record.count(b"\n") + 1 for record in lines]
        numbers = list(accumulate(heights[:-1], initial=piece.line))
    if b"\0" in data:
        lines = [line.lstrip(b"\0") for line in lines]
    return RecordBlock(numbers, lines, [])


def last_end(data: bytes, *, quoted: Quoting | None, ended: bool = False) -> int:
    """Return the index after the newline of the last whole record of ``data``; 0 if there is none.

    Args:
        quoted: finds the ends of CSV records; None if each record is a line.
        ended: True if the source or the span ends with ``data``; else only certain ends count.
    """
    if quoted is None or b'"' not in data:
        return data.rfind(b"\n") + 1
    found = (quoted.records if ended else quoted.certain).match(data)
    return found.end() if found else 0


def end_after(data: bytes, newline: int, *, quoted: Quoting | None) -> int:
    """Return the index after the record that contains the newline at index ``newline``. That
    newline ends the record, or is quoted in it (never if ``quoted`` is None). ``data`` must begin
    with a record and contain the end of this one."""
    if quoted is not None and b'"' in data[:newline]:
        for record in quoted.record.finditer(data):
            if record.end() > newline:
                return record.end()
    return newline + 1


def split(data: bytes, *, quoted: Quoting | None) -> list[bytes]:
    """Return the records of ``data``, without the newlines that end them. ``data`` must consist of
    whole records. ``quoted`` finds their ends; if it is None, each line is a record."""
    if quoted is not None and b'"' in data:
        return [record[:-1] for record in quoted.record.findall(data)]
    lines = data.split(b"\n")
    del lines[-1]
    return lines

"""Cuts a source into chunks: how many lines (``LINES``) or bytes (``BYTES``) one has at most, and
the reason for CSV records that are too long; the longest line is in
``logs/lines.py``.

What a span holds is decided by its bytes alone: it takes records until it holds ``max_lines`` lines
or ``max_bytes`` bytes, so that it ends with the record that reaches one of them. Nothing is ever
read ahead of that by more than a window, and a record of any length passes through in pieces.

Of a record that is too long the first line is passed and reading goes on at the next (with CSV most
likely a quote was never closed). Such a span ends only after the bytes that show it, so that it is
read alike when nothing but its own bytes is looked at.

A record that the content ends in, without its newline, is the last of its span, or, where the
caller says so, left to be read once it is whole.

:class:`SpanReader` cuts a span into pieces, :func:`window_of` makes lines of one, :func:`digest`
knows a span again.
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
from countersink.logs.formats.reader import Rejected, Window
from countersink.logs.lines import LONGEST, TOO_LONG, WINDOW

LINES: Final = 65_536
"""Lines after which a span ends."""
BYTES: Final = 16 * 1024 * 1024
"""Uncompressed bytes after which a span ends; the record that reaches them belongs to it."""
_NOT_CLOSED: Final = "the record is longer than 1 MiB (a quote that is never closed?)"
# No backtracking (possessive, atomic): a hostile source costs no more than its length. Groups are
# atomic, as possessive ones go wrong before Python 3.11.5 (python/cpython#106052).
_FIELD: Final = rb'"[^"]*+(?>(?:""[^"]*+)*)"'
_ESCAPED_FIELD: Final = rb'"[^"\\]*+(?>(?:(?:\\[\s\S]|"")[^"\\]*+)*)"'
_BARE_FIELD: Final = rb'"[^"\\]*+"'
_MARK: Final = rb"(?>(?:\A\xef\xbb\xbf)?)"


@dataclass(frozen=True, slots=True)
class Span:
    """Whole records of a content, and how they are known again.

    Attributes:
        start, end: offsets in uncompressed bytes, half-open.
        first_line: number of the line that was read first, from 1.
        lines: newlines in [start, end), and 1 more if it ends in a line without one.
        digest: SHA-256 of the bytes [start, end).
        open: the last record has no newline: the content ended there.
        torn: and within quotes.
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
        """Number of the line after the last."""
        return self.first_line + self.lines


@dataclass(frozen=True, slots=True)
class SpanPiece:
    """Whole records beside each other, or one that is too long, or the open one.

    Attributes:
        line: number of the first line.
        data: the records are ``data[:stop]``; empty for one that is too long.
        stop: see ``data``.
        lines: newlines in the records.
        overlong: a record that is too long begins at ``line``.
        open: the content ends before the newline does.
        torn: and within quotes.
    """

    line: int
    data: bytes
    stop: int
    lines: int = 0
    overlong: bool = False
    open: bool = False
    torn: bool = False


class Quoting:
    """How the records of a CSV are told apart: they end at newlines outside of quoted fields.

    A field is quoted if a ``"`` stands at its beginning, up to the next one that is neither doubled
    nor behind a backslash, if the field ends there; else up to the next one that is not doubled.
    Any other ``"`` (``5" disk``) is a character like others, and so are those of a comment. All
    bytes that are matched begin where a record begins.

    Args:
        delimiter: what stands between fields.
        comment: how lines begin that are comments; empty: there are none.

    Attributes:
        record: matches one, with its newline.
        records: matches all whole ones, of bytes that end where one ends, or the content.
        certain: the same of other bytes: not one that goes on if more of them come.
    """

    def __init__(self, delimiter: str, comment: str = "") -> None:
        after = re.escape(delimiter.encode())
        ends = rb"(?:%s|[\r\n])" % after
        told = rb"(?=%s(?!%s)[\s\S]{%d})" % (_ESCAPED_FIELD, ends, len(delimiter.encode()))
        # The first is but faster than the second.
        closed = rb"(?:%s|%s)(?=%s)" % (_BARE_FIELD, _ESCAPED_FIELD, ends)

        def record(told: bytes) -> bytes:
            field = rb"(?>%s|%s%s)" % (closed, told, _FIELD)
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
        self.certain: Final = re.compile(rb"(?>(?:" + record(told) + rb")*)")


quoting = lru_cache(Quoting)


@dataclass(slots=True, eq=False)
class SpanReader:
    """Cuts one span: go through :meth:`pieces` once; then :attr:`span` says what was read.

    Args:
        content: read from, wherever it stands.
        start: where the span begins, in uncompressed bytes.
        first_line: number of the line that begins there.
        quoted: how records are told apart whose quoted fields may hold newlines; None: each is a
            line.
        end: where the span is known to end; None: by the limits or with the content.
        leave_open: leave a last record that has no newline yet.
        digested: the span is to have a digest; else that is empty.
        max_lines, max_bytes: see :data:`LINES` and :data:`BYTES`.

    Attributes:
        left: a last record was left: see ``leave_open``.

    Raises:
        Unreadable: while iterating. If lines can be read before the damage, and ``end`` is not
            given, the span ends there instead, and reading on from its end raises.
    """

    content: Content
    start: int
    first_line: int
    _: KW_ONLY
    quoted: Quoting | None = None
    end: int | None = None
    leave_open: bool = False
    digested: bool = True
    max_lines: int = LINES
    max_bytes: int = BYTES
    _at: int = field(init=False)
    _line: int = field(init=False)
    _lines: int = field(init=False, default=0)
    _digest: "hashlib._Hash" = field(init=False, default_factory=hashlib.sha256)
    left: bool = field(init=False, default=False)
    _last: SpanPiece | None = field(init=False, default=None)
    _shown_at: int = field(init=False, default=0)
    """Where the bytes end that showed a record to be too long."""

    def __post_init__(self) -> None:
        self._at = self.start
        self._line = self.first_line

    def pieces(self) -> Iterator[SpanPiece]:
        """The records of the span, in pieces whose lines are not looked at; once."""
        while self._wanted() and (piece := self._next()):
            yield piece

    @property
    def span(self) -> Span | None:
        """What was read; None: there was nothing after the start."""
        last = self._last
        if last is None:
            return None
        return Span(
            start=self.start,
            end=self._at,
            first_line=self.first_line,
            lines=self._lines + last.open,
            digest=self._digest.digest() if self.digested else b"",
            open=last.open,
            torn=last.torn,
        )

    def _wanted(self) -> bool:
        if self._last is not None and self._last.open:
            return False
        if self.end is not None:
            return self._at < self.end
        full = self._lines >= self.max_lines or self._at - self.start >= self.max_bytes
        return not full or self._at < self._shown_at

    def _next(self) -> SpanPiece | None:
        """The next piece; None at the end of the content, or of what is to be read of it."""
        before = self._at, self._line, self._lines, self._shown_at, self._digest.copy()
        try:
            self.content.seek(self._at)
            piece = self._piece()
            if piece is None or not (piece.open and self.leave_open and self.end is None):
                self._last = piece or self._last
                return piece
            self.left = True
        except Unreadable:
            # What stands before the damage is a span; who reads on meets the damage again.
            at, shown_at = before[0], before[3]
            if self.end is not None or at == self.start or at < shown_at:
                raise
        self._at, self._line, self._lines, self._shown_at, self._digest = before
        return None

    def _piece(self) -> SpanPiece | None:
        line = self._line
        data, ended = self._fill()
        if not data:
            return None
        while data[:1] == b"\0":
            # What a log holds that was truncated under a server that does not append. May be huge.
            bare = data.lstrip(b"\0")
            self._take(data, len(data) - len(bare))
            data = bare
            if not data and not ended:
                data, ended = self._fill()
        while not (stop := last_end(data, quoted=self.quoted, ended=ended)):
            if len(data) > LONGEST:
                # A backslash before a quote is one of the value where no other quote closes it.
                if self.quoted is None or not (found := self.quoted.record.match(data)):
                    return self._overlong(data, ended)
                stop = found.end()
                break
            if ended:
                self._take(data, len(data))
                quoted = self.quoted
                torn = quoted is not None and not quoted.record.fullmatch(data + b"\n")
                return SpanPiece(line, data, len(data), open=True, torn=torn)
            more, ended = self._fill()
            data += more
        if len(data) > LONGEST and end_after(data, data.find(b"\n"), quoted=self.quoted) > (
            LONGEST + 1
        ):
            return self._overlong(data, ended)
        lines = data.count(b"\n", 0, stop)
        limited = self._limited(data, stop, lines)
        self._take(data, limited, lines if limited == stop else None)
        return SpanPiece(line, data, limited, self._line - line)

    def _overlong(self, data: bytes, ended: bool) -> SpanPiece:
        """Pass the first line of a record that is too long."""
        line = self._line
        self._shown_at = self._at + LONGEST + 1
        while (newline := data.find(b"\n")) < 0 and not ended:
            self._take(data, len(data))
            data, ended = self._fill()
        self._take(data, len(data) if newline < 0 else newline + 1)
        return SpanPiece(line, b"", 0, overlong=True, open=newline < 0)

    def _limited(self, data: bytes, stop: int, lines: int) -> int:
        """``stop``, or where the first record of ``data`` ends with which the span is full."""
        if self.end is not None:
            return stop
        full: list[int] = []  # newlines with which it is
        most_lines = max(1, self.max_lines - self._lines)
        if lines >= most_lines:
            full.append(len(data) - 1 - len(data.split(b"\n", most_lines)[most_lines]))
        most_bytes = self.max_bytes - (self._at - self.start)
        if stop >= most_bytes:
            full.append(data.find(b"\n", max(0, most_bytes - 1)))
        if not full or self._at + stop < self._shown_at:
            return stop
        newline = data.find(b"\n", max(min(full), self._shown_at - self._at - 1))
        return end_after(data, newline, quoted=self.quoted)

    def _take(self, data: bytes, stop: int, lines: int | None = None) -> None:
        """Go on by ``stop`` bytes of ``data``; ``lines``: newlines in them."""
        if lines is None:
            lines = data.count(b"\n", 0, stop)
        if self.digested:
            self._digest.update(memoryview(data)[:stop])
        self._lines += lines
        self._line += lines
        self._at += stop

    def _fill(self) -> tuple[bytes, bool]:
        """The next window, and whether the content, or the span, is known to end with it."""
        content, end = self.content, self.end
        data = content.read(WINDOW if end is None else min(WINDOW, end - content.offset))
        if end is None or content.offset == end:
            return data, not data or end is not None
        if not data:
            raise Unreadable(
                f"{content.name} ends at byte {content.offset:,},"
                f" before byte {end:,} that was read of it before"
            )
        return data, False


def window_of(piece: SpanPiece, quoted: Quoting | None) -> Window:
    """The lines of a piece, of which a reader of a format takes what they count.

    Args:
        quoted: as of the reader that has cut it.
    """
    if piece.overlong:
        reason = _NOT_CLOSED if quoted is not None else TOO_LONG
        return Window((), [], [Rejected(piece.line, reason)])
    data = piece.data[: piece.stop]
    if piece.line == 1:
        data = data.removeprefix(BOM)
    if piece.open:
        return Window(range(piece.line, piece.line + 1), [data], [])
    numbers: Sequence[int] = range(piece.line, piece.line + piece.lines)
    if quoted is None and b"\0" not in data:
        return Window(numbers, data, [])
    lines = split(data, quoted=quoted)
    if piece.lines != len(lines):
        heights = [record.count(b"\n") + 1 for record in lines]
        numbers = list(accumulate(heights[:-1], initial=piece.line))
    if b"\0" in data:
        lines = [line.lstrip(b"\0") for line in lines]
    return Window(numbers, lines, [])


def digest(content: Content, start: int, end: int) -> bytes | None:
    """SHA-256 of the bytes [start, end); None: the content ends before ``end``.

    Raises:
        Unreadable: they cannot be read.
    """
    found = hashlib.sha256()
    content.seek(start)
    while content.offset < end:
        data = content.read(min(WINDOW, end - content.offset))
        if not data:
            return None
        found.update(data)
    return found.digest()


def last_end(data: bytes, *, quoted: Quoting | None, ended: bool = False) -> int:
    """Where the last complete record of ``data`` ends, after its newline; 0 if there is none.

    Args:
        ended: the content, or the span, ends with ``data``.
    """
    if quoted is None or b'"' not in data:
        return data.rfind(b"\n") + 1
    found = (quoted.records if ended else quoted.certain).match(data)
    return found.end() if found else 0


def end_after(data: bytes, newline: int, *, quoted: Quoting | None) -> int:
    """Where the record ends that the newline at index ``newline`` ends or is inside of.

    One that ends there or later has to be in ``data``.
    """
    if quoted is not None and b'"' in data[:newline]:
        for record in quoted.record.finditer(data):
            if record.end() > newline:
                return record.end()
    return newline + 1


def split(data: bytes, *, quoted: Quoting | None) -> list[bytes]:
    """The records of ``data``, which ends where one ends, without their last newlines."""
    if quoted is not None and b'"' in data:
        return [record[:-1] for record in quoted.record.findall(data)]
    lines = data.split(b"\n")
    del lines[-1]
    return lines

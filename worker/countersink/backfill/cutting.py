"""Cutting a content into spans of whole records, the same ones however it is read.

What a span holds is decided by its bytes alone: it takes records until it holds ``max_lines``
lines or ``max_bytes`` bytes, so that it ends with the record that reaches one of them. Nothing is
ever read ahead of that by more than a window, and a record of any length passes through in pieces.

Of a record that is too long the first line is passed and reading goes on at the next (with CSV most
likely a quote was never closed). Such a span ends only after the bytes that show it, so that it
is read alike when nothing but its own bytes is looked at.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from countersink.backfill.contents import Content
from countersink.backfill.options import Unreadable
from countersink.backfill.records import end_after, last_end

WINDOW: Final = 256 * 1024
"""Bytes looked at together."""
LONGEST: Final = 1024 * 1024
"""Bytes of a record (without its newline and the NULs before it); a longer one is rejected."""


@dataclass(frozen=True, slots=True)
class Span:
    """Whole records of a content, and how they are known again.

    Attributes:
        start, end: offsets in uncompressed bytes, half-open.
        first_line: number of the line that was read first, from 1.
        lines: newlines in [start, end), and 1 more if it ends in a line without one.
        digest: SHA-256 of the bytes [start, end).
        open_at: where the last record begins, if it has no newline yet; else None.
        next_line: number of the line that the next span begins with: the one after the last, or,
            with ``open_at``, the one that begins there.
    """

    start: int
    end: int
    first_line: int
    lines: int
    digest: bytes
    open_at: int | None
    next_line: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole records beside each other, or one that is too long, or the open one.

    Attributes:
        line: number of the first line.
        data: the records are ``data[:stop]``; empty for one that is too long.
        stop: see ``data``.
        lines: newlines in the records.
        overlong: a record that is too long begins at ``line``.
        open: the content ends before the newline does.
    """

    line: int
    data: bytes
    stop: int
    lines: int = 0
    overlong: bool = False
    open: bool = False


class Cutter:
    """Reads one span in pieces: iterate, then :meth:`span` says what it was.

    Raises what :class:`~countersink.backfill.spans.SpanReader` does.
    """

    def __init__(
        self,
        content: Content,
        start: int,
        first_line: int,
        *,
        quoted: bool,
        end: int | None,
        reads_from: int | None,
        max_lines: int,
        max_bytes: int,
    ) -> None:
        if max_lines < 1 or max_bytes < 1:
            raise ValueError("a span holds at least one line")
        self._content = content
        self._start = start
        self._first_line = first_line
        self._quoted = quoted
        self._end = end
        self._reads_from = start if reads_from is None else reads_from
        if self._reads_from > start:
            raise ValueError("reading begins after the span")
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._at = self._reads_from
        self._line = first_line
        self._lines = 0
        self._digest = hashlib.sha256()
        self._open_at: int | None = None
        self._shown_at = 0  # where the bytes end that showed a record to be too long

    def __iter__(self) -> Iterator[Piece]:
        if self._at < self._start and self._end is None:
            # The line before is read again only if something came after it.
            self._content.seek(self._start)
            if not self._content.read(1):
                return
        while self._wanted():
            piece = self._next()
            if piece is None:
                break
            yield piece

    def span(self) -> Span | None:
        """What was read; None: there was nothing after the start."""
        if self._at <= self._start:
            return None
        opened = self._open_at is not None
        return Span(
            start=self._start,
            end=self._at,
            first_line=self._first_line,
            lines=self._lines + opened,
            digest=self._digest.digest(),
            open_at=self._open_at,
            next_line=self._line,
        )

    def _wanted(self) -> bool:
        if self._open_at is not None:
            return False
        if self._end is not None:
            return self._at < self._end
        full = self._lines >= self._max_lines or self._at - self._start >= self._max_bytes
        return not full or self._at < self._shown_at

    def _next(self) -> Piece | None:
        """The next piece; None at the end of the content, or of what can be read of it."""
        at, line, lines, shown_at = self._at, self._line, self._lines, self._shown_at
        digest = self._digest.copy()
        try:
            self._content.seek(at)
            return self._piece()
        except Unreadable:
            # What stands before the damage is a span; who reads on meets the damage again.
            self._at, self._line, self._lines, self._shown_at = at, line, lines, shown_at
            self._digest = digest
            if self._end is None and at > self._start and at >= shown_at:
                return None
            raise

    def _piece(self) -> Piece | None:
        line, record_at = self._line, self._at
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
        while not (stop := last_end(data, quoted=self._quoted)):
            if len(data) > LONGEST:
                return self._overlong(data, ended, record_at)
            if ended:
                self._take(data, len(data))
                self._open_at, self._line = record_at, line
                return Piece(line, data, len(data), open=True)
            more, ended = self._fill()
            data += more
        if len(data) > LONGEST and end_after(data, data.find(b"\n"), quoted=self._quoted) > (
            LONGEST + 1
        ):
            return self._overlong(data, ended, record_at)
        lines = data.count(b"\n", self._foreign(stop), stop)
        limited = self._limited(data, stop, lines)
        self._take(data, limited, lines if limited == stop else None)
        return Piece(line, data, limited, self._line - line)

    def _overlong(self, data: bytes, ended: bool, record_at: int) -> Piece:
        """Pass the first line of a record that is too long."""
        line = self._line
        self._shown_at = self._at + LONGEST + 1
        while (newline := data.find(b"\n")) < 0 and not ended:
            self._take(data, len(data))
            data, ended = self._fill()
        if newline < 0:
            self._take(data, len(data))
            self._open_at = record_at
        else:
            self._take(data, newline + 1)
        return Piece(line, b"", 0, overlong=True, open=newline < 0)

    def _limited(self, data: bytes, stop: int, lines: int) -> int:
        """``stop``, or where the first record of ``data`` ends with which the span is full."""
        if self._end is not None:
            return stop
        full: list[int] = []  # newlines with which it is
        most_lines = max(1, self._max_lines - self._lines)
        if lines >= most_lines:
            own = data[self._foreign(stop) :]
            full.append(len(data) - 1 - len(own.split(b"\n", most_lines)[most_lines]))
        most_bytes = self._max_bytes - (self._at - self._start)
        if stop >= most_bytes:
            full.append(data.find(b"\n", max(0, most_bytes - 1)))
        if not full or self._at + stop < self._shown_at:
            return stop
        newline = data.find(b"\n", max(min(full), self._shown_at - self._at - 1))
        return end_after(data, newline, quoted=self._quoted)

    def _foreign(self, stop: int) -> int:
        """How many of the next ``stop`` bytes stand before the span."""
        return min(max(0, self._start - self._at), stop)

    def _take(self, data: bytes, stop: int, lines: int | None = None) -> None:
        """Go on by ``stop`` bytes of ``data``; ``lines``: newlines in those of the span."""
        foreign = self._foreign(stop)
        if lines is None:
            lines = data.count(b"\n", foreign, stop)
        self._digest.update(memoryview(data)[foreign:stop])
        self._lines += lines
        self._line += lines + (data.count(b"\n", 0, foreign) if foreign else 0)
        self._at += stop

    def _fill(self) -> tuple[bytes, bool]:
        """The next window, and whether the content, or the span, ends with it."""
        content = self._content
        size = WINDOW
        if self._end is not None:
            size = min(size, self._end - content.offset)
        parts: list[bytes] = []
        missing = size
        while missing:
            try:
                part = content.read(missing)
            except Unreadable:
                if not parts:
                    raise
                return b"".join(parts), False  # first what could be read
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        if missing and self._end is not None:
            raise Unreadable(
                f"{content.name} ends at byte {content.offset:,},"
                f" before byte {self._end:,} that was read of it before"
            )
        reached = self._end is not None and content.offset == self._end
        return b"".join(parts), missing > 0 or reached

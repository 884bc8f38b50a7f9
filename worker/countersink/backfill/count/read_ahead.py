"""``ReadAhead``, which reads the chunks of a source before they are asked for, while the caller
commits: the first ones (``FIRST``) by a thread, and the others by the child processes.

For these this process finds out where chunks end. A child opens a plain file by itself; of a
compressed source it gets the bytes. It gives back what the lines come to.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final, Self

from countersink.backfill.content import PlainFile
from countersink.backfill.count.chunk_reader import (
    NONE_REFUSED,
    MinuteLabels,
    ReadChunk,
    Refused,
    Start,
    pieces_from,
    read_chunk,
)
from countersink.backfill.count.chunks import NumberedLine, tally_of
from countersink.backfill.count.reader_pool import Handed, ReaderPool
from countersink.backfill.count.task import OpenSource, Work, reader_of
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import Recipe
from countersink.backfill.spans import BYTES, LINES, Span, SpanPiece, SpanReader
from countersink.counting.counters.catalog import Catalog, Scheme
from countersink.runtime.members import HASH_BYTES

FIRST: Final = 4
"""Chunks of a source that the thread reads: fewer are read in the time that processes take to
start."""
MOST_LINES: Final = 262_144
"""Lines of a chunk where those before had few cells."""
CELLS: Final = 20_000
"""Cells of a chunk that has more lines than :data:`LINES`, about."""
BIG: Final = 128 * 1024 * 1024
"""Bytes of a file that has more chunks."""


@dataclass(frozen=True, slots=True)
class CutChunk:
    """A chunk that a child process is to read.

    Attributes:
        start: where it begins.
        span: its bytes.
        directives: in force there.
        file: which holds them; None: they are in ``pieces``.
        pieces: they, cut where lines end.
    """

    start: Start
    span: Span
    directives: object
    file: PlainFile | None
    pieces: Sequence[SpanPiece] = field(repr=False)


@dataclass(slots=True)
class ReadAhead:
    """The chunks of a source in order, read by certain settings: under others they are to be read
    anew. A context manager.

    Args:
        work: whose they are.
        at_hand: the source.
        catalog: what is known of counters.
        bucket: to which buckets lines go.
        start: where the first chunk begins.

    Attributes:
        left: the source ends in a line without a newline, which was left.
    """

    work: Work
    at_hand: OpenSource
    catalog: Catalog
    bucket: MinuteLabels
    start: Start
    left: bool = False
    _ready: deque["Future[ReadChunk | None] | Handed"] = field(default_factory=deque)
    _spans: SpanReader = field(init=False)
    """What cuts the chunk that the thread reads."""
    _cut: CutChunk | None = None
    _last: ReadChunk | None = None
    _more_lines: int = 0
    _by_thread: int = 0
    _ended: bool = False
    _broken: BackfillError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            self._pool.end_processes()  # one of them may be gone
        for given in self._ready:
            if isinstance(given, Handed):
                self._pool.end_processes()
            elif not given.cancel():
                wait([given])
        self.work.watch.jobs = 0

    def next(self) -> ReadChunk | None:
        """The next chunk; None: there are no more, or it was asked to stop.

        Raises:
            Unreadable: the content cannot be read on.
            UnknownZone: a time zone is unknown on this machine.
        """
        self._hand_out()
        if not self._ready:
            if self._broken is not None:
                raise self._broken
            return None
        given = self._ready.popleft()
        if isinstance(given, Handed):
            self._cut_next()  # so that the child that is done gets it at once
            self._last = given.result(self.work.stop)
            if self._last is None:
                self._pool.end_processes()  # it was told to stop, and they are still at work
                return None
        else:
            self._last, self.left = given.result(), self._spans.left
            if self._last is None or self.left:
                self._ended = True
            else:
                self.start = Start.behind(self._last.span)
        if self._last is not None:
            self._size_next(self._last)
        self._hand_out()  # to be read while this one is committed
        return self._last

    def _size_next(self, found: ReadChunk) -> None:
        """Let the next chunks have the more lines, the fewer cells these lines have: cells are what
        a commit costs, and what stays in memory, as do visitors and rejected lines.
        """
        lines, own = found.counts.lines, self.work.pace.max_lines
        if self.work.options.rate is None and own >= LINES and lines >= LINES:
            held = sum(map(len, found.amounts.values())) + found.counts.rejected
            held += sum(map(len, found.members.values())) // HASH_BYTES
            self._more_lines = min(MOST_LINES, max(LINES, lines * CELLS // max(1, held)))

    def again(self, refused: Refused) -> ReadChunk:
        """The chunk that was given last once more, without the lines of some cells."""
        assert self._last is not None
        start, span = self._last.start, self._last.span
        found = self._submitted(self._cutting(start, span.end), start, refused).result()
        assert found is not None
        return found

    def labels(self, lines: Sequence[NumberedLine]) -> set[int]:
        """What ``bucket`` says of the minutes of some lines."""
        # One by one: other lines stood between them, which may say their day.
        reader, bucket = self.at_hand.reader, self.bucket
        each = self._pool.thread.map(lambda line: tally_of([line], reader, bucket), lines)
        return {label for tally in each for label in tally.amounts}

    @property
    def _pool(self) -> ReaderPool:
        return self.work.pool

    def _hand_out(self) -> None:
        """Let all read that can: the thread, or each child, has one chunk."""
        if self._ready and not isinstance(self._ready[0], Handed):
            return  # where the thread's chunk ends is not known yet
        if self._by_thread < FIRST:
            if self.at_hand.content.size >= BIG:
                self._pool.start()  # which takes as long as to read some chunks
            if not self._ended:
                self._by_thread += 1
                self._spans = self._cutting(self.start)
                self._ready.append(self._submitted(self._spans, self.start))
            return
        while len(self._ready) < self._pool.jobs:
            self._cut_next()
            if self._cut is None:
                return
            cut, self._cut = self._cut, None
            wanted, own = self.at_hand.wanted, self.catalog.of(self.at_hand.wanted.counter)
            recipe = wanted.recipe, wanted.counter, own, self.at_hand.head
            read = partial(_read_apart, *recipe, cut, self.bucket, wanted.scope)
            self._ready.append(self._pool.hand(read))
            self.work.watch.jobs = self._pool.jobs

    def _cutting(
        self, start: Start, end: int | None = None, *, digested: bool = True, streamed: bool = True
    ) -> SpanReader:
        max_lines = self._more_lines or self.work.pace.max_lines
        return SpanReader(
            self.at_hand.content,
            start.at,
            start.line,
            quoted=self.at_hand.reader.quoted,
            end=end,
            leave_open=self.at_hand.leave_open,
            digested=digested,
            max_lines=max_lines,
            # None of them are kept where they are read as they are cut.
            max_bytes=BYTES * max(1, max_lines // LINES if streamed else 1),
        )

    def _submitted(
        self, spans: SpanReader, start: Start, refused: Refused = NONE_REFUSED
    ) -> "Future[ReadChunk | None]":
        at_hand = self.at_hand
        return self._pool.thread.submit(
            read_chunk,
            *(pieces_from(spans, start), lambda: spans.span, start, at_hand.reader, self.bucket),
            scope=at_hand.wanted.scope,
            refused=refused,
        )

    def _cut_next(self) -> None:
        """Find out where the next chunk ends."""
        if self._cut is not None or self._ended:
            return
        reader, start = self.at_hand.reader, self.start
        directives, pieces = reader.directives(start.line), list[SpanPiece]()
        file = self.at_hand.content.plain_file()
        spans = self._cutting(start, digested=file is None, streamed=file is not None)
        try:
            for piece in pieces_from(spans, start):
                reader.note_directives(piece.line, piece.data, piece.stop)
                if file is None:
                    pieces.append(piece)
        except BackfillError as error:
            self._broken, self._ended = error, True  # what stands before it is counted first
            return
        self.left, span = spans.left, spans.span
        self._ended = span is None or self.left
        if span is not None:
            self._cut = CutChunk(start, span, directives, file, pieces)
            self.start = Start.behind(span)


def _read_apart(
    recipe: Recipe,
    counter: str,
    own: Scheme,
    head: bytes,
    cut: CutChunk,
    bucket: MinuteLabels,
    scope: bytes,
) -> ReadChunk | None:
    """Read a chunk in a child process."""
    reader, start = _reader(recipe, counter, own, head), cut.start
    reader.set_directives(start.line, cut.directives)
    if cut.file is None:
        return read_chunk(cut.pieces, lambda: cut.span, start, reader, bucket, scope=scope)
    with cut.file.open() as content:
        spans = SpanReader(content, start.at, start.line, quoted=reader.quoted, end=cut.span.end)
        pieces = pieces_from(spans, start)
        return read_chunk(pieces, lambda: spans.span, start, reader, bucket, scope=scope)


_reader = lru_cache(maxsize=2)(reader_of)

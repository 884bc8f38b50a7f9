"""``ReadAhead`` reads the next chunks of a source while the caller commits the previous ones. A
thread reads the first chunks (``THREAD_CHUNKS``), and child processes read the others.

The parent process finds out where each chunk for a child ends. If each record of a plain file is a
line, this can be the first newline after a number of bytes, without reading the bytes before: then
the child reads the chunk from the file itself. The bytes of other chunks are read by the parent,
and sent to the child. The child returns amounts, counts and samples.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final, Self

from countersink.backfill.content import PlainFile
from countersink.backfill.count.chunk_reader import (
    NO_REFUSALS,
    MinuteLabels,
    ReadChunk,
    Refused,
    Start,
    pieces_from,
    read_chunk,
)
from countersink.backfill.count.chunks import NumberedLine, tally_of
from countersink.backfill.count.reader_pool import ChildTask, ReaderPool
from countersink.backfill.count.task import OpenSource, Work, reader_of
from countersink.backfill.errors import BackfillError, Unreadable, WrongCut
from countersink.backfill.options import Recipe
from countersink.backfill.spans import BYTES, LINES, Span, SpanPiece, SpanReader
from countersink.counting.counters.catalog import Catalog, Scheme
from countersink.logs.lines import BLOCK_BYTES
from countersink.runtime.members import HASH_BYTES

THREAD_CHUNKS: Final = 4
"""Number of chunks at the beginning of a source that the thread reads. Reading these takes longer
than starting child processes, so the start pays for sources with more chunks."""
MAX_LINES: Final = 262_144
"""Maximum of lines that a chunk should have, when the chunks before have few cells."""
EXCESS: Final = 4
"""A chunk that was cut by its size is cut anew if it has more cells, rejected and sampled lines
than so many times :data:`LINES`: they would take much memory."""
CHUNK_CELLS: Final = 20_000
"""Number of cells that a chunk with more than :data:`LINES` lines should have."""
BIG_FILE: Final = 128 * 1024 * 1024
"""Size in bytes from which a file most likely has more than :data:`THREAD_CHUNKS` chunks, so that
child processes are started at once."""


@dataclass(frozen=True, slots=True)
class CutChunk:
    """A chunk for a child process to read.

    Attributes:
        start: beginning of the chunk. The number of its line may be an estimate;
            :meth:`ReadAhead.next` corrects it.
        end: offset after its last byte.
        file: the file from which the child reads the bytes; None if they are in ``pieces``.
        most_held: maximum of cells and rejected lines of a chunk in the ``file``.
        span: the range of the bytes in ``pieces``; None with a ``file``.
        pieces: the bytes themselves, cut at the ends of lines; empty with a ``file``.
        directives: the directives that apply at its beginning: lines of a W3C log that say how
            later lines are read; None if there are none.
    """

    start: Start
    end: int
    file: PlainFile | None = None
    most_held: int = 0
    span: Span | None = None
    pieces: Sequence[SpanPiece] = field(default=(), repr=False)
    directives: object = None


@dataclass(slots=True)
class ReadAhead:
    """Reader of the chunks of a source, in order; a context manager. An instance reads all chunks
    with one catalog and one set of salts. After these have changed, create a new instance.

    Args:
        work: the state that all chunks of the run share.
        opened: the source.
        catalog: the catalog by which the chunks are read.
        bucket: function from minutes to labels.
        start: beginning of the first chunk to read.

    Attributes:
        left_open: True if the source ends in a line without a newline, which was left out, because
            its end may not be written yet. Valid when :meth:`next` has returned None.
        latest: the chunk that :meth:`next` or :meth:`read_again` returned last.
    """

    work: Work
    opened: OpenSource
    catalog: Catalog
    bucket: MinuteLabels
    start: Start
    left_open: bool = False
    latest: ReadChunk | None = None
    _ready: deque["Future[ReadChunk | None] | ChildTask"] = field(default_factory=deque)
    _spans: SpanReader = field(init=False)
    """Cuts the chunk that the thread reads."""
    _cut: CutChunk | None = None
    _more_lines: int = 0
    _by_thread: int = 0
    _ended: bool = False
    _error: BackfillError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            self._pool.end_processes()  # one of them may have died
        for submitted in self._ready:
            if isinstance(submitted, ChildTask):
                self._pool.end_processes()
            elif not submitted.cancel():
                wait([submitted])
        self.work.watch.jobs = 0

    def next(self) -> ReadChunk | None:
        """Return the next chunk, read and not counted yet. Return None if there is none, or if the
        run should stop while a child process reads it. Chunks after it are read while the caller
        counts it.

        Raises:
            Unreadable: the next bytes of the content cannot be read. All chunks before them were
                returned.
            BackfillError: a child process was killed.
            WrongCut: the next chunk must be cut anew: the caller must read on with a new instance.
            UnknownZone: a time zone is unknown on this machine.
        """
        self._submit_chunks()
        if not self._ready:
            if self._error is not None:
                raise self._error
            return None
        submitted, before = self._ready.popleft(), self.latest
        if isinstance(submitted, ChildTask):
            self._cut_next()  # so that the idle child gets it at once
            self.latest = submitted.result(self.work.stop)
            if self.latest is None:
                self._pool.end_processes()  # the run should stop, and they are still working
                return None
            if before is not None:
                self.latest = self.latest.at_line(before.span.next_line)
        else:
            self.latest, self.left_open = submitted.result(), self._spans.left_open
            if self.latest is None or self.left_open:
                self._ended = True
            else:
                self.start = Start.after(self.latest.span)
        if self.latest is not None:
            self._size_next(self.latest)
        self._submit_chunks()  # to be read while the caller commits this chunk
        return self.latest

    def _size_next(self, found: ReadChunk) -> None:
        """Set the number of lines of the next chunks for child processes so that each has about
        :data:`CHUNK_CELLS` cells, visitors and rejected lines together: the time of a commit and
        the memory depend on these. The number is from :data:`LINES` to :data:`MAX_LINES`, and
        smaller near the end of the source. Judge by ``found``, the latest chunk; do nothing if it
        has fewer than :data:`LINES` lines, or with ``--rate``, which limits the lines of a chunk.
        """
        lines, limit = found.counts.lines, self.work.pace.max_lines
        if self.work.options.rate is None and limit >= LINES and lines >= LINES:
            held = sum(map(len, found.amounts.values())) + found.counts.rejected
            held += sum(map(len, found.members.values())) // HASH_BYTES
            # Smaller at the end of the source, so that all child processes end at about one time.
            size, read = self.opened.content.size, max(1, self.opened.content.position)
            left = (size - read) * self.start.offset // read // (2 * self._pool.jobs)
            most = min(CHUNK_CELLS / max(1, held), left / found.counts.size_bytes)
            self._more_lines = max(LINES, min(MAX_LINES, int(lines * most)))

    def read_again(self, refused: Refused) -> ReadChunk:
        """Read the chunk that :meth:`next` returned last once more, and return it. This time the
        lines of the cells in ``refused``, whose visitors cannot be counted, are rejected.

        Raises:
            Unreadable: the bytes of the chunk cannot be read any more.
        """
        assert self.latest is not None
        start, span = self.latest.start, self.latest.span
        found = self._read_by_thread(self._span_reader(start, span.end), start, refused).result()
        assert found is not None
        self.latest = found
        return found

    def labels(self, lines: Sequence[NumberedLine]) -> set[int]:
        """Return the different numbers that the function ``bucket`` returns for the minutes of
        ``lines``, which are lines of the source. :meth:`MinuteLabels.decode` splits such a number
        into a bucket's label and a salt."""
        # One by one: the lines are not neighbours, and directives between them may set the day.
        reader, bucket = self.opened.reader, self.bucket
        each = self._pool.thread.map(lambda line: tally_of([line], reader, bucket), lines)
        return {label for tally in each for label in tally.amounts}

    @property
    def _pool(self) -> ReaderPool:
        return self.work.pool

    def _submit_chunks(self) -> None:
        """Give the next chunks to idle readers: the first :data:`THREAD_CHUNKS` chunks to the
        thread, one at a time, and later chunks to the child processes, one to each."""
        if self._ready and not isinstance(self._ready[0], ChildTask):
            return  # the end of the thread's chunk is unknown yet
        if self._by_thread < THREAD_CHUNKS:
            if self.opened.content.size >= BIG_FILE:
                self._pool.start()  # takes as long as reading some chunks
            if not self._ended:
                self._by_thread += 1
                self._spans = self._span_reader(self.start)
                self._ready.append(self._read_by_thread(self._spans, self.start))
            return
        while len(self._ready) < self._pool.jobs:
            self._cut_next()
            if self._cut is None:
                return
            cut, self._cut = self._cut, None
            wanted, scheme = self.opened.wanted, self.catalog.scheme(self.opened.wanted.counter)
            recipe = wanted.recipe, wanted.counter, scheme, self.opened.head
            read = partial(_read_in_child, recipe, cut, self.bucket, wanted.scope)
            self._ready.append(self._pool.submit(read))
            self.work.watch.jobs = self._pool.jobs

    def _span_reader(self, start: Start, end: int | None = None, lines: int = 0) -> SpanReader:
        return SpanReader(
            *(self.opened.content, start.offset, start.line),
            quoted=self.opened.reader.quoted,
            end=end,
            leave_open=self.opened.leave_open,
            max_lines=lines or self.work.pace.max_lines,
        )

    def _read_by_thread(
        self, spans: SpanReader, start: Start, refused: Refused = NO_REFUSALS
    ) -> "Future[ReadChunk | None]":
        opened = self.opened
        return self._pool.thread.submit(
            read_chunk,
            *(pieces_from(spans, start), lambda: spans.span, start, opened.reader, self.bucket),
            scope=opened.wanted.scope,
            refused=refused,
        )

    def _cut_next(self) -> None:
        """Find the end of the next chunk, and keep the chunk until a child process is free. Do
        nothing if a chunk is kept already, or if the source has ended. If its bytes cannot be read,
        keep the error, which :meth:`next` raises after the chunks before.
        """
        if self._cut is not None or self._ended or self._cut_by_size():
            return
        reader, start = self.opened.reader, self.start
        directives, pieces = reader.directives(start.line), list[SpanPiece]()
        spans = self._span_reader(start, lines=self._more_lines)
        try:
            for piece in pieces_from(spans, start):
                reader.note_directives(piece.line, piece.data, piece.stop)
                pieces.append(piece)
        except BackfillError as error:
            self._error, self._ended = error, True  # raised once all chunks before are counted
            return
        self.left_open, span = spans.left_open, spans.span
        self._ended = span is None or self.left_open
        if span is not None:
            self._cut = CutChunk(start, span.end, span=span, pieces=pieces, directives=directives)
            self.start = Start.after(span)

    def _cut_by_size(self) -> bool:
        """Find the end of the next chunk without reading the chunk: it is the first newline after a
        number of bytes, estimated by the length of the lines in the latest chunk. Keep the chunk,
        for a child process to read from the file, and return True.

        Do nothing and return False if the chunk must be cut by reading it: no child can open the
        file, records may contain newlines, there are directives, :meth:`_size_next` has set no
        number of lines, or soon behind these bytes the file ends, has no newline, or cannot be
        read.
        """
        content, start, last = self.opened.content, self.start, self.latest
        file, reader = content.plain_file(), self.opened.reader
        by_lines = reader.quoted is None and reader.directives(start.line) is None
        if not (file and last and self._more_lines and by_lines):
            return False
        density = last.counts.size_bytes / max(1, last.counts.lines)
        size = int(min(self._more_lines * density, BYTES * MAX_LINES / LINES))
        if size < LINES * density:
            size = min(size, BYTES)  # few, but long lines
        data = b""
        with suppress(Unreadable):
            data = content.read_at(BLOCK_BYTES, start.offset + size)
        end = start.offset + size + data.find(b"\n") + 1
        if b"\n" not in data or content.offset >= content.size:
            return False
        self._cut = CutChunk(start, end, file, most_held=EXCESS * LINES)
        self.start = Start(offset=end, line=start.line + 1)  # the number is not known yet
        return True


def _read_in_child(
    of_reader: tuple[Recipe, str, Scheme, bytes], cut: CutChunk, bucket: MinuteLabels, scope: bytes
) -> ReadChunk | None:
    """Read a chunk in a child process, and return the results of its lines.

    Args:
        of_reader: the arguments of ``reader_of``, for the reader of the source.
        cut: the chunk.
        bucket, scope: see :func:`read_chunk`.

    Raises:
        WrongCut: the chunk is read from the file, and has too many cells and rejected lines, or not
            all of it can be read.
        Unreadable: the file cannot be opened.
        UnknownZone: a time zone is unknown on this machine.
    """
    reader, start = _reader(*of_reader), cut.start
    if cut.file is None:
        reader.set_directives(start.line, cut.directives)
        return read_chunk(cut.pieces, lambda: cut.span, start, reader, bucket, scope=scope)
    with cut.file.open() as content:
        spans = SpanReader(content, start.offset, start.line, end=cut.end)
        chunk = spans.pieces(), lambda: spans.span, start, reader, bucket
        try:
            return read_chunk(*chunk, scope=scope, most_held=cut.most_held)
        except Unreadable as error:
            raise WrongCut from error


_reader = lru_cache(maxsize=2)(reader_of)

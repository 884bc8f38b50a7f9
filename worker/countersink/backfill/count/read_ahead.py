"""``ReadAhead``, which reads the chunks of a source before they are asked for, while the caller
commits: the first ones (``FIRST``) by a thread, and with ``--jobs`` the others by child processes.

This process cuts chunks, and counts them in order. Whoever reads one gets its bytes, and gives back
what its lines come to.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final, Self

from countersink.backfill.count.chunk_reader import (
    NONE_REFUSED,
    CutChunk,
    MinuteLabels,
    ReadChunk,
    Refused,
    Start,
    cut_chunk,
    read_chunk,
)
from countersink.backfill.count.reader_pool import Handed, ReaderPool
from countersink.backfill.count.samples import NumberedLine, tally_of
from countersink.backfill.count.task import OpenSource, Work, reader_of
from countersink.backfill.errors import BackfillError, ChildKilled, SourceChanged
from countersink.backfill.options import Recipe
from countersink.store.counters.catalog import Catalog, Scheme

_KILLED: Final = "a child process was killed: the rest was read without them"
FIRST: Final = 4
"""Chunks of a source that the thread reads: fewer are read in the time that processes take to
start."""


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
        notices: for people.
    """

    work: Work
    at_hand: OpenSource
    catalog: Catalog
    bucket: MinuteLabels
    start: Start
    left: bool = False
    notices: list[str] = field(default_factory=list)
    _ready: deque[tuple[CutChunk, "Future[ReadChunk] | Handed"]] = field(default_factory=deque)
    _last: CutChunk | None = None
    _cut: int = 0
    _ended: bool = False
    _broken: BackfillError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        handed = [given for _, given in self._ready if isinstance(given, Handed)]
        others = [given for _, given in self._ready if not isinstance(given, Handed)]
        if handed:
            self._pool.end_processes()
        wait([given for given in others if not given.cancel()])
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
        self._last, given = self._ready.popleft()
        if not isinstance(given, Handed):
            found: ReadChunk | None = given.result()
        else:
            try:
                found = given.result(self.work.stop)
            except ChildKilled:
                return self._without_processes(self._last)
        self._hand_out()  # to be read while this one is committed
        return found

    def again(self, refused: Refused) -> ReadChunk:
        """The chunk that was given last once more, without the lines of some cells."""
        assert self._last is not None
        return self._by_thread(self._last, refused).result()

    def labels(self, lines: Sequence[NumberedLine]) -> set[int]:
        """What ``bucket`` says of the minutes of some lines."""
        tally = self._pool.thread.submit(tally_of, lines, self.at_hand.reader, self.bucket)
        return set(tally.result().amounts)

    @property
    def _pool(self) -> ReaderPool:
        return self.work.pool

    def _hand_out(self) -> None:
        """Let all read that can: the thread or each child has one chunk."""
        while not self._ended and len(self._ready) < (self._pool.jobs if self._by_children else 1):
            self._cut_next()

    @property
    def _by_children(self) -> bool:
        return self._pool.jobs > 0 and self._cut >= FIRST

    def _cut_next(self) -> None:
        try:
            cut, self.left = self._cut_at(self.start)
        except BackfillError as error:
            self._broken, self._ended = error, True  # what stands before it is counted first
            return
        self._ended = cut is None or self.left
        if cut is None:
            return
        self.start = Start(at=cut.span.end, line=cut.span.next_line)
        if self._by_children:
            handed = self._by_process(cut)
            # Not its bytes: there may be many such chunks.
            self._ready.append((replace(cut, pieces=()), handed))
            self.work.watch.jobs = self._pool.jobs
        else:
            self._ready.append((cut, self._by_thread(cut, NONE_REFUSED)))
        self._cut += 1

    def _cut_at(self, start: Start, end: int | None = None) -> tuple[CutChunk | None, bool]:
        return cut_chunk(
            self.at_hand.content,
            self.at_hand.reader,
            start,
            end=end,
            leave_open=self.at_hand.leave_open,
            max_lines=self.work.pace.max_lines,
        )

    def _by_thread(self, cut: CutChunk, refused: Refused) -> "Future[ReadChunk]":
        if not cut.pieces:
            whole, _ = self._cut_at(cut.start, cut.span.end)
            if whole is None or whole.span.digest != cut.span.digest:
                name = self.at_hand.content.name
                raise SourceChanged(f"{name} has changed while it was read: run it again")
            cut = whole
        return self._pool.thread.submit(
            read_chunk,
            cut,
            self.at_hand.reader,
            self.bucket,
            scope=self.at_hand.wanted.scope,
            refused=refused,
        )

    def _by_process(self, cut: CutChunk) -> Handed:
        # The thread is not to use the reader meanwhile.
        wait([given for _, given in self._ready if not isinstance(given, Handed)])
        at_hand, wanted, reader = self.at_hand, self.at_hand.wanted, self.at_hand.reader
        read = partial(
            _read_apart,
            *(wanted.recipe, wanted.counter, self.catalog.of(wanted.counter), at_hand.head),
            *(cut, self.bucket, wanted.scope, reader.directives(cut.start.line)),
        )
        for piece in cut.pieces:
            reader.see(piece.line, piece.data[: piece.stop])
        reader.passed(cut.span.start, cut.span.end, cut.span.next_line)
        return self._pool.hand(read)

    def _without_processes(self, cut: CutChunk) -> ReadChunk:
        """Read the chunk at hand, and all that are cut, by the thread."""
        self._pool.give_up_processes()
        if not self.work.stop():  # else what ends this process has ended them, too
            self.notices.append(_KILLED)
        cuts, self._ready = [one for one, _ in self._ready], deque()
        found = self._by_thread(cut, NONE_REFUSED).result()
        # Anew: their bytes are not at hand.
        if cuts:
            self.start = cuts[0].start
        self._ended, self.left, self._broken = False, False, None
        return found


def _read_apart(
    recipe: Recipe,
    counter: str,
    own: Scheme,
    head: bytes,
    cut: CutChunk,
    bucket: MinuteLabels,
    scope: bytes,
    directives: object,
) -> ReadChunk:
    """Read a chunk in a child process."""
    reader = _reader(recipe, counter, own, head)
    reader.directed(cut.start.line, directives)
    return read_chunk(cut, reader, bucket, scope=scope)


_reader = lru_cache(maxsize=2)(reader_of)

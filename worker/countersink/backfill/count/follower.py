"""Follows one source while others may do the same: counts its planned chunks, plans chunks of its
new lines, and counts these here or leaves them to child processes.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from countersink.backfill import run_state
from countersink.backfill.count import chunks, sources
from countersink.backfill.count.chunk_reader import (
    NONE_REFUSED,
    ReadChunk,
    Refused,
    Start,
    read_chunk,
)
from countersink.backfill.count.chunks import Chunk
from countersink.backfill.count.sources import Settled, Source
from countersink.backfill.count.task import LOOK_S, OpenSource, Work, salts_of
from countersink.backfill.count.transaction import count_next, count_planned, plan, start_of_next
from countersink.backfill.errors import Overtaken, SourceDiffers
from countersink.backfill.input.spans import Span, SpanReader, measure
from countersink.backfill.run_state import LineCounts
from countersink.runtime.members import Salt
from countersink.store.connection import Session
from countersink.store.counters.catalog import Catalog

PLAN_S: Final = 0.3
"""Seconds that one step of planning takes, about."""


class Follower:
    """Counts what of one source is not counted, or plans it.

    Args:
        work: whose source it is.
        opened: the source.
        settled: which source it is.

    Attributes:
        held_to: up to where the content is known to be that source's.
    """

    def __init__(self, work: Work, opened: OpenSource, settled: Settled) -> None:
        self._work = work
        self._content = opened.content
        self._reader = opened.reader
        self._wanted = opened.wanted
        self._source = settled.source
        self.held_to = settled.to
        self._ended = settled.ended
        self._last: ReadChunk | None = None
        self._scope = opened.wanted.scope

    def planned(self, *, undone: bool = True) -> None:
        """Count the chunks that are pending, as far as the content goes, and see to it that those
        are counted that others have at hand.

        Args:
            undone: and those that are undone now.

        Raises:
            As :func:`countersink.backfill.count.transaction.count_planned`.
        """
        work = self._work
        taken_back = set[int]()
        if undone:
            taken_back = {chunk.start_at for chunk in self._waiting() if chunk.state == "undone"}
        while not work.stop():
            waiting = [
                chunk
                for chunk in self._waiting()
                if chunk.state == "pending" or chunk.start_at in taken_back
            ]
            if not waiting:
                return
            counted = [self._count(chunk) for chunk in waiting if not work.stop()]
            # What another has locked is counted soon; or its session ends, and it is to be had.
            if not any(counted):
                time.sleep(LOOK_S)

    def _waiting(self) -> list[Chunk]:
        found = self._work.link.run(chunks.to_be_counted, source=self._source)
        return [chunk for chunk in found if chunk.end_at <= self.held_to]

    def _count(self, chunk: Chunk) -> bool:
        """Count a chunk, if it is to be had."""
        work = self._work
        work.pace.wait()
        if work.stop():
            return False
        source = self._look()
        # Before the transaction: a compressed file is read from its beginning for it.
        self._content.seek(chunk.reads_from)
        counted = work.link.run(
            count_planned, work.task, source, chunk.start_at, self._content, self._reader
        )
        if counted is None:
            return False
        work.watch.add(counted)
        work.pace.note(counted.lines)
        return True

    def as_planned(self, end: int) -> None:
        """Count chunks before ``end`` as another process plans them, until told to stop.

        Raises:
            As :meth:`planned`.
        """
        while not self._work.stop():
            # Whether the bytes are those that were planned is seen when they are read.
            self.held_to = min(self._look().read_to, end)
            self.planned(undone=False)
            time.sleep(LOOK_S)

    def new(self) -> None:
        """Count what stands behind all chunks, up to the end.

        Raises:
            SourceDiffers: it turns out that it is another source.
            As :func:`countersink.backfill.count.transaction.count_next`.
        """
        work = self._work
        while not (self._ended or work.stop()):
            source = self._look()
            if source.read_to > self.held_to:
                self._verify(source)
                continue
            start = work.link.run(start_of_next, source, self._content)
            catalog = work.link.run(work.task.catalog)
            salts = work.link.run(salts_of, self._wanted.recipe, work.task.counter)
            found = self._last
            if (
                found is None
                or (found.start, found.salts) != (start, salts)
                or found.catalog is not catalog
            ):
                found = self._last = self._read(start, catalog, salts)
            if found is None:
                return
            work.pace.wait()
            if work.stop():
                return
            again = partial(self._read_again, found)
            try:
                counted = work.link.run(
                    count_next, work.task, source, found, self._wanted.head, again
                )
            except Overtaken:
                continue
            self.held_to = found.span.end
            work.watch.add(counted)
            work.pace.note(counted.lines)

    def take_over(self) -> None:
        """Make what others have planned and not counted, or undone, this run's.

        Raises:
            RunEnded: this run must not count any more.
            StoreError: as any transaction.
        """
        self._work.link.run(self._take_over)

    def plan(self) -> bool:
        """Plan for a moment what is new of a plain file; whether that was all of it.

        Raises:
            RunEnded: this run must not count any more.
            Unreadable: the content cannot be read.
            StoreError: as any transaction.
        """
        link = self._work.link
        try:
            source = self._look()
            if source.read_to > self.held_to:
                self._verify(source)
        except SourceDiffers:
            return True  # others have to look again which it is
        if self._ended:
            return True
        start = link.run(start_of_next, source, self._content)
        spans, finished = self._measured(start)
        if not spans:
            return finished
        if not link.run(self._insert, source, start, spans):
            return False  # somebody was faster: what is there now decides
        self.held_to = spans[-1].end
        return finished

    def _measured(self, start: Start) -> tuple[list[Span], bool]:
        """The spans that follow, as many as a moment allows, and whether these are all."""
        spans: list[Span] = []
        until = time.monotonic() + PLAN_S
        while time.monotonic() < until and not self._work.stop():
            span = measure(
                SpanReader(
                    self._content,
                    start.at,
                    start.first_line,
                    quoted=self._reader.quoted,
                    reads_from=start.reads_from,
                    max_lines=self._work.pace.max_lines,
                )
            )
            if span is None:
                return spans, True
            spans.append(span)
            if span.open_at is not None:
                return spans, True
            start = Start(at=span.end, reads_from=span.end, first_line=span.next_line)
        return spans, False

    def _insert(
        self, session: Session, source: Source, start: Start, spans: Sequence[Span]
    ) -> bool:
        """Make chunks of spans, unless somebody was faster."""
        with session.transaction():
            planned = plan(session, self._work.task.run, source, start, spans, self._wanted.head)
            if planned:
                self._hold_run(session)
        return planned

    def _take_over(self, session: Session) -> None:
        with session.transaction():
            sources.read(session, self._source, lock=True)
            chunks.take_over(session, self._source, self.held_to, self._work.task.run)
            self._hold_run(session)

    def _hold_run(self, session: Session) -> None:
        """See that the run still counts, until the transaction ends; nothing of an undone run must
        be planned.
        """
        run_state.record(session, self._work.task.run, LineCounts())

    def _read(
        self,
        start: Start,
        catalog: Catalog,
        salts: tuple[Salt, ...] | None,
        refused: Refused = NONE_REFUSED,
        *,
        end: int | None = None,
    ) -> ReadChunk | None:
        work = self._work
        return read_chunk(
            self._content,
            self._reader,
            start,
            catalog,
            work.task.scheme(catalog),
            end=end,
            max_lines=work.pace.max_lines,
            scope=self._scope,
            refused=refused,
            salts=salts,
        )

    def _read_again(self, found: ReadChunk, refused: Refused) -> ReadChunk:
        """The same bytes once more, whatever has been added behind them since."""
        end = found.span.end
        again = self._read(found.start, found.catalog, found.salts, refused, end=end)
        if again is None or again.span.digest != found.span.digest:
            self._last = None  # it has changed
            raise Overtaken
        return again

    def _look(self) -> Source:
        """The source as it is now.

        Raises:
            SourceDiffers: it is gone, or begun anew.
        """
        source = self._work.link.run(sources.read, self._source)
        if source is None or source.recipe != self._wanted.recipe:
            raise SourceDiffers
        if source.read_to < self.held_to and not self._ended:
            raise SourceDiffers
        return source

    def _verify(self, source: Source) -> None:
        """Look at what others have counted of the source meanwhile."""
        if (read := self._last) is not None and read.start.at == self.held_to:
            # What was read here and counted by another, or in a transaction whose end was unknown.
            following = self._work.link.run(_chunk_digest, source, self.held_to)
            if following == (read.span.end, read.span.digest):
                self.held_to = read.span.end
                return
        work = self._work
        held = work.link.run(
            sources.compare,
            self._content,
            source,
            self._wanted.head,
            self.held_to,
            work.watch.look,
        )
        self.held_to = held.to
        if held.verdict == "older":
            self._ended = True  # another process has a newer copy, and has read on in it
        elif held.verdict != "same":
            raise SourceDiffers  # maybe a newer copy, maybe not: that is to be settled


def _chunk_digest(session: Session, source: Source, start_at: int) -> tuple[int, bytes] | None:
    for chunk in chunks.of(session, source.id, start_at):
        return (chunk.end_at, chunk.digest) if chunk.start_at == start_at else None
    return None

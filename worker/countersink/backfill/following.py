"""Reading on in a source: what was planned and not counted, then what is new."""

import time
from functools import partial
from typing import Final

from countersink.backfill import chunks, sources
from countersink.backfill.chunks import Chunk
from countersink.backfill.contents import Content
from countersink.backfill.counting import Overtaken, count_next, count_planned, start_of_next
from countersink.backfill.formats import Reader
from countersink.backfill.identity import Held, compare
from countersink.backfill.reading import ReadChunk, Start, read_chunk
from countersink.backfill.settling import Settled
from countersink.backfill.sources import Source
from countersink.backfill.work import Work
from countersink.store.connection import Session
from countersink.store.policies import Policies

_LOOK_S: Final = 0.1


class Differs(Exception):
    """Another process has read on in the source, and this content may not be that source."""


class Follower:
    """Counts what of one source is not counted. Others may do the same beside it.

    Args:
        work: whose source it is.
        content: of the source.
        reader: of the source.
        settled: which source it is.
    """

    def __init__(self, work: Work, content: Content, reader: Reader, settled: Settled) -> None:
        self._work = work
        self._content = content
        self._reader = reader
        self._source = settled.source
        self._head = settled.head
        self._held_to = settled.to
        self._ended = settled.ended
        self._last: ReadChunk | None = None

    def planned(self, *, undone: bool = True) -> None:
        """Count the chunks that are pending, as far as the content goes, and see to it that those
        are counted that others have at hand.

        Args:
            undone: and those that are undone now.

        Raises:
            As :func:`countersink.backfill.counting.count_planned`.
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
                time.sleep(_LOOK_S)

    def _waiting(self) -> list[Chunk]:
        found = self._work.link.run(partial(chunks.to_be_counted, source=self._source))
        return [chunk for chunk in found if chunk.end_at <= self._held_to]

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
            partial(
                count_planned,
                task=work.task,
                source=source,
                start_at=chunk.start_at,
                content=self._content,
                reader=self._reader,
            )
        )
        if counted is None:
            return False
        work.watch.add(counted)
        work.pace.note(counted.lines)
        return True

    def new(self) -> None:
        """Count what stands behind all chunks, up to the end.

        Raises:
            Differs: it turns out that it is another source.
            As :func:`countersink.backfill.counting.count_next`.
        """
        work = self._work
        while not (self._ended or work.stop()):
            source = self._look()
            if source.read_to > self._held_to:
                self._verify(source)
                continue
            start = work.link.run(partial(start_of_next, source=source, content=self._content))
            in_force = work.link.run(work.task.policies)
            found = self._last
            if found is None or found.start != start or found.in_force is not in_force:
                found = self._last = self._read(start, in_force, self._reader)
            if found is None:
                return
            work.pace.wait()
            if work.stop():
                return
            try:
                counted = work.link.run(
                    partial(
                        count_next,
                        task=work.task,
                        source=source,
                        reader=self._reader,
                        found=found,
                        head=self._head,
                        again=partial(self._read_again, start, in_force),
                    )
                )
            except Overtaken:
                continue
            self._held_to = found.span.end
            work.watch.add(counted)
            work.pace.note(counted.lines)

    def _read(self, start: Start, in_force: Policies, reader: Reader) -> ReadChunk | None:
        counter, max_lines = self._work.task.counter, self._work.pace.max_lines
        return read_chunk(self._content, reader, start, counter, in_force, max_lines=max_lines)

    def _read_again(self, start: Start, in_force: Policies, reader: Reader) -> ReadChunk:
        found = self._read(start, in_force, reader)
        if found is None:
            raise Overtaken
        return found

    def _look(self) -> Source:
        """The source as it is now.

        Raises:
            Differs: it is gone, or begun anew.
        """
        source = self._work.link.run(partial(sources.read, source=self._source))
        if source is None or source.recipe != self._work.options.recipe:
            raise Differs
        if source.read_to < self._held_to and not self._ended:
            raise Differs
        return source

    def _verify(self, source: Source) -> None:
        """Look at what others have counted of the source meanwhile."""
        if (read := self._last) is not None and read.start.at == self._held_to:
            # What was read here and counted by another, or in a transaction whose end was unknown.
            following = self._work.link.run(partial(_chunk_digest, source, self._held_to))
            if following == (read.span.end, read.span.digest):
                self._held_to = read.span.end
                return
        held: Held = self._work.link.run(
            partial(
                compare,
                content=self._content,
                source=source,
                head=self._head,
                start_at=self._held_to,
                looking=self._work.watch.look,
            )
        )
        self._held_to = held.to
        if held.verdict == "older":
            self._ended = True  # another process has a newer copy, and has read on in it
        elif held.verdict != "same":
            raise Differs  # maybe a newer copy, maybe not: that is to be settled


def _chunk_digest(source: Source, start_at: int, session: Session) -> tuple[int, bytes] | None:
    for chunk in chunks.of(session, source.id, start_at):
        return (chunk.end_at, chunk.digest) if chunk.start_at == start_at else None
    return None

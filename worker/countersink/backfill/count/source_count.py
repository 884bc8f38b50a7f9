"""Counts one source: what was taken back of it, then its new lines; words what is reported of it
(``lines of it were counted before`` ...)."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.backfill.count.chunk_reader import MinuteLabels, ReadChunk, Start
from countersink.backfill.count.chunks import Chunk
from countersink.backfill.count.read_ahead import ReadAhead
from countersink.backfill.count.sources import Settled, Source, Sources
from countersink.backfill.count.task import OpenSource, Work, opened, salts_of
from countersink.backfill.errors import (
    BackfillError,
    Overtaken,
    RunEnded,
    SourceChanged,
    SourceDiffers,
    TooManyRejects,
)
from countersink.backfill.history import RejectedLine
from countersink.backfill.input.files import Input
from countersink.backfill.options import SourceReport
from countersink.backfill.rejects import named
from countersink.backfill.run_state import LineCounts
from countersink.store.connection import Session

_SETTLINGS: Final = 20
"""How often others may turn the same source into another one while it is read."""
_LEFT: Final = (
    "{}: its last line has no newline yet, and waits until it has, as the file may still be written"
    " to: run this again later; an hour after the last write, or from a pipe, it counts as it is"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOutcome:
    """What became of a source.

    Attributes:
        report: for people.
        known_lines: lines of it that earlier runs had counted.
        notices: for people.
        too_many: the rejected lines of the chunk that was one too many, which are kept nowhere;
            None: the run may go on.
    """

    report: SourceReport
    known_lines: int = 0
    notices: tuple[str, ...] = ()
    too_many: tuple[RejectedLine, ...] | None = None


CountChunk = Callable[[Session, ReadAhead, int, ReadChunk, bytes], ReadChunk]
"""As :func:`countersink.backfill.count.transaction.count_chunk`."""


def count_source(work: Work, source: Input, count: CountChunk) -> SourceOutcome:
    """Count what is not counted of a source.

    Args:
        work: whose source it is.
        source: where it is.
        count: counts a chunk of it.

    Raises:
        RunEnded: the run was ended by somebody.
        StoreError: MySQL did not do its part.
    """
    told = _Outcome(work, source)
    try:
        with opened(work, source) as at_hand:
            if at_hand is None:
                empty = LineCounts().report(source.name, "empty", "it is empty")
                return SourceOutcome(report=empty)
            for _ in range(_SETTLINGS):
                settled = work.link.run(
                    work.sources.settle, at_hand.content, at_hand.wanted, work.watch.say
                )
                told.begin(settled)
                try:
                    told.notices += _SourceCount(work, at_hand, settled, count).run()
                except SourceDiffers:
                    continue
                return told.outcome()
            raise BackfillError("others read files that begin alike all the time: run it again")
    except RunEnded:
        raise
    except TooManyRejects as error:
        return told.outcome(detail=str(error), too_many=tuple(named(source.name, error.rejects)))
    except BackfillError as error:
        # A pipe that was silent when it was told to stop is no failure.
        return told.outcome(failed=not work.stop(), detail=str(error))


class _SourceCount:
    """Counts what of one source is not counted, while others may do the same.

    Args:
        work: whose source it is.
        at_hand: the source.
        settled: which source it is.
        count: counts a chunk of it.
    """

    def __init__(
        self, work: Work, at_hand: OpenSource, settled: Settled, count: CountChunk
    ) -> None:
        self._count_chunk = count
        self._work = work
        self._at_hand = at_hand
        self._source = settled.source
        self._held_to = settled.to
        self._behind = settled.last
        self._ended = settled.ended

    def run(self) -> list[str]:
        """Count it; notices for people.

        Raises:
            SourceDiffers: it turns out that it is another source.
            As :func:`countersink.backfill.count.transaction.count_chunk`.
        """
        notices: list[str] = []
        content = self._at_hand.content
        self._undone()
        while not (self._ended or self._work.stop()):
            source = self._look()
            if source.read_to > self._held_to:
                self._verify(source)
                continue
            with self._read_ahead(self._start(source)) as ahead:
                whole = all(self._count(ahead, found) for found in _each(ahead))
            notices += ahead.notices
            if whole:
                return [*notices, *([_LEFT.format(content.name)] if ahead.left else [])]
        return notices

    def _undone(self) -> None:
        """Count the chunks that were taken back, as far as the content goes."""
        work = self._work
        there = deque[Chunk]()
        while not work.stop():
            if not there:
                undone = work.link.run(work.sources.undone, self._source)
                held = (each for each in undone if each.end_at <= self._held_to)
                # What ends in the midst of a line is forgotten when its undo has come to its end.
                there.extend(each for each in held if not self._goes_on(each))
            if not there:
                return
            chunk = there.popleft()
            with self._read_ahead(self._start_of(chunk), chunk.end_at) as ahead:
                found = ahead.next()
                if found is None or found.span.digest != chunk.digest:
                    name = self._at_hand.content.name
                    raise SourceChanged(
                        f"{name} has changed since it was looked at: bytes {chunk.start_at:,} to"
                        f" {chunk.end_at:,} are not what they were. Run it again; what was counted"
                        " of it before stays counted, see `countersink backfills list`"
                    )
                if not self._count(ahead, found):
                    self._look()

    def _count(self, ahead: ReadAhead, found: ReadChunk) -> bool:
        """Count a chunk; False: it is not to be counted as it was read, or nothing is any more."""
        work = self._work
        work.pace.wait()
        if work.stop():
            return False
        try:
            found = work.link.run(self._count_chunk, ahead, self._source, found, self._behind)
        except Overtaken:
            there = work.link.run(partial(_first_chunk, work.sources), self._source, found.start.at)
            if there is None or (there.digest, there.state) != (found.span.digest, "done"):
                return False
            self._holds(there.end_at, there.digest)
            if there.run != work.task.run:
                return False  # else it was committed here, and nobody heard of it
        self._holds(found.span.end, found.span.digest)
        work.rejects.write(named(self._at_hand.wanted.path, found.rejects))
        work.watch.add(found.counts)
        work.pace.note(found.counts.lines)
        return True

    def _holds(self, end: int, digest: bytes) -> None:
        """The content is that of a chunk, and all before it."""
        if end > self._held_to:
            self._held_to, self._behind = end, digest

    def _read_ahead(self, start: Start, end: int | None = None) -> ReadAhead:
        work, wanted = self._work, self._at_hand.wanted
        catalog = work.task.catalog
        salts = work.link.run(salts_of, wanted.recipe, wanted.counter)
        # With the newline that is still to be read of the line before, which may say how to read.
        self._at_hand.reader.look_back(self._at_hand.content.read_at, start.at + start.newline)
        bucket = MinuteLabels(work.task.scheme(catalog), salts)
        return ReadAhead(work, self._at_hand, catalog, bucket, start, end)

    def _start(self, source: Source) -> Start:
        """Where the next chunk begins.

        Raises:
            BackfillError: within a line that was counted as it was.
        """
        start = Start(at=source.read_to, line=source.lines_to + 1)
        before = self._work.link.run(self._work.sources.last, source.id)
        # One that ends elsewhere was counted since the source was looked at.
        if before is None or not before.open or before.end_at != source.read_to:
            return start
        if self._goes_on(before):
            raise BackfillError(_goes_on(source, before))
        newline = self._newline(source.read_to)
        return Start(at=source.read_to, line=source.lines_to, newline=newline) if newline else start

    def _goes_on(self, chunk: Chunk) -> bool:
        """Whether the content goes on within the last line of a chunk."""
        if not chunk.open or not self._at_hand.content.read_at(1, chunk.end_at):
            return False
        return chunk.torn or not self._newline(chunk.end_at)

    def _start_of(self, chunk: Chunk) -> Start:
        """Where a chunk begins that was taken back."""
        at = chunk.start_at
        follows = not at or self._at_hand.content.read_at(1, at - 1) == b"\n"
        newline = 0 if follows else self._newline(at)
        return Start(at=at, line=chunk.first_line, newline=newline)

    def _newline(self, at: int) -> int:
        """How many bytes the newline has that stands there; 0: there is none."""
        found = self._at_hand.content.read_at(2, at)
        return 1 if found[:1] == b"\n" else 2 if found == b"\r\n" else 0

    def _look(self) -> Source:
        """The source as it is now.

        Raises:
            SourceDiffers: it is gone, or begun anew.
        """
        source = self._work.link.run(self._work.sources.read, self._source)
        if source is None or source.recipe != self._at_hand.wanted.recipe:
            raise SourceDiffers
        if source.read_to < self._held_to:
            raise SourceDiffers
        return source

    def _verify(self, source: Source) -> None:
        """Look at what others have counted of the source meanwhile."""
        work = self._work
        held = work.link.run(
            work.sources.compare,
            self._at_hand.content,
            source,
            self._at_hand.wanted.head,
            (self._held_to, self._behind),
            work.watch.say,
        )
        self._held_to, self._behind = held.to, held.last
        if held.verdict == "older":
            self._ended = True  # another process has a newer copy, and has read on in it
        elif held.verdict != "same" or held.to < source.read_to:
            raise SourceDiffers  # maybe a newer copy, maybe not: that is to be settled


def _each(ahead: ReadAhead) -> Iterator[ReadChunk]:
    while (found := ahead.next()) is not None:
        yield found


def _first_chunk(tables: Sources, session: Session, source: int, start_at: int) -> Chunk | None:
    found = next(tables.chunks(session, source, start_at), None)
    return found if found is not None and found.start_at == start_at else None


def _goes_on(source: Source, before: Chunk) -> str:
    """Why a source is refused whose last line was counted before it was whole."""
    return (
        f"its line {source.lines_to:,} was counted as far as it was there (as {source.path}), and"
        f" goes on now: `countersink backfills undo {before.run}` first, then count it again"
    )


def _outcome_of(own: LineCounts, *, known: bool) -> str:
    """What became of a source, in a word.

    Args:
        own: what the run has counted of it.
        known: some of it was counted before.
    """
    if own.rejected > 0 and not (own.counted or own.filtered):
        return "rejected"
    return "counted" if own.lines or own.size_bytes or not known else "known"


class _Outcome:
    """What became of a source, from what the tables say."""

    def __init__(self, work: Work, source: Input) -> None:
        self.notices: list[str] = []
        self._work = work
        self._input = source
        self._settled: Settled | None = None
        self._before: dict[int, LineCounts] = {}

    def begin(self, settled: Settled) -> None:
        """Which source it is, as far as is known."""
        self._settled = settled
        if settled.source not in self._before:
            # The run may have read a copy of it already.
            self._before[settled.source], _ = self._figures(settled.source)

    def outcome(
        self,
        *,
        failed: bool = False,
        detail: str = "",
        too_many: tuple[RejectedLine, ...] | None = None,
    ) -> SourceOutcome:
        own, others = LineCounts(), LineCounts()
        for number, before in self._before.items():
            counted, by_others = self._figures(number)
            own += counted - before
            others = by_others + before
            if not (counted.size_bytes or by_others.size_bytes):
                self._work.link.run(self._work.sources.forget_unread, number)
        outcome = "failed" if failed else _outcome_of(own, known=bool(others.size_bytes))
        return SourceOutcome(
            report=own.report(self._input.name, outcome, detail or self._detail(own, others)),
            known_lines=others.lines,
            notices=tuple(self.notices),
            too_many=too_many,
        )

    def _figures(self, source: int) -> tuple[LineCounts, LineCounts]:
        """What this run has counted of a source, and what the others have."""
        return self._work.link.run(self._work.sources.figures, source, self._work.task.run)

    def _detail(self, own: LineCounts, others: LineCounts) -> str:
        settled = self._settled
        if settled is None:
            return ""
        if settled.notice:
            return settled.notice
        if settled.ended and not own.size_bytes:
            return "an older copy of what was counted: nothing new in it"
        if others.size_bytes and own.size_bytes:
            return f"{others.lines:,} lines of it were counted before"
        if others.size_bytes:
            return f"all of its {others.lines:,} lines were counted before"
        return ""

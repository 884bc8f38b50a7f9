"""Counts the new lines of one source; words what is reported of it (``lines of it were counted
before`` ...)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from countersink.backfill.content import Input
from countersink.backfill.count.chunk_reader import MinuteLabels, ReadChunk, Start
from countersink.backfill.count.chunks import Chunk
from countersink.backfill.count.read_ahead import ReadAhead
from countersink.backfill.count.sources import Settled, Source
from countersink.backfill.count.task import OpenSource, Work, opened, salts_of
from countersink.backfill.errors import (
    BackfillError,
    Overtaken,
    RunEnded,
    SourceDiffers,
    TooManyRejects,
)
from countersink.backfill.history import LineCounts
from countersink.backfill.options import SourceReport
from countersink.database.session import Session

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
        too_many: why the run ends: more lines were rejected than may be, those of the last chunk
            included, which is not counted; '': it may go on.
    """

    report: SourceReport
    known_lines: int = 0
    notices: tuple[str, ...] = ()
    too_many: str = ""


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
    counting = _SourceCount(work, source, count)
    try:
        with opened(work, source) as at_hand:
            if at_hand is None:
                empty = LineCounts().report(source.name, "empty", "it is empty")
                return SourceOutcome(report=empty)
            try:
                counting.run(at_hand)
            except TooManyRejects as error:
                work.rejects.write(source.name, error.rejects)
                return counting.outcome(too_many=error)
    except RunEnded:
        raise
    except BackfillError as error:
        # A pipe that was silent when it was told to stop is no failure.
        return counting.outcome(failed=not work.stop(), detail=str(error))
    return counting.outcome()


class _SourceCount:
    """Counts what of one source is not counted, while others may do the same.

    Args:
        work: whose source it is.
        source: where it is.
        count: counts a chunk of it.
    """

    _at_hand: OpenSource
    _settled: Settled | None = None

    def __init__(self, work: Work, source: Input, count: CountChunk) -> None:
        self._work = work
        self._input = source
        self._count_chunk = count
        self._own = LineCounts()
        self._notices: list[str] = []

    def run(self, at_hand: OpenSource) -> None:
        """Count it.

        Raises:
            As :func:`countersink.backfill.count.transaction.count_chunk`.
        """
        work, self._at_hand = self._work, at_hand
        while not work.stop():
            self._settled = settled = work.link.run(
                work.sources.settle, at_hand.content, at_hand.wanted, self._looking
            )
            self._source, self._ended = settled.source, settled.ended
            self._held_to, self._behind = settled.to, settled.last
            try:
                return self._read_on()
            except SourceDiffers:
                continue

    def _looking(self) -> None:
        """Say how far it is.

        Raises:
            BackfillError: it was told to stop.
        """
        self._work.watch.say()
        if self._work.stop():
            raise BackfillError("it was told to stop")

    def _read_on(self) -> None:
        """Count what follows what is known of the source that it was found to be.

        Raises:
            SourceDiffers: it turns out that it is another source.
        """
        while not (self._ended or self._work.stop()):
            source = self._look()
            if source.read_to > self._held_to:
                self._verify(source)
                continue
            with self._read_ahead(self._start(source)) as ahead:
                whole = all(self._count(ahead, found) for found in iter(ahead.next, None))
            if whole:
                if ahead.left and not self._work.stop():
                    self._notices.append(_LEFT.format(self._at_hand.content.name))
                return

    def _count(self, ahead: ReadAhead, found: ReadChunk) -> bool:
        """Count a chunk; False: it is not to be counted as it was read, or nothing is any more."""
        work = self._work
        work.pace.wait()
        if work.stop():
            return False
        try:
            found = work.link.run(self._count_chunk, ahead, self._source, found, self._behind)
        except Overtaken:
            return False
        self._held_to, self._behind = found.span.end, found.span.digest
        self._own += found.counts
        work.rejects.write(self._at_hand.wanted.path, found.rejects)
        work.watch.add(found.counts)
        work.pace.note(found.counts.lines)
        return True

    def _read_ahead(self, start: Start) -> ReadAhead:
        work, wanted = self._work, self._at_hand.wanted
        salts = work.link.run(salts_of, wanted.recipe, wanted.counter)
        # With the newline that is still to be read of the line before, which may say how to read.
        self._at_hand.reader.look_back(self._at_hand.content.read_at, start.at + start.newline)
        bucket = MinuteLabels(work.scheme, salts)
        return ReadAhead(work, self._at_hand, work.catalog, bucket, start)

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
        behind = self._at_hand.content.read_at(2, source.read_to)
        if not behind:
            return start
        newline = 1 if behind[:1] == b"\n" else 2 if behind == b"\r\n" else 0
        if before.torn or not newline:
            raise BackfillError(_goes_on(source, before))
        return Start(at=source.read_to, line=source.lines_to, newline=newline)

    def _look(self) -> Source:
        """The source as it is now.

        Raises:
            SourceDiffers: it is gone, or begun anew.
        """
        source = self._work.link.run(self._work.sources.read, self._source)
        recipe = self._at_hand.wanted.recipe
        if source is None or source.recipe != recipe or source.read_to < self._held_to:
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
            self._looking,
        )
        self._held_to, self._behind = held.to, held.last
        if held.verdict == "older":
            self._ended = True  # another process has a newer copy, and has read on in it
        elif held.verdict != "same" or held.to < source.read_to:
            raise SourceDiffers  # maybe a newer copy, maybe not: that is to be settled

    def outcome(
        self, *, failed: bool = False, detail: str = "", too_many: TooManyRejects | None = None
    ) -> SourceOutcome:
        own, settled, known = self._own, self._settled, 0
        if settled is not None:
            there = self._work.link.run(self._work.sources.read, settled.source)
            known = 0 if there is None else there.lines_to - own.lines
        if failed:
            outcome = "failed"
        elif own.rejected and not (own.counted or own.filtered):
            outcome = "rejected"
        else:
            outcome = "counted" if own.lines or not known else "known"
        if too_many is not None:
            detail, own = str(too_many), own + LineCounts(rejected=len(too_many.rejects))
        return SourceOutcome(
            report=own.report(self._input.name, outcome, detail or self._detail(known)),
            known_lines=known,
            notices=tuple(self._notices),
            too_many=detail if too_many is not None else "",
        )

    def _detail(self, known: int) -> str:
        settled, own = self._settled, self._own
        if settled is None:
            return ""
        if settled.ended and not own.lines:
            return "an older copy of what was counted: nothing new in it"
        if known and own.lines:
            return f"{known:,} lines of it were counted before"
        return f"all of its {known:,} lines were counted before" if known else ""


def _goes_on(source: Source, before: Chunk) -> str:
    """Why a source is refused whose last line was counted before it was whole."""
    way_out = f"`countersink backfills undo {before.run}` first, then count it again"
    return (
        f"its line {source.lines_to:,} was counted as far as it was there (as {source.path}), and"
        f" goes on now: {way_out if before.run > 0 else 'give the longer one alone'}"
    )

"""``count_source`` counts the lines of one source that are not counted yet, and returns the
source's report and notices for users."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from countersink.backfill.content import Input
from countersink.backfill.count.chunk_reader import MinuteLabels, ReadChunk, Start
from countersink.backfill.count.chunks import Chunk
from countersink.backfill.count.read_ahead import ReadAhead
from countersink.backfill.count.sources import IdentifiedSource, Source
from countersink.backfill.count.task import OpenSource, Work, open_source, salts_of
from countersink.backfill.errors import (
    BackfillError,
    Overtaken,
    RunEnded,
    SourceDiffers,
    TooManyRejects,
    WrongCut,
)
from countersink.backfill.history import LineCounts
from countersink.backfill.options import SourceReport
from countersink.database.session import Session
from countersink.runtime.texts import plural

_OPEN_LINE: Final = (
    "{}: the last line has no newline yet and was not counted, since the file may still be written"
    " to: run this again later; an hour after the last write, or from a pipe, the line is counted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOutcome:
    """The outcome of counting one source.

    Attributes:
        report: the source's part of the run's report.
        known_lines: number of lines of the source in chunks that others have counted: earlier runs,
            other processes, or this run, from another file with the same content.
        notices: sentences for users.
        rejects_error: error that ends the run because too many lines were rejected; '' if the run
            may continue. With such an error, the report includes the rejected lines of the last
            chunk, although this chunk is not counted.
    """

    report: SourceReport
    known_lines: int = 0
    notices: tuple[str, ...] = ()
    rejects_error: str = ""


CountChunk = Callable[[Session, ReadAhead, int, ReadChunk, bytes], ReadChunk]
""":func:`countersink.backfill.count.transaction.count_chunk`, or ``Trial.count`` in a dry run."""


def count_source(work: Work, source: Input, count: CountChunk) -> SourceOutcome:
    """Count the lines of a source that are not counted yet, and return the outcome.

    Every BackfillError except RunEnded is caught, and its message is the detail of the report.
    After TooManyRejects, ``rejects_error`` is set, too, and the report does not say ``failed``.
    After another error, the report says ``failed``, unless the run is stopping. Chunks that were
    counted before the error stay counted, and are in the report.

    Args:
        work: the state that all chunks of the run share.
        source: the source to open.
        count: function that counts one chunk in a transaction (in a dry run: in memory).

    Raises:
        RunEnded: another process has ended the run.
        StoreError: MySQL failed.
    """
    counting = _SourceCount(work, source, count)
    try:
        with open_source(work, source) as opened:
            if opened is None:
                empty = LineCounts().report(source.name, "empty", "it is empty")
                return SourceOutcome(report=empty)
            try:
                counting.run(opened)
            except TooManyRejects as error:
                work.rejects.write(opened.wanted.path, error.rejects)
                return counting.outcome(rejects=error)
    except RunEnded:
        raise
    except BackfillError as error:
        # A pipe that was silent until the run was stopped is no failure.
        return counting.outcome(failed=not work.stop(), detail=str(error))
    return counting.outcome()


class _SourceCount:
    """Counts the new lines of one source, while other processes may count the same source.

    Args:
        work, source, count: see :func:`count_source`.
    """

    _opened: OpenSource
    _identified: IdentifiedSource | None = None

    def __init__(self, work: Work, source: Input, count: CountChunk) -> None:
        self._work = work
        self._input = source
        self._count_chunk = count
        self._counts = LineCounts()
        self._lines = 0  # unlike those of the counts, not records
        self._notices: list[str] = []

    def run(self, opened: OpenSource) -> None:
        """Find the source in the tables, and count its lines that are not counted yet, until the
        run should stop. If the content turns out to be another source, find the source again.

        Raises:
            BackfillError: the content cannot be read or must not be counted, or the run ends: see
                :meth:`Sources.identify` and
                :func:`countersink.backfill.count.transaction.count_chunk`.
            StoreError: MySQL failed.
        """
        work, self._opened = self._work, opened
        while not work.stop():
            self._identified = identified = work.link.run(
                work.sources.identify, opened.content, opened.wanted, self._report_progress
            )
            self._source, self._ended = identified.source, identified.ended
            self._known_to, self._last_digest = identified.held_to, identified.last_digest
            try:
                return self._read_on()
            except SourceDiffers:
                continue

    def _report_progress(self) -> None:
        """Report the progress, and check that the run should go on. Called before each counted
        chunk that is compared with the content.

        Raises:
            BackfillError: the run should stop.
        """
        self._work.watch.report()
        if self._work.stop():
            raise BackfillError("the backfill was stopped")

    def _read_on(self) -> None:
        """Count the lines of the source that follow its counted chunks, until its end, or until the
        run should stop. Chunks that other processes count meanwhile are compared, not counted. Do
        not count anything once the content is known as an older copy of the source. Add a notice if
        the last line was left out, because it has no newline yet.

        Raises:
            SourceDiffers: the content may be another source.
        """
        while not (self._ended or self._work.stop()):
            source = self._read_source()
            if source.read_to > self._known_to:
                self._verify(source)
                continue
            complete = False
            with suppress(WrongCut), self._read_ahead(self._start(source)) as ahead:
                complete = all(self._count(ahead, found) for found in iter(ahead.next, None))
            if complete:
                if ahead.left_open and not self._work.stop():
                    self._notices.append(_OPEN_LINE.format(self._opened.content.name))
                return

    def _count(self, ahead: ReadAhead, found: ReadChunk) -> bool:
        """Count the chunk ``found``, and return True. Return False if it was not counted, for two
        reasons. Either the run should stop. Or another process has counted the chunk, or has
        changed the source, settings or salts by which the chunk was read: then the caller reads
        again, from the end of the counted chunks on.
        """
        work = self._work
        work.pace.wait()
        if work.stop():
            return False
        try:
            found = work.link.run(self._count_chunk, ahead, self._source, found, self._last_digest)
        except Overtaken:
            return False
        self._known_to, self._last_digest = found.span.end, found.span.digest
        self._counts += found.counts
        self._lines += found.span.lines - bool(found.start.newline)
        work.rejects.write(self._opened.wanted.path, found.rejects)
        work.watch.add(found.counts)
        work.pace.note(found.counts.lines)
        return True

    def _read_ahead(self, start: Start) -> ReadAhead:
        work, wanted = self._work, self._opened.wanted
        salts = work.link.run(salts_of, wanted.recipe, wanted.counter)
        # Up to the newline of the line before: that line may be a directive.
        self._opened.reader.look_back(self._opened.content.read_at, start.offset + start.newline)
        bucket = MinuteLabels(work.scheme, salts)
        return ReadAhead(work, self._opened, work.catalog, bucket, start)

    def _start(self, source: Source) -> Start:
        """Return the beginning of the chunk that follows the counted chunks of ``source``.

        If the last counted line had no newline when it was counted, and has one now, the chunk
        begins with this newline, whose length is in ``newline`` of the result.

        Raises:
            BackfillError: the chunk would begin within a line (with CSV: a record) that was counted
                before its end was written.
        """
        start = Start(offset=source.read_to, line=source.lines_to + 1)
        before = self._work.link.run(self._work.sources.last, source.id)
        # A chunk that ends elsewhere was counted after the source's row was read.
        if before is None or not before.open or before.end_at != source.read_to:
            return start
        following = self._opened.content.read_at(2, source.read_to)
        if not following:
            return start
        newline = 1 if following[:1] == b"\n" else 2 if following == b"\r\n" else 0
        if before.torn or not newline:
            raise BackfillError(_longer_line(source, before))
        return Start(offset=source.read_to, line=source.lines_to, newline=newline)

    def _read_source(self) -> Source:
        """Return the row of the source, read again from the tables.

        Raises:
            SourceDiffers: the row was deleted, has another recipe, or lost chunks, as by an undo.
        """
        source = self._work.link.run(self._work.sources.read, self._source)
        recipe = self._opened.wanted.recipe
        if source is None or source.recipe != recipe or source.read_to < self._known_to:
            raise SourceDiffers
        return source

    def _verify(self, source: Source) -> None:
        """Compare the content with the chunks that other processes have counted since the last
        comparison. If the content is an older copy of the source, which lacks some of these chunks,
        note that it has no more lines to count.

        Raises:
            SourceDiffers: the content differs from these chunks, or ends within one of them and is
                not known as an older copy, or some of them were deleted meanwhile.
        """
        work = self._work
        compared = work.link.run(
            work.sources.compare,
            self._opened.content,
            source,
            self._opened.wanted.head,
            (self._known_to, self._last_digest),
            self._report_progress,
        )
        self._known_to, self._last_digest = compared.held_to, compared.last_digest
        if compared.verdict == "older":
            self._ended = True  # another process has a newer copy, and has read on in it
        elif compared.verdict != "same" or compared.held_to < source.read_to:
            raise SourceDiffers  # ``identify`` decides which source the content is

    def outcome(
        self, *, failed: bool = False, detail: str = "", rejects: TooManyRejects | None = None
    ) -> SourceOutcome:
        counts, identified, known = self._counts, self._identified, 0
        if identified is not None:
            source = self._work.link.run(self._work.sources.read, identified.source)
            known = 0 if source is None else source.lines_to - self._lines
        if rejects is not None:
            detail, counts = str(rejects), counts + LineCounts(rejected=len(rejects.rejects))
        if failed:
            outcome = "failed"
        elif counts.rejected and not (counts.counted or counts.filtered):
            outcome = "rejected"
        else:
            outcome = "counted" if counts.lines or not known else "known"
        return SourceOutcome(
            report=counts.report(self._input.name, outcome, detail or self._detail(known)),
            known_lines=known,
            notices=tuple(self._notices),
            rejects_error=detail if rejects is not None else "",
        )

    def _detail(self, known: int) -> str:
        identified, counts = self._identified, self._counts
        if identified is None:
            return ""
        if identified.ended and not counts.lines:
            return "an older copy of a counted source: no new lines"
        if known and counts.lines:
            return f"{plural(known, 'line')} counted before"
        return f"no new lines ({plural(known, 'line')} counted before)" if known else ""


def _longer_line(source: Source, before: Chunk) -> str:
    """Return the text of the error for a source whose last line was counted before its end was
    written. ``before`` is the chunk with this line.
    """
    advice = f"run `countersink backfills undo {before.run}`, then count the file again"
    return (
        f"line {source.lines_to:,} was counted (as {source.path}) before its end was written, and"
        f" is longer now: {advice if before.run > 0 else 'give only the longer file'}"
    )

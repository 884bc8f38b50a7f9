"""Counts one source from its planned chunks to its new lines, and words what is reported of it
(``lines of it were counted before`` ...)."""

import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from countersink.backfill.count import chunks, sources
from countersink.backfill.count.chunk_reader import ReadChunk, Start, read_chunk
from countersink.backfill.count.chunks import Chunk
from countersink.backfill.count.line_marks import scope_of
from countersink.backfill.count.overlap import Ranges
from countersink.backfill.count.parallel import count_by_jobs
from countersink.backfill.count.sources import (
    KNOWN_BYTES,
    Settled,
    Source,
    WantedSource,
    settle,
)
from countersink.backfill.count.task import LOOK_S, Work
from countersink.backfill.count.transaction import count_next, count_planned, start_of_next
from countersink.backfill.errors import BackfillError, Overtaken, RunEnded, TooManyInChunk
from countersink.backfill.formats import Reader, make_reader, recipe_for
from countersink.backfill.history import RejectedLine
from countersink.backfill.input.content import Content, head_of, open_content, telling
from countersink.backfill.input.files import Input
from countersink.backfill.options import SourceReport, repeated
from countersink.backfill.reconcile.scope import Interval, interval_of
from countersink.backfill.rejects import named
from countersink.backfill.run_state import LineCounts, printable
from countersink.store.connection import Session
from countersink.store.counters.policies import Policies

_SETTLINGS: Final = 20
"""How often others may turn the same source into another one while it is read."""


class _Differs(Exception):
    """Another process has read on in the source, and this content may not be that source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOutcome:
    """What became of a source.

    Attributes:
        report: for people.
        known_lines: lines of it that earlier runs had counted.
        notices: for people.
        too_many: the rejected lines of the chunk that was one too many, which are kept nowhere;
            None: the run may go on.
        error: why the run must end, where ``too_many`` are.
        interval: reconcile: from when to when it has lines, if it was read to its end.
    """

    report: SourceReport
    known_lines: int = 0
    notices: tuple[str, ...] = ()
    too_many: tuple[RejectedLine, ...] | None = None
    error: str = ""
    interval: Interval | None = None


def count_source(work: Work, source: Input) -> SourceOutcome:
    """Count what is not counted of a source.

    Raises:
        RunEnded: the run was ended by somebody.
        StoreError: MySQL did not do its part.
    """
    counting = _Counting(work, source)
    try:
        with open_content(source, work.stop) as content:
            work.watch.begin(source, content)
            try:
                return counting.count(content)
            finally:
                work.watch.finish()
    except RunEnded:
        raise
    except TooManyInChunk as error:
        too_many = tuple(named(source.name, error.rejects))
        return counting.outcome(detail=str(error), too_many=too_many, error=str(error))
    except BackfillError as error:
        # A pipe that was silent when it was told to stop is no failure.
        return counting.outcome(failed=not work.stop(), detail=str(error))


class _Counting:
    def __init__(self, work: Work, source: Input) -> None:
        self._work = work
        self._input = source
        self._settled: Settled | None = None
        self._notices: tuple[str, ...] = ()
        self._before: dict[int, LineCounts] = {}

    def count(self, content: Content) -> SourceOutcome:
        content.keep(True)
        head = head_of(content)
        if not head:
            report = SourceReport(source=self._input.name, outcome="empty", detail="it is empty")
            return SourceOutcome(report=report)
        recipe = recipe_for(self._work.options.recipe, telling(content, head))
        self._work = replace(self._work, options=replace(self._work.options, recipe=recipe))
        work, options = self._work, self._work.options
        reader = make_reader(recipe, head, work.minutes, work.begins, options.counter)
        path = self._input.path
        wanted = WantedSource(
            counter=options.counter,
            truth_of=work.task.target.truth_of,
            name=options.name,
            recipe=recipe,
            path=self._input.name if path is None else printable(str(path)),
            head=head[:KNOWN_BYTES],
        )
        for _ in range(_SETTLINGS):
            self._settled = work.link.run(
                partial(settle, content=content, wanted=wanted, looking=work.watch.look)
            )
            if self._settled.source not in self._before:
                # The run may have read a copy of it already.
                own, _ = self._figures(self._settled.source)
                self._before[self._settled.source] = own
            reader.look_back(content.read_at, self._settled.to)  # a pipe cannot go back later
            settled = self._settled
            if work.team is not None:
                settled, notices = count_by_jobs(work, work.team, content, reader, settled)
                self._notices += notices
            follower = Follower(work, content, reader, settled)
            try:
                follower.planned()
                content.keep(False)
                follower.new()
                if content.plain:
                    follower.planned(undone=False)  # by others, meanwhile
            except _Differs:
                continue
            interval = None
            if work.task.target.truth_of and not work.stop():
                interval = interval_of(content, head, recipe, self._zones(), work.begins)
            return replace(self.outcome(), interval=interval)
        raise BackfillError("others read files that begin alike all the time: run it again")

    def _zones(self) -> set[str]:
        """The time zones whose days lines may be of."""
        own = self._work.link.run(self._work.task.policies).of(self._work.task.counter)
        named = {policy.known_zone() for policy in own}
        return named | {self._work.options.recipe.time_zone or "UTC"}

    def outcome(
        self,
        *,
        failed: bool = False,
        detail: str = "",
        too_many: tuple[RejectedLine, ...] | None = None,
        error: str = "",
    ) -> SourceOutcome:
        own, others = LineCounts(), LineCounts()
        settled = self._settled
        left_out = Counter[str]()
        for number, before in self._before.items():
            counted, by_others = self._figures(number)
            own += counted - before
            left_out.update(
                self._work.link.run(
                    partial(chunks.lines_left_out, source=number, run=self._work.task.run)
                )
            )
            others = by_others + before
            if not (counted.size_bytes or by_others.size_bytes):
                self._work.link.run(partial(sources.forget_unread, source=number))
        own = own.for_people()
        if failed:
            outcome = "failed"
        else:
            new = own.lines or (own.size_bytes and not left_out)
            outcome = "counted" if new or not (others.size_bytes or left_out) else "known"
            if own.rejected > 0 and not (own.counted or own.filtered):
                outcome = "rejected"
        return SourceOutcome(
            report=own.report(
                self._input.name, outcome, detail or self._detail(settled, own, others, left_out)
            ),
            known_lines=others.lines + left_out.total(),
            notices=self._notices,
            too_many=too_many,
            error=error,
        )

    def _figures(self, source: int) -> tuple[LineCounts, LineCounts]:
        """What this run has counted of a source, and what the others have."""
        return self._work.link.run(partial(chunks.figures, source=source, run=self._work.task.run))

    def _detail(
        self, settled: Settled | None, own: LineCounts, others: LineCounts, left_out: Counter[str]
    ) -> str:
        if settled is None:
            return ""
        if left_out:
            return repeated(left_out, others.lines)
        if settled.notice:
            return settled.notice
        if settled.ended:
            return "an older copy of what was counted: nothing new in it"
        if others.size_bytes and own.size_bytes:
            return f"{others.lines:,} lines of it were counted before"
        if others.size_bytes:
            return f"all of its {others.lines:,} lines were counted before"
        return ""


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
        task = work.task
        self._scope = scope_of(task.counter, task.target.truth_of, work.options.name)

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
            As :func:`countersink.backfill.count.transaction.count_next`.
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

    def _read(
        self, start: Start, in_force: Policies, reader: Reader, left_out: Ranges = ()
    ) -> ReadChunk | None:
        work = self._work
        return read_chunk(
            self._content,
            reader,
            start,
            work.task.counter,
            in_force,
            max_lines=work.pace.max_lines,
            scope=b"" if left_out else self._scope,
            left_out=left_out,
        )

    def _read_again(
        self, start: Start, in_force: Policies, reader: Reader, left_out: Ranges
    ) -> ReadChunk:
        found = self._read(start, in_force, reader, left_out)
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
            raise _Differs
        if source.read_to < self._held_to and not self._ended:
            raise _Differs
        return source

    def _verify(self, source: Source) -> None:
        """Look at what others have counted of the source meanwhile."""
        if (read := self._last) is not None and read.start.at == self._held_to:
            # What was read here and counted by another, or in a transaction whose end was unknown.
            following = self._work.link.run(partial(_chunk_digest, source, self._held_to))
            if following == (read.span.end, read.span.digest):
                self._held_to = read.span.end
                return
        held = self._work.compare(self._content, source, self._head, self._held_to)
        self._held_to = held.to
        if held.verdict == "older":
            self._ended = True  # another process has a newer copy, and has read on in it
        elif held.verdict != "same":
            raise _Differs  # maybe a newer copy, maybe not: that is to be settled


def _chunk_digest(source: Source, start_at: int, session: Session) -> tuple[int, bytes] | None:
    for chunk in chunks.of(session, source.id, start_at):
        return (chunk.end_at, chunk.digest) if chunk.start_at == start_at else None
    return None

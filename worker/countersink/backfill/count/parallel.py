"""Counting a large source by job processes: from which size on (``LEAST_BYTES``), how chunks are
planned, how long no progress is waited for, and the notices when it is counted here instead.

The jobs count what is planned (:mod:`countersink.backfill.count.job`). What is counted is in the
tables, whoever has counted it. So whatever becomes of the jobs, what they leave pending is counted
by whoever reads on in the source. This process itself does so at once where nobody helps it: no job
process is there, the queue's Redis does not serve, the jobs cannot read the file, or nothing comes
of them.

Whoever has planned a chunk owns it no more than anybody else: it is counted by whoever comes first.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

from countersink.backfill import run_state
from countersink.backfill.count import sources
from countersink.backfill.count.chunk_reader import Start
from countersink.backfill.count.sources import Settled, Source
from countersink.backfill.count.task import LOOK_S, JobTerms, Team, Work
from countersink.backfill.count.transaction import start_of_next
from countersink.backfill.formats import Reader
from countersink.backfill.input.content import Content
from countersink.backfill.input.spans import Quoting, Span, SpanReader, measure
from countersink.backfill.run_state import LineCounts
from countersink.store.connection import Session
from countersink.store.ledger import seals
from countersink.stream.errors import StreamError

LEAST_BYTES: Final = 64 * 1024 * 1024
"""Fewer bytes are counted in the time that it takes to ask for help."""
PATIENCE_S: Final = 10.0
"""Seconds in which the jobs must have counted a chunk."""
PLAN_S: Final = 0.3
"""Seconds that one step takes, about."""
_ASK_S: Final = 0.5
"""Seconds between two looks at the queue."""
_IN_VAIN: Final = 3
"""Jobs, per process that is to work, that may end without anything having been counted."""
_AHEAD: Final = 1000
"""Chunks, per process, that are planned before some are counted."""


@dataclass(frozen=True, slots=True)
class _Left:
    """What of a source is to be counted, and is."""

    pending: int
    done: int
    done_bytes: int


class ChunkPlanner:
    """Plans one source. Others may plan it, or read on in it, beside this.

    Args:
        work: whose source it is.
        content: of the source, a plain file.
        source: its number.
        held_to: up to where the content is known to hold the source's chunks.
        head: of the content.
        quoted: as of its reader.

    Attributes:
        to: up to where there are chunks that the content holds.
        finished: there is nothing more to be planned of this content.
    """

    def __init__(
        self,
        work: Work,
        content: Content,
        source: int,
        held_to: int,
        head: bytes,
        *,
        quoted: Quoting | None,
    ) -> None:
        self._work = work
        self._content = content
        self._source = source
        self._head = head
        self._quoted = quoted
        self.to = held_to
        self.finished = False

    def take_over(self) -> None:
        """Make what others have planned and not counted, or undone, this run's.

        Raises:
            RunEnded: this run must not count any more.
            StoreError: as any transaction.
        """
        self._work.link.run(self._take_over)

    def step(self) -> None:
        """Plan for a moment.

        Raises:
            RunEnded: this run must not count any more.
            Unreadable: the content cannot be read.
            StoreError: as any transaction.
        """
        link = self._work.link
        source = link.run(partial(sources.read, source=self._source))
        if source is None or source.recipe != self._work.options.recipe:
            self.finished = True  # it is gone, or begun anew: others have to look again
            return
        if source.read_to != self.to and not self._verified(source):
            self.finished = True
            return
        start = link.run(partial(start_of_next, source=source, content=self._content))
        spans = self._measured(start)
        if not spans:
            return
        written: bool = link.run(partial(self._insert, source=source, start=start, spans=spans))
        if written:
            self.to = spans[-1].end
        else:
            self.finished = False  # somebody was faster: what is there now decides

    def _measured(self, start: Start) -> list[Span]:
        """The spans that follow, as many as a moment allows."""
        spans: list[Span] = []
        until = time.monotonic() + PLAN_S
        while not self.finished and time.monotonic() < until and not self._work.stop():
            spans_from = SpanReader(
                self._content,
                start.at,
                start.first_line,
                quoted=self._quoted,
                reads_from=start.reads_from,
                max_lines=self._work.pace.max_lines,
            )
            span = measure(spans_from)
            if span is None:
                self.finished = True
                break
            spans.append(span)
            self.finished = span.open_at is not None
            start = Start(at=span.end, reads_from=span.end, first_line=span.next_line)
        return spans

    def _verified(self, source: Source) -> bool:
        """Whether the content holds what others have read on in the source."""
        if source.read_to < self.to:
            return False
        held = self._work.compare(self._content, source, self._head, self.to)
        self.to = held.to
        return held.verdict == "same"

    def _take_over(self, session: Session) -> None:
        with session.transaction():
            sources.read(session, self._source, lock=True)
            found = session.query(
                "SELECT start_at FROM backfill_chunk WHERE source = %s AND end_at <= %s"
                " AND state IN ('pending', 'undone') ORDER BY start_at FOR UPDATE SKIP LOCKED",
                (self._source, self.to),
            )
            for (start_at,) in found:
                session.execute(
                    seals.update("backfill_chunk", "run = %s, state = 'pending'")
                    + " WHERE source = %s AND start_at = %s",
                    (self._work.task.run, self._source, start_at),
                )
            self._hold_run(session)

    def _insert(
        self, session: Session, source: Source, start: Start, spans: Sequence[Span]
    ) -> bool:
        """Make chunks of spans, unless somebody was faster."""
        with session.transaction():
            now = sources.read(session, source.id, lock=True)
            if now is None or replace(now, path=source.path) != source:
                return False
            for span in spans:
                goes_on = start.goes_on and span is spans[0]
                self._insert_one(session, span, start.reads_from if goes_on else span.start)
                position = now.after(span, goes_on=goes_on, head=self._head)
                now = replace(now, **asdict(position))
            sources.advance(session, source.id, position)
            self._hold_run(session)
        return True

    def _insert_one(self, session: Session, span: Span, reads_from: int) -> None:
        session.execute(
            "INSERT INTO backfill_chunk (source, start_at, end_at, reads_from, first_line, digest,"
            " state, run, seal) VALUES (%s, %s, %s, %s, %s, %s, 'pending', %s,"
            f" {seals.seal('backfill_chunk')})",
            (
                self._source,
                span.start,
                span.end,
                reads_from,
                span.first_line,
                span.digest,
                self._work.task.run,
            ),
        )

    def _hold_run(self, session: Session) -> None:
        """See that the run still counts, until the transaction ends; nothing of an undone run must
        be planned.
        """
        run_state.record(session, self._work.task.run, LineCounts(), None)


def count_by_jobs(
    work: Work, team: Team, content: Content, reader: Reader, settled: Settled
) -> tuple[Settled, tuple[str, ...]]:
    """Have job processes count what is not counted of a source, if that is worth while and they do.

    Whatever of it is not counted afterwards is for the caller to count, as if nobody had helped.

    Args:
        work: whose source it is.
        team: the job processes.
        content: of the source.
        reader: of the source.
        settled: which source it is.

    Returns:
        ``settled``, up to where there are chunks that this content holds; notices for people.

    Raises:
        RunEnded: the run was undone, or its counter deleted, meanwhile.
        Unreadable: the content cannot be read.
        StoreError: MySQL did not do its part; what was counted is counted.
    """
    size = content.size
    if not content.plain or size is None or settled.ended:
        return settled, ()
    left = work.link.run(partial(_left, source=settled.source))
    if size - left.done_bytes < LEAST_BYTES:
        return settled, ()
    planner = ChunkPlanner(
        work, content, settled.source, settled.to, settled.head, quoted=reader.quoted
    )
    try:
        notice = _Together(work, team, content, planner, settled.source).run()
    except StreamError as error:
        notice = f"the queue of the job processes does not serve ({error}): counted here"
    return replace(settled, to=planner.to), (notice,) if notice else ()


class _Together:
    """One source that is counted by jobs."""

    def __init__(
        self, work: Work, team: Team, content: Content, planner: ChunkPlanner, source: int
    ) -> None:
        self._work = work
        self._team = team
        self._content = content
        self._planner = planner
        self._source = source
        self._asked = 0
        self._in_vain = 0
        self._next_look = 0.0
        self._figures = LineCounts()

    def run(self) -> str:
        """Plan, and wait until all is counted; why not all of it, '' if it is.

        Raises:
            StreamError: the queue's Redis does not serve.
        """
        if not self._team.processes():
            return (
                "no job process is there to help (start some with `countersink jobs`): counted here"
            )
        work, run, planner = self._work, self._work.task.run, self._planner
        self._figures = work.link.run(partial(run_state.figures, run=run))
        planner.take_over()
        most = _AHEAD * work.options.jobs
        counted, counted_at = -1, time.monotonic()
        while not work.stop():
            left = work.link.run(partial(_left, source=self._source))
            if not planner.finished and left.pending < most:
                planner.step()
            elif not left.pending:
                self._show(left, 0)
                return ""
            else:
                time.sleep(LOOK_S)
            work.link.run(partial(run_state.require_running, run=run))
            now = time.monotonic()
            if left.done != counted or not left.pending:
                counted, counted_at, self._in_vain = left.done, now, 0
            elif now - counted_at > PATIENCE_S:
                return "the job processes have not counted anything for a while: counted here, too"
            if left.pending and now >= self._next_look:
                self._next_look = now + _ASK_S
                if why := self._ask(left):
                    return why
        return ""

    def _ask(self, left: _Left) -> str:
        """See to it that enough jobs are there; why they are of no use, or ''."""
        team, run, options = self._team, self._work.task.run, self._work.options
        alive = team.alive(run)
        if alive < self._asked and (said := team.said(run)):
            return f"the job processes do not count all of it ({'; '.join(said)}): counted here"
        if not team.processes():
            return "no job process is there any more: counted here"
        wanted = min(options.jobs, left.pending)
        if alive < wanted and self._in_vain >= _IN_VAIN * options.jobs:
            return "the jobs end without having counted anything (see their log): counted here"
        terms = JobTerms(
            rate=None if options.rate is None else options.rate / options.jobs,
            max_rejects=options.rejects_allowed,
            count_repeats=options.count_repeats,
        )
        for _ in range(wanted - alive):
            team.enqueue(run, self._asked, terms)
            self._asked += 1
            self._in_vain += 1
        self._show(left, max(alive, wanted))
        return ""

    def _show(self, left: _Left, jobs: int) -> None:
        """Say how far the jobs are."""
        work = self._work
        found = work.link.run(partial(run_state.figures, run=work.task.run))
        before, self._figures = self._figures, found
        # The content's place is what is shown as done.
        self._content.seek(left.done_bytes)
        work.watch.add(found - before)
        work.watch.say(jobs=jobs)


def _left(session: Session, source: int) -> _Left:
    ((pending, done, done_bytes),) = session.query(
        "SELECT COALESCE(SUM(state = 'pending'), 0), COALESCE(SUM(state = 'done'), 0),"
        " COALESCE(SUM(IF(state = 'done', end_at - start_at, 0)), 0) FROM backfill_chunk"
        " WHERE source = %s",
        (source,),
    )
    return _Left(int(pending), int(done), int(done_bytes))

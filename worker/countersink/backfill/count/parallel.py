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
from dataclasses import dataclass, field
from typing import Final

from countersink.backfill import run_state
from countersink.backfill.count.follower import Follower
from countersink.backfill.count.sources import Settled
from countersink.backfill.count.task import LOOK_S, JobTerms, Team, Work
from countersink.backfill.input.content import Content
from countersink.backfill.run_state import LineCounts
from countersink.store.connection import Session
from countersink.stream.errors import StreamError

LEAST_BYTES: Final = 64 * 1024 * 1024
"""Fewer bytes are counted in the time that it takes to ask for help."""
PATIENCE_S: Final = 10.0
"""Seconds in which the jobs must have counted a chunk."""
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


def count_by_jobs(
    work: Work, team: Team, content: Content, follower: Follower, settled: Settled
) -> tuple[str, ...]:
    """Have job processes count what is not counted of a source, if that is worth while and they do.

    Whatever of it is not counted afterwards is for the caller to count, as if nobody had helped.

    Args:
        work: whose source it is.
        team: the job processes.
        content: of the source.
        follower: of the source; plans its chunks.
        settled: which source it is.

    Returns:
        Notices for people.

    Raises:
        RunEnded: the run was undone, or its counter deleted, meanwhile.
        Unreadable: the content cannot be read.
        StoreError: MySQL did not do its part; what was counted is counted.
    """
    size = content.size
    if not content.plain or size is None or settled.ended:
        return ()
    left = work.link.run(_left, settled.source)
    if size - left.done_bytes < LEAST_BYTES:
        return ()
    try:
        notice = _Together(work, team, content, follower, settled.source).run()
    except StreamError as error:
        notice = f"the queue of the job processes does not serve ({error}): counted here"
    return (notice,) if notice else ()


@dataclass(slots=True)
class _Together:
    """One source that is counted by jobs."""

    _work: Work
    _team: Team
    _content: Content
    _follower: Follower
    _source: int
    _asked: int = 0
    _in_vain: int = 0
    _next_look: float = 0.0
    _figures: LineCounts = field(default_factory=LineCounts)

    def run(self) -> str:
        """Plan, and wait until all is counted; why not all of it, '' if it is.

        Raises:
            StreamError: the queue's Redis does not serve.
        """
        if not self._team.processes():
            return (
                "no job process is there to help (start some with `countersink jobs`): counted here"
            )
        work, run, planned = self._work, self._work.task.run, False
        self._figures = work.link.run(run_state.figures, run)
        self._follower.take_over()
        most = _AHEAD * work.options.jobs
        counted, counted_at = -1, time.monotonic()
        while not work.stop():
            left = work.link.run(_left, self._source)
            if not planned and left.pending < most:
                planned = self._follower.plan()
            elif not left.pending:
                self._show(left, 0)
                return ""
            else:
                time.sleep(LOOK_S)
            work.link.run(run_state.require_running, run)
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
        found = work.link.run(run_state.figures, work.task.run)
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

"""Counting one source, whatever becomes of it."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.backfill import chunks, sources
from countersink.backfill.contents import Content, open_content
from countersink.backfill.counting import TooManyInChunk
from countersink.backfill.following import Differs, Follower
from countersink.backfill.formats import make_reader
from countersink.backfill.head import head_of
from countersink.backfill.inputs import Input
from countersink.backfill.listing import RejectedLine
from countersink.backfill.options import BackfillError, SourceReport
from countersink.backfill.rejects import named
from countersink.backfill.runs import Counted, RunEnded, printable
from countersink.backfill.settling import Settled, Wanted, settle
from countersink.backfill.together import count_by_jobs
from countersink.backfill.work import Work

_SETTLINGS: Final = 20
"""How often others may turn the same source into another one while it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a source.

    Attributes:
        report: for people.
        known_lines: lines of it that earlier runs had counted.
        notices: for people.
        too_many: the rejected lines of the chunk that was one too many, which are kept nowhere;
            None: the run may go on.
        error: why the run must end, where ``too_many`` are.
    """

    report: SourceReport
    known_lines: int = 0
    notices: tuple[str, ...] = ()
    too_many: tuple[RejectedLine, ...] | None = None
    error: str = ""


def count_source(work: Work, source: Input) -> Outcome:
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
        self._before: dict[int, Counted] = {}

    def count(self, content: Content) -> Outcome:
        work = self._work
        options = work.options
        content.keep(True)
        head = head_of(content)
        if not head.data:
            report = SourceReport(source=self._input.name, outcome="empty", detail="it is empty")
            return Outcome(report=report)
        reader = make_reader(options.recipe, head.data, work.minutes)
        path = self._input.path
        wanted = Wanted(
            counter=options.counter,
            truth_of=work.task.target.truth_of,
            name=options.name,
            recipe=options.recipe,
            path=self._input.name if path is None else printable(str(path)),
        )
        for _ in range(_SETTLINGS):
            self._settled = work.link.run(
                partial(settle, content=content, head=head, wanted=wanted, looking=work.watch.look)
            )
            if self._settled.source not in self._before:
                # The run may have read a copy of it already.
                own, _ = self._figures(self._settled.source)
                self._before[self._settled.source] = own
            settled, notices = count_by_jobs(work, content, reader, self._settled)
            self._notices += notices
            follower = Follower(work, content, reader, settled)
            try:
                follower.planned()
                content.keep(False)
                follower.new()
                if content.plain:
                    follower.planned(undone=False)  # by others, meanwhile
            except Differs:
                continue
            return self.outcome()
        raise BackfillError("others read files that begin alike all the time: run it again")

    def outcome(
        self,
        *,
        failed: bool = False,
        detail: str = "",
        too_many: tuple[RejectedLine, ...] | None = None,
        error: str = "",
    ) -> Outcome:
        own, others = Counted(), Counted()
        settled = self._settled
        for number, before in self._before.items():
            counted, by_others = self._figures(number)
            own += counted - before
            others = by_others + before
            if not (counted.size_bytes or by_others.size_bytes):
                self._work.link.run(partial(sources.forget_unread, source=number))
        own = own.for_people()
        if failed:
            outcome = "failed"
        else:
            outcome = "counted" if own.size_bytes or not others.size_bytes else "known"
        return Outcome(
            report=SourceReport(
                source=self._input.name,
                outcome=outcome,
                detail=detail or self._detail(settled, own, others),
                lines=own.lines,
                counted=own.counted,
                filtered=own.filtered,
                rejected=own.rejected,
                amount=own.amount,
            ),
            known_lines=others.lines,
            notices=self._notices,
            too_many=too_many,
            error=error,
        )

    def _figures(self, source: int) -> tuple[Counted, Counted]:
        """What this run has counted of a source, and what the others have."""
        return self._work.link.run(partial(chunks.figures, source=source, run=self._work.task.run))

    def _detail(self, settled: Settled | None, own: Counted, others: Counted) -> str:
        if settled is None:
            return ""
        if settled.notice:
            return settled.notice
        if settled.ended:
            return "an older copy of what was counted: nothing new in it"
        if others.size_bytes and own.size_bytes:
            return f"{others.lines:,} lines of it were counted before"
        if others.size_bytes:
            return f"all of its {others.lines:,} lines were counted before"
        return ""

"""Counts one source from its planned chunks to its new lines, and words what is reported of it
(``lines of it were counted before`` ...)."""

from dataclasses import dataclass
from typing import Final

from countersink.backfill.count import chunks, sources
from countersink.backfill.count.follower import Follower
from countersink.backfill.count.parallel import count_by_children
from countersink.backfill.count.sources import Settled, settle
from countersink.backfill.count.task import OpenSource, Work, opened
from countersink.backfill.errors import BackfillError, RunEnded, SourceDiffers, TooManyRejects
from countersink.backfill.history import RejectedLine
from countersink.backfill.input.files import Input
from countersink.backfill.options import SourceReport
from countersink.backfill.rejects import named
from countersink.backfill.run_state import LineCounts

_SETTLINGS: Final = 20
"""How often others may turn the same source into another one while it is read."""


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


def count_source(work: Work, source: Input) -> SourceOutcome:
    """Count what is not counted of a source.

    Raises:
        RunEnded: the run was ended by somebody.
        StoreError: MySQL did not do its part.
    """
    counting = _Counting(work, source)
    try:
        with opened(work, source) as at_hand:
            return counting.count(at_hand) if at_hand is not None else empty(source)
    except RunEnded:
        raise
    except TooManyRejects as error:
        too_many = tuple(named(source.name, error.rejects))
        return counting.outcome(detail=str(error), too_many=too_many)
    except BackfillError as error:
        # A pipe that was silent when it was told to stop is no failure.
        return counting.outcome(failed=not work.stop(), detail=str(error))


def empty(source: Input) -> SourceOutcome:
    """What became of a source that holds nothing."""
    return SourceOutcome(report=LineCounts().report(source.name, "empty", "it is empty"))


def outcome_of(own: LineCounts, *, known: bool) -> str:
    """What became of a source, in a word.

    Args:
        own: what the run has counted of it.
        known: some of it was counted before.
    """
    if own.rejected > 0 and not (own.counted or own.filtered):
        return "rejected"
    return "counted" if own.lines or own.size_bytes or not known else "known"


class _Counting:
    def __init__(self, work: Work, source: Input) -> None:
        self._work = work
        self._input = source
        self._settled: Settled | None = None
        self._notices: tuple[str, ...] = ()
        self._before: dict[int, LineCounts] = {}

    def count(self, at_hand: OpenSource) -> SourceOutcome:
        work, content, wanted = self._work, at_hand.content, at_hand.wanted
        for _ in range(_SETTLINGS):
            settled = work.link.run(settle, content, wanted, work.watch.look)
            self._settled = settled
            if settled.source not in self._before:
                # The run may have read a copy of it already.
                own, _ = self._figures(settled.source)
                self._before[settled.source] = own
            at_hand.reader.look_back(content.read_at, settled.to)  # a pipe cannot go back later
            follower = Follower(work, at_hand, settled)
            self._notices += count_by_children(work, self._input, content, follower, settled)
            try:
                follower.planned()
                content.keep(False)
                follower.new()
                if content.plain:
                    follower.planned(undone=False)  # by others, meanwhile
            except SourceDiffers:
                continue
            return self.outcome()
        raise BackfillError("others read files that begin alike all the time: run it again")

    def outcome(
        self,
        *,
        failed: bool = False,
        detail: str = "",
        too_many: tuple[RejectedLine, ...] | None = None,
    ) -> SourceOutcome:
        own, others = LineCounts(), LineCounts()
        settled = self._settled
        for number, before in self._before.items():
            counted, by_others = self._figures(number)
            own += counted - before
            others = by_others + before
            if not (counted.size_bytes or by_others.size_bytes):
                self._work.link.run(sources.forget_unread, number)
        own = own.for_people()
        outcome = "failed" if failed else outcome_of(own, known=bool(others.size_bytes))
        return SourceOutcome(
            report=own.report(
                self._input.name, outcome, detail or self._detail(settled, own, others)
            ),
            known_lines=others.lines,
            notices=self._notices,
            too_many=too_many,
        )

    def _figures(self, source: int) -> tuple[LineCounts, LineCounts]:
        """What this run has counted of a source, and what the others have."""
        return self._work.link.run(chunks.figures, source, self._work.task.run)

    def _detail(self, settled: Settled | None, own: LineCounts, others: LineCounts) -> str:
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

"""``--dry-run`` of an add: sources are read as counting would, without a row being written or
locked; what would be added by day.

What was read already is kept here, so that what is read then is known as adding would know it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Final

from countersink.backfill.count import chunks, targets
from countersink.backfill.count.chunk_reader import ReadChunk
from countersink.backfill.count.chunks import Chunk
from countersink.backfill.count.read_ahead import ReadAhead
from countersink.backfill.count.source_count import SourceOutcome, count_source
from countersink.backfill.count.sources import (
    Source,
    Sources,
    alike,
)
from countersink.backfill.count.task import Work
from countersink.backfill.count.transaction import path_of, refuse_repeats
from countersink.backfill.errors import TooManyRejects
from countersink.backfill.history import RejectedLine
from countersink.backfill.input.files import Input
from countersink.backfill.options import (
    STOPPED,
    BackfillReport,
    SourceReport,
    report,
    state_of,
)
from countersink.backfill.rejects import KEPT, named, reasons
from countersink.store.connection import Session

RUN: Final = 0
"""The run of what is only tried."""


class Trial(Sources):
    """Sources and their chunks as the tables have them, and what a dry run has read since.

    Attributes:
        days: what would be added to each day.
        rejected: how many lines were.
        first: the first of them.
    """

    def __init__(self) -> None:
        self.days: Counter[date] = Counter()
        self.rejected = 0
        self.first: list[RejectedLine] = []
        self._sources: dict[int, Source] = {}
        self._anew: set[int] = set()
        self._chunks: dict[int, list[Chunk]] = {}
        self._samples: dict[bytes, set[int]] = {}

    def candidates(self, session: Session, wanted: Source) -> list[Source]:
        there = [self._sources.get(one.id, one) for one in super().candidates(session, wanted)]
        new = [one for one in self._sources.values() if one.id < 0]
        found = [one for one in (*there, *new) if alike(one.head, wanted.head)]
        return sorted(found, key=lambda one: -one.read_to)

    def chunks(self, session: Session, source: int, start_at: int = 0) -> Iterator[Chunk]:
        read = self._chunks.get(source, [])
        if source > 0 and source not in self._anew:
            yield from super().chunks(session, source, start_at)
        yield from (chunk for chunk in read if chunk.start_at >= start_at)

    def last(self, session: Session, source: int) -> Chunk | None:
        if read := self._chunks.get(source):
            return read[-1]
        return None if source < 0 or source in self._anew else super().last(session, source)

    def read(self, session: Session, source: int, *, lock: bool = False) -> Source | None:
        return self._sources.get(source) or super().read(session, source)

    def hold(self, session: Session, counter: str) -> None:
        pass  # nobody else sees what is inserted here

    def insert(self, session: Session, wanted: Source) -> int:
        new = -1 - len(self._sources)
        self._sources[new] = replace(wanted, id=new)
        return new

    def save(self, session: Session, source: Source) -> None:
        self._sources[source.id] = source

    def forget_chunks(self, session: Session, source: int) -> None:
        self._anew.add(source)
        self._chunks.pop(source, None)

    def count(
        self, session: Session, ahead: ReadAhead, source: int, found: ReadChunk, behind: bytes
    ) -> ReadChunk:
        """Note what would be counted.

        Raises:
            RepeatedLines, BackfillError, TooManyRejects: as counting it.
            StoreError: as any query.
        """
        task, own = ahead.work.task, self.read(session, source)
        assert own is not None
        scheme, every = ahead.bucket.scheme, found.samples.every
        if not own.count_repeats:
            others = chunks.others_with(session, every, source)
            for sample in every:
                if tried := self._samples.get(sample, set()) - {source}:
                    others.setdefault(sample, set()).update(tried)
            refuse_repeats(found, ahead, others, partial(self._path, session))
        targets.refuse_set_days(session, task.counter, found.days(scheme))
        lines = named(own.path, found.rejects)
        self.rejected += len(lines)
        if self.rejected > task.max_rejects:
            raise TooManyRejects(
                f"more than {task.max_rejects:,} lines are rejected: it would stop there",
                found.rejects,
            )
        for sample in found.samples.kept(found.start.at):
            self._samples.setdefault(sample, set()).add(source)
        for label, keys in found.amounts.items():
            self.days[scheme.local_day(label)] += keys.total()
        self.first += lines[: KEPT - len(self.first)]
        chunk = Chunk.of(source, found.span, RUN)
        self._chunks.setdefault(source, []).append(chunk)
        self._sources[source] = own.after(chunk, ahead.at_hand.wanted.head)
        return found

    def _path(self, session: Session, source: int) -> str:
        return self._sources[source].path if source in self._sources else path_of(session, source)


def add(work: Work, found: Sequence[Input], failed: Sequence[SourceReport]) -> BackfillReport:
    """What adding these sources would do; rejected lines are written only if a file is named.

    Raises:
        StoreError: MySQL did not do its part.
    """
    trial, stop = Trial(), work.stop
    work = replace(work, sources=trial)
    outcomes: list[SourceOutcome] = []
    too_many = False
    for source in found:
        outcomes.append(count_source(work, source, trial.count))
        too_many = outcomes[-1].too_many is not None
        if stop() or too_many:
            break
    sources = [*failed, *(one.report for one in outcomes)]
    notices = ["nothing was changed: this was a dry run"]
    notices += [notice for one in outcomes for notice in one.notices]
    if too_many:
        notices.append(sources[-1].detail)
    elif stop():
        notices.append(STOPPED)
    notices += reasons(trial.rejected, trial.first)
    work.rejects.write(outcomes[-1].too_many or ())
    if work.rejects.notice:
        notices.append(work.rejects.notice)
    return report(
        work.options,
        None,
        state_of(sources, stopped=stop() or too_many),
        sources,
        known_lines=sum(one.known_lines for one in outcomes),
        uncounted_rejects=len(outcomes[-1].too_many or ()),
        by_day=[(day.isoformat(), amount) for day, amount in sorted(trial.days.items())],
        notices=notices,
    )

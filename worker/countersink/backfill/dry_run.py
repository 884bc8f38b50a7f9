"""``Trial``, for ``--dry-run``: sources are read as counting would, without a row being written or
locked; what would be added by day, and what the sources of a reconcile say.

What was read already is kept here, so that what is read then is known as counting would know it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from operator import attrgetter
from typing import Final

from countersink.backfill.count import chunks, targets
from countersink.backfill.count.chunk_reader import ReadChunk
from countersink.backfill.count.chunks import Chunk
from countersink.backfill.count.read_ahead import ReadAhead
from countersink.backfill.count.sources import (
    Settled,
    Source,
    Sources,
    WantedSource,
    alike,
    begins_anew,
)
from countersink.backfill.count.transaction import path_of, refuse_repeats
from countersink.backfill.errors import TooManyRejects
from countersink.backfill.input.content import Content
from countersink.backfill.run_state import LineCounts
from countersink.store.apply.amounts import BucketAmounts
from countersink.store.connection import Session

RUN: Final = -1
"""The run of what is only tried: no row of a table has this number."""


class Trial(Sources):
    """Sources and their chunks as the tables have them, and what a dry run has read since.

    Attributes:
        days: what would be added to each day.
        said: what the sources of a reconcile say: bucket's label → key → amount.
    """

    def __init__(self) -> None:
        self.days: Counter[date] = Counter()
        self.said: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._sources: dict[int, Source] = {}
        self._anew: set[int] = set()
        self._chunks: dict[int, list[Chunk]] = {}
        self._figures: dict[int, LineCounts] = {}
        self._samples: dict[bytes, set[int]] = {}

    def candidates(self, session: Session, wanted: WantedSource) -> list[Source]:
        there = [self._sources.get(one.id, one) for one in super().candidates(session, wanted)]
        new = [one for one in self._sources.values() if one.id < 0]
        found = [one for one in (*there, *new) if alike(one.head, wanted.head)]
        return sorted(found, key=lambda one: -one.read_to)

    def chunks(self, session: Session, source: int, start_at: int = 0) -> Iterator[Chunk]:
        read = self._chunks.get(source, [])
        if source > 0 and source not in self._anew:
            again = {chunk.start_at: chunk for chunk in read}
            for chunk in super().chunks(session, source, start_at):
                yield again.pop(chunk.start_at, chunk)
            read = list(again.values())
        yield from (chunk for chunk in read if chunk.start_at >= start_at)

    def undone(self, session: Session, source: int) -> list[Chunk]:
        return [chunk for chunk in self.chunks(session, source) if chunk.state == "undone"]

    def last(self, session: Session, source: int) -> Chunk | None:
        read = [*self._chunks.get(source, ())]
        if source > 0 and source not in self._anew and (known := super().last(session, source)):
            read.append(known)
        return max(read, key=attrgetter("start_at"), default=None)

    def read(self, session: Session, source: int) -> Source | None:
        return self._sources.get(source) or super().read(session, source)

    def figures(self, session: Session, source: int, run: int) -> tuple[LineCounts, LineCounts]:
        new = source < 0 or source in self._anew
        others = LineCounts() if new else super().figures(session, source, run)[1]
        return self._figures.get(source, LineCounts()), others

    def forget_unread(self, session: Session, source: int) -> None:
        pass  # it is in no table

    def settle(
        self,
        session: Session,
        content: Content,
        wanted: WantedSource,
        looking: Callable[[], object],
    ) -> Settled:
        found = self.find(session, content, wanted, looking)
        held = found.held
        if held is not None and begins_anew(session, held.source, wanted.recipe):
            source = replace(held.source, recipe=wanted.recipe, read_to=0, lines_to=0)
            self._anew.add(source.id)
            held = None
        elif held is not None:
            repeats = held.source.count_repeats or wanted.count_repeats
            source = replace(
                held.source, recipe=wanted.recipe, path=wanted.path, count_repeats=repeats
            )
        else:
            new = -1 - len(self._sources)
            source = Source(
                id=new,
                counter=wanted.counter,
                truth_of=wanted.truth_of,
                name=wanted.name,
                head=wanted.head,
                recipe=wanted.recipe,
                path=wanted.path,
                read_to=0,
                lines_to=0,
                count_repeats=wanted.count_repeats,
            )
        self._sources[source.id] = source
        if held is None:
            return Settled(source=source.id, to=0, notice=found.notice)
        ended = held.verdict == "older"
        return Settled(source=source.id, to=held.to, last=held.last, ended=ended)

    def count(
        self, session: Session, ahead: ReadAhead, source: int, found: ReadChunk, behind: bytes
    ) -> ReadChunk:
        """Note what would be counted.

        Raises:
            RepeatedLines, BackfillError, TooManyRejects: as counting it.
            StoreError: as any query.
        """
        task, own = ahead.work.task, self._sources[source]
        scheme, every = ahead.bucket.scheme, found.samples.every
        if not own.count_repeats:
            others = chunks.others_with(session, every, source)
            for sample in every:
                if tried := self._samples.get(sample, set()) - {source}:
                    others.setdefault(sample, set()).update(tried)
            refuse_repeats(found, ahead, others, partial(self._path, session))
        if not task.target.truth_of:
            targets.refuse_set_days(session, task.counter, found.days(scheme))
        rejected = sum(one.rejected for one in (*self._figures.values(), found.counts))
        if rejected > task.max_rejects:
            raise TooManyRejects(
                f"more than {task.max_rejects:,} lines are rejected: it would stop there",
                found.rejects,
            )
        for sample in found.samples.kept(found.start.at):
            self._samples.setdefault(sample, set()).add(source)
        amounts = BucketAmounts(task.counter, found.amounts, ahead.catalog)
        for label, keys in amounts.of(task.counter).items():
            if task.target.truth_of:
                self.said[label].update(keys)
            else:
                self.days[scheme.local_day(label)] += sum(keys.values())
        chunk = Chunk.of(source, found.span, RUN)
        self._chunks.setdefault(source, []).append(chunk)
        if chunk.start_at == own.read_to:
            self._sources[source] = own.after(chunk, ahead.at_hand.wanted.head)
        self._figures[source] = self._figures.get(source, LineCounts()) + found.counts
        return found

    def _path(self, session: Session, source: int) -> str:
        return self._sources[source].path if source in self._sources else path_of(session, source)

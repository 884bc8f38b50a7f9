"""``Trial``, for ``--dry-run``: sources are read as counting would, without a row being written or
locked; what would be added by day, and what the sources of a reconcile say.

What was read already is kept here, so that what is read then is known as counting would know it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Final

from countersink.backfill.count import chunks, targets
from countersink.backfill.count.chunk_reader import ReadChunk
from countersink.backfill.count.chunks import SAMPLE_BYTES, Chunk
from countersink.backfill.count.read_ahead import ReadAhead
from countersink.backfill.count.sources import Source, Sources, alike
from countersink.backfill.count.task import NO_RUN
from countersink.backfill.count.transaction import path_of, refuse_repeats
from countersink.backfill.errors import TooManyRejects
from countersink.counting.apply.amounts import BucketAmounts
from countersink.database.session import Session

_NUMBER: Final = 8
_ENTRY: Final = SAMPLE_BYTES - 2 + _NUMBER


class FirstSources:
    """Which source had a sample first; in a tenth of the memory of a dict.

    By the first two bytes of the samples: what follows them and the source, one behind the other.
    """

    def __init__(self) -> None:
        self._held: defaultdict[bytes, bytearray] = defaultdict(bytearray)

    def get(self, sample: bytes) -> int | None:
        """The number of the source; None: none had it."""
        held, rest = self._held[sample[:2]], sample[2:]
        at = held.find(rest)
        while at > 0 and at % _ENTRY:
            at = held.find(rest, at + 1)
        end = at + _ENTRY
        return None if at < 0 else int.from_bytes(held[end - _NUMBER : end], "big", signed=True)

    def add(self, sample: bytes, source: int) -> None:
        """Note that a source has it."""
        if self.get(sample) is None:
            self._held[sample[:2]] += sample[2:] + source.to_bytes(_NUMBER, "big", signed=True)


class Trial(Sources):
    """Sources and their chunks as the tables have them, and what a dry run has read since.

    Attributes:
        days: what would be added to each day.
        said: what the sources of a reconcile say: bucket's label → key → amount.
    """

    def __init__(self) -> None:
        self.days: Counter[date] = Counter()
        self.said: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._rejected = 0
        self._sources: dict[int, Source] = {}
        self._anew: set[int] = set()
        self._counted: set[int] = set()
        self._chunks: dict[int, list[Chunk]] = {}
        self._samples = FirstSources()

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

    def is_counted(self, session: Session, source: int) -> bool:
        known = source > 0 and source not in self._anew
        return source in self._counted or (known and super().is_counted(session, source))

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
            BackfillError, TooManyRejects: as counting it.
            StoreError: as any query.
        """
        work, own = ahead.work, self.read(session, source)
        assert own is not None
        scheme, every = ahead.bucket.scheme, found.samples.every
        if not own.count_repeats:
            others = chunks.others_with(session, every, source)
            for sample in every:
                if (tried := self._samples.get(sample)) not in (None, source):
                    others.setdefault(sample, set()).add(tried)
            refuse_repeats(found, ahead, others, partial(self._path, session))
        if not work.target.truth_of:
            targets.refuse_set_days(session, work.counter, found.days(scheme))
        self._rejected += found.counts.rejected
        most = work.options.rejects_allowed
        if self._rejected > most:
            raise TooManyRejects(
                f"more than {most:,} lines are rejected: it would stop there",
                found.rejects,
            )
        if found.counts.counted:
            self._counted.add(source)
        for sample in found.samples.kept(found.start.at):
            self._samples.add(sample, source)
        amounts = BucketAmounts(work.counter, found.amounts, ahead.catalog)
        for label, keys in amounts.of(work.counter).items():
            if work.target.truth_of:
                self.said[label].update(keys)
            else:
                self.days[scheme.local_day(label)] += sum(keys.values())
        chunk = Chunk.of(source, found.span, NO_RUN)
        self._chunks.setdefault(source, []).append(chunk)
        self._sources[source] = own.after(chunk, ahead.at_hand.wanted.head)
        return found

    def _path(self, session: Session, source: int) -> str:
        return self._sources[source].path if source in self._sources else path_of(session, source)

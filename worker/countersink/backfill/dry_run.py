"""``Trial`` executes ``--dry-run``: it reads each chunk and checks it for repeated lines, days that
a reconcile has set, and too many rejected lines, but writes and locks no rows. It sums the amounts
that would be added to each day. For a reconcile, it sums the amounts of each bucket and key.

A real run recognizes repeated files and lines by the rows of sources, chunks and samples in the
tables. A dry run reads these, too, and keeps in memory the rows that it would insert. So it
recognizes the same files and lines.
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
from countersink.backfill.count.sources import Source, Sources, heads_match
from countersink.backfill.count.task import NO_RUN
from countersink.backfill.count.transaction import path_of, refuse_repeats
from countersink.backfill.errors import TooManyRejects
from countersink.counting.apply.amounts import BucketAmounts
from countersink.database.session import Session

_NUMBER: Final = 8
"""Length in bytes of a source's number."""
_RECORD_BYTES: Final = SAMPLE_BYTES - 2 + _NUMBER


class FirstSources:
    """A map from each sample (the hash of a line) to the first source of a dry run that has the
    line. It takes a tenth of the memory of a dict.

    There is one bytearray for each value of a sample's first two bytes. For each sample that begins
    with these, it contains the sample's other bytes and the number of the source.
    """

    def __init__(self) -> None:
        self._held: defaultdict[bytes, bytearray] = defaultdict(bytearray)

    def get(self, sample: bytes) -> int | None:
        """Return the number of the first source that has a sample, or None if no source has it."""
        held, rest = self._held[sample[:2]], sample[2:]
        index = held.find(rest)
        while index > 0 and index % _RECORD_BYTES:
            index = held.find(rest, index + 1)
        end = index + _RECORD_BYTES
        return None if index < 0 else int.from_bytes(held[end - _NUMBER : end], "big", signed=True)

    def add(self, sample: bytes, source: int) -> None:
        """Store ``source`` as the first source of a sample. Do nothing if the sample has a first
        source."""
        if self.get(sample) is None:
            self._held[sample[:2]] += sample[2:] + source.to_bytes(_NUMBER, "big", signed=True)


class Trial(Sources):
    """The sources and chunks of a dry run: those in the tables, and those that the dry run itself
    has read, which are kept in memory. A source that is not in the tables has a negative number.

    Attributes:
        days: for each day, the amount that would be added to it; empty if ``truth`` is used.
        truth: label of a bucket → key → amount: the sums of the sources, if the run's target is a
            ``TruthTarget``, as for a reconcile; else empty.
    """

    def __init__(self) -> None:
        self.days: Counter[date] = Counter()
        self.truth: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._rejected = 0
        self._sources: dict[int, Source] = {}
        self._restarted: set[int] = set()
        self._counted: set[int] = set()
        self._chunks: dict[int, list[Chunk]] = {}
        self._samples = FirstSources()

    def candidates(self, session: Session, wanted: Source) -> list[Source]:
        stored = [self._sources.get(one.id, one) for one in super().candidates(session, wanted)]
        new = [one for one in self._sources.values() if one.id < 0]
        found = [one for one in (*stored, *new) if heads_match(one.head, wanted.head)]
        return sorted(found, key=lambda one: -one.read_to)

    def chunks(self, session: Session, source: int, start_at: int = 0) -> Iterator[Chunk]:
        read = self._chunks.get(source, [])
        if source > 0 and source not in self._restarted:
            yield from super().chunks(session, source, start_at)
        yield from (chunk for chunk in read if chunk.start_at >= start_at)

    def last(self, session: Session, source: int) -> Chunk | None:
        if read := self._chunks.get(source):
            return read[-1]
        return None if source < 0 or source in self._restarted else super().last(session, source)

    def is_counted(self, session: Session, source: int) -> bool:
        known = source > 0 and source not in self._restarted
        return source in self._counted or (known and super().is_counted(session, source))

    def read(self, session: Session, source: int, *, lock: bool = False) -> Source | None:
        return self._sources.get(source) or super().read(session, source)

    def lock_counter(self, session: Session, counter: str) -> None:
        pass  # other processes do not see the sources of a dry run

    def insert(self, session: Session, wanted: Source) -> int:
        new = -1 - len(self._sources)
        self._sources[new] = replace(wanted, id=new)
        return new

    def save(self, session: Session, source: Source) -> None:
        self._sources[source.id] = source

    def delete_chunks(self, session: Session, source: int) -> None:
        self._restarted.add(source)
        self._chunks.pop(source, None)

    def count(
        self, session: Session, ahead: ReadAhead, source: int, found: ReadChunk, before: bytes
    ) -> ReadChunk:
        """Check a chunk, add it to the sums of the dry run, and return it. Writes to no table.

        The arguments are those of ``count_chunk`` in ``transaction.py``, which counts a chunk in a
        real run; ``before`` is not used.

        Raises:
            BackfillError: other sources have many lines of the chunk (not checked with
                ``count_repeats``), or a reconcile has set some of its days (not checked for a
                ``TruthTarget``).
            TooManyRejects: too many lines of the dry run would be rejected.
            StoreError: MySQL failed.
        """
        work, stored = ahead.work, self.read(session, source)
        assert stored is not None
        scheme, every = ahead.bucket.scheme, found.samples.every
        if not stored.count_repeats:
            others = chunks.find_other_sources(session, every, source)
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
                f"the limit of rejected lines ({most:,}) is exceeded: the run would stop there",
                found.rejects,
            )
        if found.counts.counted:
            self._counted.add(source)
        for sample in found.samples.kept(found.start.offset):
            self._samples.add(sample, source)
        amounts = BucketAmounts(work.counter, found.amounts, ahead.catalog)
        for label, keys in amounts.by_bucket(work.counter).items():
            if work.target.truth_of:
                self.truth[label].update(keys)
            else:
                self.days[scheme.local_day(label)] += sum(keys.values())
        chunk = Chunk.of_span(source, found.span, NO_RUN)
        self._chunks.setdefault(source, []).append(chunk)
        self._sources[source] = stored.after(chunk, ahead.opened.wanted.head)
        return found

    def _path(self, session: Session, source: int) -> str:
        return self._sources[source].path if source in self._sources else path_of(session, source)

"""``--dry-run``: reads sources as counting would, with what it would add by day; changes nothing.

What a dry run has read already is kept here, so that what it reads then is known as adding would
know it: the spans of each source, and the samples of their lines.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from countersink.backfill.count import chunks, targets
from countersink.backfill.count.chunk_reader import ReadChunk, Start, read_chunk
from countersink.backfill.count.source_count import SourceOutcome, empty, outcome_of
from countersink.backfill.count.sources import (
    HeldSource,
    Source,
    alike,
    begins_anew,
    find,
    too_short,
)
from countersink.backfill.count.task import OpenSource, Work, opened, salts_of
from countersink.backfill.count.transaction import (
    path_of,
    refuse_repeats,
    start_of_next,
    start_of_planned,
)
from countersink.backfill.errors import BackfillError
from countersink.backfill.history import RejectedLine
from countersink.backfill.input.content import Content
from countersink.backfill.input.files import Input
from countersink.backfill.input.spans import Span, digest
from countersink.backfill.options import (
    STOPPED,
    BackfillReport,
    SourceReport,
    report,
    state_of,
)
from countersink.backfill.rejects import KEPT, named, reasons
from countersink.backfill.run_state import LineCounts

RUN: Final = 0
"""The run of what is only tried."""


@dataclass(slots=True)
class Reading:
    """What a dry run has read of a source, behind what is counted of it.

    Attributes:
        source: its number; None: it would be a new one.
        number: the same, negative of a new one.
        head: how it begins, 4,096 bytes at most.
        path: where.
        spans: what was read, in order.
    """

    source: int | None
    number: int
    head: bytes
    path: str
    spans: list[Span] = field(default_factory=list)

    def next(self) -> Start:
        """Where reading goes on."""
        last = self.spans[-1]
        begins = last.end if last.open_at is None else last.open_at
        return Start(at=last.end, reads_from=begins, first_line=last.next_line)

    def compare(self, content: Content, head: bytes) -> str:
        """How a content is related to it: as :class:`HeldSource` says."""
        for span in self.spans:
            found = digest(content, span.start, span.end)
            if found is None:
                size = content.offset
                told = size == len(head) and self.head.startswith(head)
                return "older" if size == span.start or told else "short"
            if found != span.digest:
                return "other"
        return "same"


@dataclass(slots=True)
class DryRun:
    """Reads sources as counting would, and adds up what would be counted.

    Attributes:
        work: what is asked for; its connection is only read.
        first: the first rejected lines.
        chunks: how many were read.
        by_label: what would be added to each bucket.
    """

    work: Work
    first: list[RejectedLine] = field(default_factory=list)
    chunks: int = 0
    by_label: Counter[int] = field(default_factory=Counter)
    _readings: list[Reading] = field(default_factory=list)
    _again: set[tuple[int, int]] = field(default_factory=set)
    _paths: dict[int, str] = field(default_factory=dict)
    _samples: dict[bytes, set[int]] = field(default_factory=dict)

    def by_day(self) -> tuple[tuple[str, int], ...]:
        """What would be added on each day."""
        days: Counter[str] = Counter()
        scheme = self.work.task.scheme(self.work.catalog)
        for label, amount in self.by_label.items():
            days[scheme.local_day(label).isoformat()] += amount
        return tuple(sorted(days.items()))

    def source(self, source: Input) -> SourceOutcome:
        """Read one source.

        Raises:
            StoreError: MySQL did not do its part.
        """
        counted = others = LineCounts()
        link = self.work.link
        try:
            with opened(self.work, source) as at_hand:
                if at_hand is None:
                    return empty(source)
                held = self._held(at_hand)
                at_hand.reader.look_back(at_hand.content.read_at, 0 if held is None else held.to)
                for chunk in self._chunks(at_hand, held):
                    counted += self._add(source, chunk)
        except BackfillError as error:
            return SourceOutcome(report=counted.report(source.name, "failed", str(error)))
        if held is not None:
            _, others = link.run(chunks.figures, held.source.id, RUN)
        report = counted.report(source.name, outcome_of(counted.for_people(), known=True), "")
        return SourceOutcome(report=report, known_lines=others.lines)

    def _held(self, at_hand: OpenSource) -> HeldSource | None:
        """The source that a content is, if it is known."""
        link, wanted = self.work.link, at_hand.wanted
        held = link.run(find, at_hand.content, wanted, self.work.watch.look).held
        anew = held is not None and link.run(begins_anew, held.source, wanted.recipe)
        return None if anew else held

    def _reading(self, at_hand: OpenSource, source: int | None) -> Reading | None:
        """What was read of a content before, or a new reading; None: it is an older copy.

        Args:
            source: which one it is in the tables.

        Raises:
            BackfillError: it cannot be told from an older copy.
            Unreadable: as comparing it.
        """
        content, head = at_hand.content, at_hand.wanted.head
        found = {
            one.compare(content, head): one
            for one in reversed(self._readings)
            if one.source == source and alike(one.head, head)
        }
        if same := found.get("same"):
            same.head = max(same.head, head, key=len)
            return same
        if "older" in found:
            return None
        if short := found.get("short"):
            raise BackfillError(too_short(short.path))
        if found and source is not None:
            # Another copy of that source went on in another way.
            return self._reading(at_hand, None)
        number = source
        if number is None:
            number = -1 - len(self._paths)
            self._paths[number] = content.name
        self._readings.append(Reading(source, number, head, content.name))
        return self._readings[-1]

    def _chunks(self, at_hand: OpenSource, held: HeldSource | None) -> Iterator[ReadChunk]:
        """What would be counted of a content."""
        link, content, stop = self.work.link, at_hand.content, self.work.stop
        if held is not None:
            for chunk in link.run(chunks.to_be_counted, held.source.id):
                place = chunk.source, chunk.start_at
                if chunk.end_at <= held.to and place not in self._again and not stop():
                    begin = link.run(start_of_planned, chunk)
                    found = self._read_chunk(at_hand, begin, held.source, chunk.end_at)
                    if found is not None:
                        self._again.add(place)
                        yield found
            if held.verdict == "older":
                return
        reading = self._reading(at_hand, None if held is None else held.source.id)
        if reading is None:
            return
        if reading.spans:
            start = reading.next()
        elif held is not None and reading.source is not None:
            start = link.run(start_of_next, held.source, content)
        else:
            start = Start(at=0, reads_from=0, first_line=1)
        source = reading.number if reading.source is None or held is None else held.source
        content.keep(False)
        while not stop():
            found = self._read_chunk(at_hand, start, source)
            if found is None:
                return
            yield found
            reading.spans.append(found.span)
            start = reading.next()

    def _read_chunk(
        self, at_hand: OpenSource, start: Start, source: Source | int, end: int | None = None
    ) -> ReadChunk | None:
        """A chunk, unless many lines of it are another source's.

        Args:
            source: as the tables have it, or the negative number of a new one.
        """
        work, wanted = self.work, at_hand.wanted
        found = read_chunk(
            at_hand.content,
            at_hand.reader,
            start,
            work.catalog,
            work.task.scheme(work.catalog),
            end=end,
            max_lines=work.pace.max_lines,
            scope=wanted.scope,
            salts=work.link.run(salts_of, wanted.recipe, wanted.counter),
        )
        if found is None:
            return None
        number, remembered = (
            (source, False) if isinstance(source, int) else (source.id, source.count_repeats)
        )
        if not (wanted.count_repeats or remembered):
            others = work.link.run(chunks.others_with, found.samples.every, number)
            for sample in found.samples.every:
                if tried := self._samples.get(sample, set()) - {number}:
                    others.setdefault(sample, set()).update(tried)
            refuse_repeats(found, others, wanted.recipe.end, self._path)
        for sample in found.kept_samples():
            self._samples.setdefault(sample, set()).add(number)
        return found

    def _path(self, source: int) -> str:
        return self._paths.get(source) or self.work.link.run(path_of, source)

    def _add(self, source: Input, found: ReadChunk) -> LineCounts:
        work = self.work
        work.link.run(targets.refuse_set_days, work.options.counter, found.days())
        self.by_label.update({label: keys.total() for label, keys in found.amounts.items()})
        rejected = named(source.name, found.rejects)
        self.first += rejected[: KEPT - len(self.first)]
        if work.task.spool is not None:
            work.task.spool.add(RUN, self.chunks, rejected)
        self.chunks += 1
        work.watch.add(found.counts)
        return found.counts


def add(work: Work, found: Sequence[Input], failed: Sequence[SourceReport]) -> BackfillReport:
    """What adding these sources would do; rejected lines are written only if a file is named.

    Raises:
        StoreError: MySQL did not do its part.
    """
    options, stop = work.options, work.stop
    trial = DryRun(work)
    sources = list(failed)
    known_lines = rejected = 0
    too_many = False
    for source in found:
        tried = trial.source(source)
        sources.append(tried.report)
        known_lines += tried.known_lines
        rejected += tried.report.rejected
        too_many = rejected > options.rejects_allowed
        if stop() or too_many:
            break
    notices = ["nothing was changed: this was a dry run"]
    if too_many:
        most = options.rejects_allowed
        notices.append(f"more than {most:,} lines are rejected: it would stop there")
    elif stop():
        notices.append(STOPPED)
    notices += reasons(rejected, trial.first)
    if rejected and work.task.spool is not None:
        notices.append(work.task.spool.save((RUN, chunk) for chunk in range(trial.chunks)))
    return report(
        options,
        None,
        state_of(sources, stopped=stop() or too_many),
        sources,
        known_lines=known_lines,
        by_day=trial.by_day(),
        notices=notices,
    )

"""Saying what adding would do, changing nothing."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from countersink.backfill import chunks, set_days
from countersink.backfill.contents import Content, open_content
from countersink.backfill.counting import start_of_next, start_of_planned
from countersink.backfill.formats import Reader, make_reader
from countersink.backfill.head import Head, head_of
from countersink.backfill.identity import Held
from countersink.backfill.inputs import Input
from countersink.backfill.link import Link
from countersink.backfill.listing import RejectedLine
from countersink.backfill.options import BackfillError, Options, SourceReport
from countersink.backfill.read_before import ReadBefore
from countersink.backfill.reading import ReadChunk, Start, read_chunk
from countersink.backfill.rejects import named
from countersink.backfill.runs import Counted
from countersink.backfill.settling import Wanted, find, may_begin_anew, other_recipe
from countersink.backfill.watch import Watch
from countersink.store.policies import Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What would become of a source.

    Attributes:
        report: for people.
        known_lines: lines of it that are counted already.
    """

    report: SourceReport
    known_lines: int = 0


@dataclass(slots=True, kw_only=True)
class DryRun:
    """Reads sources as adding would.

    Attributes:
        options: as asked.
        link: the connection; only read.
        in_force: the policies.
        minutes: those of the days that are asked for; None: all.
        watch: says how far it is.
        stop: true once it should end.
        rejected: is given the rejected lines.
        by_label: what would be added to each bucket.
    """

    options: Options
    link: Link
    in_force: Policies
    minutes: tuple[int, int] | None
    watch: Watch
    stop: Callable[[], bool]
    rejected: Callable[[Sequence[RejectedLine]], object]
    by_label: Counter[int] = field(default_factory=Counter)
    _before: ReadBefore = field(default_factory=ReadBefore)
    _again: set[tuple[int, int]] = field(default_factory=set)

    def by_day(self) -> tuple[tuple[str, int], ...]:
        """What would be added on each day."""
        days: Counter[str] = Counter()
        counter = self.options.counter
        for label, amount in self.by_label.items():
            day = self.in_force.numbered(counter, label).local_day(label)
            days[day.isoformat()] += amount
        return tuple(sorted(days.items()))

    def source(self, source: Input) -> Tried:
        """Read one source.

        Raises:
            StoreError: MySQL did not do its part.
        """
        counted = Counted()
        try:
            with open_content(source, self.stop) as content:
                self.watch.begin(source, content)
                try:
                    head, found = self._find(source, content)
                    if not head.data:
                        return Tried(report=_report(source, counted, "empty", "it is empty"))
                    reader = make_reader(self.options.recipe, head.data, self.minutes)
                    for chunk in self._chunks(content, reader, head, found):
                        counted += self._add(source, chunk)
                finally:
                    self.watch.finish()
        except BackfillError as error:
            return Tried(report=_report(source, counted, "failed", str(error)))
        known = 0
        if found is not None:
            _, others = self.link.run(partial(chunks.figures, source=found.source.id, run=0))
            known = others.lines
        outcome = "counted" if counted.size_bytes else "known"
        return Tried(report=_report(source, counted, outcome, ""), known_lines=known)

    def _find(self, source: Input, content: Content) -> tuple[Head, Held | None]:
        content.keep(True)
        head = head_of(content)
        if not head.data:
            return head, None
        options = self.options
        wanted = Wanted(
            counter=options.counter,
            truth_of=0,
            name=options.name,
            recipe=options.recipe,
            path=source.name,
        )
        found = self.link.run(
            partial(find, content=content, head=head, wanted=wanted, looking=self.watch.look)
        )
        held = found.held
        if held is not None and held.source.recipe != options.recipe:
            if not self.link.run(partial(may_begin_anew, source=held.source)):
                raise BackfillError(
                    self.link.run(partial(other_recipe, source=held.source, recipe=options.recipe))
                )
            held = None
        return head, held

    def _chunks(
        self, content: Content, reader: Reader, head: Head, held: Held | None
    ) -> Iterator[ReadChunk]:
        """What would be counted of a content."""
        if held is not None:
            waiting = self.link.run(partial(chunks.to_be_counted, source=held.source.id))
            for chunk in waiting:
                place = chunk.source, chunk.start_at
                if chunk.end_at <= held.to and place not in self._again and not self.stop():
                    begin = self.link.run(partial(start_of_planned, chunk=chunk))
                    found = self._read_chunk(content, reader, begin, end=chunk.end_at)
                    if found is not None:
                        self._again.add(place)
                        yield found
            if held.verdict == "older":
                return
        number = None if held is None else held.source.id
        reading = self._before.of(content, content.name, head.known, number)
        if reading is None:
            return
        if reading.spans:
            start = reading.next()
        elif held is not None and reading.source is not None:
            start = self.link.run(partial(start_of_next, source=held.source, content=content))
        else:
            start = Start(at=0, reads_from=0, first_line=1)
        content.keep(False)
        while not self.stop() and (found := self._read_chunk(content, reader, start)) is not None:
            yield found
            reading.spans.append(found.span)
            start = reading.next()

    def _read_chunk(
        self, content: Content, reader: Reader, start: Start, end: int | None = None
    ) -> ReadChunk | None:
        return read_chunk(content, reader, start, self.options.counter, self.in_force, end=end)

    def _add(self, source: Input, found: ReadChunk) -> Counted:
        counter = self.options.counter
        by_label = Counter({label: keys.total() for label, keys in found.amounts.items()})
        changed = [label for label, amount in by_label.items() if amount]
        self.link.run(
            partial(set_days.refuse, in_force=self.in_force, counter=counter, labels=changed)
        )
        self.by_label.update(by_label)
        self.rejected(tuple(named(source.name, found.rejects)))
        counted = Counted(
            size_bytes=found.span.end - found.span.start,
            lines=found.lines,
            counted=found.counted,
            filtered=found.filtered,
            rejected=found.rejected,
            amount=sum(by_label.values()),
            rejects=len(found.rejects),
        )
        self.watch.add(counted)
        return counted


def _report(source: Input, counted: Counted, outcome: str, detail: str) -> SourceReport:
    counted = counted.for_people()
    return SourceReport(
        source=source.name,
        outcome=outcome,
        detail=detail,
        lines=counted.lines,
        counted=counted.counted,
        filtered=counted.filtered,
        rejected=counted.rejected,
        amount=counted.amount,
    )

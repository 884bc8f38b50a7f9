"""``--dry-run``: reads sources as counting would, with what it would add by day; changes nothing.

What a dry run has read already is kept here, so that what it reads then is known as adding would
know it: the spans of each source, and the lines that it would have counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial

from countersink.backfill.count import chunks, targets
from countersink.backfill.count.chunk_reader import ReadChunk, Start, read_chunk
from countersink.backfill.count.line_marks import SIZE, MarkedLines, scope_of
from countersink.backfill.count.overlap import CountedLines, Lines, Verdict, judge, kept
from countersink.backfill.count.sources import (
    KNOWN_BYTES,
    HeldSource,
    WantedSource,
    alike,
    find,
    may_begin_anew,
    other_recipe,
    too_short,
)
from countersink.backfill.count.task import ProgressWatch, first_minute, minutes_asked
from countersink.backfill.count.transaction import lines_of, start_of_next, start_of_planned
from countersink.backfill.errors import BackfillError
from countersink.backfill.formats import Reader, make_reader, recipe_for
from countersink.backfill.history import RejectedLine
from countersink.backfill.input.content import Content, head_of, open_content, telling
from countersink.backfill.input.files import Input
from countersink.backfill.input.spans import Span, digest
from countersink.backfill.options import (
    STOPPED,
    BackfillOptions,
    BackfillReport,
    Recipe,
    SourceReport,
    repeated,
    report,
    state_of,
)
from countersink.backfill.rejects import RejectsFile, named
from countersink.backfill.run_state import LineCounts
from countersink.store.connection import Session
from countersink.store.counters.policies import Policies
from countersink.store.sessions import PatientSession

RUN = 0
"""The run of what is only tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What a dry run would report of one source.

    Attributes:
        report: for people.
        known_lines: lines of it that are counted already.
    """

    report: SourceReport
    known_lines: int = 0


@dataclass(slots=True)
class Reading:
    """What a dry run has read of a source, behind what is counted of it.

    Attributes:
        source: its number; None: it would be a new one.
        head: how it begins, 4,096 bytes at most.
        path: where.
        spans: what was read, in order.
    """

    source: int | None
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


class ReadBefore:
    """The sources that a dry run has read."""

    def __init__(self) -> None:
        self._readings: list[Reading] = []

    def of(self, content: Content, path: str, head: bytes, source: int | None) -> Reading | None:
        """What was read of a content before, or a new reading; None: it is an older copy.

        Args:
            path: its own.
            head: how it begins.
            source: which one it is in the tables.

        Raises:
            BackfillError: it cannot be told from an older copy.
            Unreadable: as comparing it.
        """
        found = [
            (one, one.compare(content, head))
            for one in self._readings
            if one.source == source and alike(one.head, head)
        ]
        verdicts = [verdict for _, verdict in found]
        if "same" in verdicts:
            reading = found[verdicts.index("same")][0]
            reading.head = max(reading.head, head, key=len)
            return reading
        if "older" in verdicts:
            return None
        if "short" in verdicts:
            raise BackfillError(too_short(found[verdicts.index("short")][0].path))
        if found and source is not None:
            # Another copy of that source went on in another way.
            return self.of(content, path, head, None)
        self._readings.append(Reading(source, head, path))
        return self._readings[-1]


class TriedLines:
    """What a dry run has read so far. Sources that are not in the tables have negative numbers."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self._rows: list[chunks.MarkedRow] = []
        self._marks: dict[tuple[int, int, int], bytes] = {}
        self._samples: dict[bytes, int] = {}

    def add(self, lines: Lines, verdict: Verdict, end_at: int) -> None:
        """Add a chunk."""
        rows, samples = kept(lines, verdict, end_at=end_at, run=RUN)
        for row, marks in rows:
            self._rows.append(row)
            self._marks[row.source, row.start_at, row.piece] = marks
        self._samples.update(dict.fromkeys(samples, lines.source))

    def pieces(self) -> list[MarkedLines]:
        """All of it."""
        ordered = sorted(self._rows, key=lambda row: (row.source, row.start_at, row.piece))
        return chunks.put_together(ordered)

    def marks(self, piece: MarkedLines) -> bytes | None:
        """The marks of a piece; None: it is none of these."""
        parts = [self._marks.get(part[:3]) for part in piece.parts]
        rows = {(row.source, row.start_at, row.piece): row for row in self._rows}
        found = b""
        for number, (part, own) in enumerate(zip(piece.parts, parts, strict=True)):
            if own is None:
                return None
            cut = number and rows[part[:3]].goes_on
            found = (found[:-SIZE] if cut else found) + own
        return found

    def owners(self, samples: Iterable[bytes]) -> dict[bytes, int]:
        """Samples that were read → the source."""
        return {one: self._samples[one] for one in samples if one in self._samples}


class _CountedOrTried(CountedLines):
    """The lines that were counted, and those that a dry run would have counted."""

    def __init__(self, session: Session, scope: bytes, tried: TriedLines) -> None:
        super().__init__(session, scope)
        self._tried = tried

    def pieces(self, first: int, last: int) -> list[MarkedLines]:
        return super().pieces(first, last) + self._tried.pieces()

    def marks(self, piece: MarkedLines) -> bytes:
        found = self._tried.marks(piece)
        return super().marks(piece) if found is None else found

    def owners(self, samples: Iterable[bytes]) -> dict[bytes, int]:
        wanted = list(samples)
        return super().owners(wanted) | self._tried.owners(wanted)

    def still_counts(self, run: int) -> bool:
        return run == RUN or super().still_counts(run)

    def about(self, source: int) -> tuple[str, Recipe | None]:
        if source in self._tried.paths:
            return self._tried.paths[source], None
        return super().about(source)


@dataclass(slots=True, kw_only=True)
class DryRun:
    """Reads sources as counting would, and adds up what would be counted.

    Attributes:
        options: as asked.
        link: the connection; only read.
        in_force: the policies.
        minutes: those of the days that are asked for; None: all.
        begins: the first minute of a day of the counter.
        watch: says how far it is.
        stop: true once it should end.
        rejected: is given the rejected lines.
        by_label: what would be added to each bucket.
    """

    options: BackfillOptions
    link: PatientSession
    in_force: Policies
    minutes: tuple[int, int] | None
    begins: Callable[[date], int]
    watch: ProgressWatch
    stop: Callable[[], bool]
    rejected: Callable[[Sequence[RejectedLine]], object]
    by_label: Counter[int] = field(default_factory=Counter)
    _before: ReadBefore = field(default_factory=ReadBefore)
    _again: set[tuple[int, int]] = field(default_factory=set)
    _tried: TriedLines = field(default_factory=TriedLines)
    _left_out: Counter[str] = field(default_factory=Counter)
    _recipe: Recipe = field(default_factory=Recipe)

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
        counted = LineCounts()
        self._left_out = Counter()
        try:
            with open_content(source, self.stop) as content:
                self.watch.begin(source, content)
                try:
                    content.keep(True)
                    head = head_of(content)
                    if not head:
                        return Tried(report=counted.report(source.name, "empty", "it is empty"))
                    first = telling(content, head)
                    recipe = self._recipe = recipe_for(self.options.recipe, first)
                    found = self._find(source, content, head, recipe)
                    reader = make_reader(
                        recipe, head, self.minutes, self.begins, self.options.counter
                    )
                    reader.look_back(content.read_at, 0 if found is None else found.to)
                    for chunk in self._chunks(content, reader, head, found):
                        counted += self._add(source, chunk)
                finally:
                    self.watch.finish()
        except BackfillError as error:
            return Tried(report=counted.report(source.name, "failed", str(error)))
        known = 0
        if found is not None:
            _, others = self.link.run(partial(chunks.figures, source=found.source.id, run=0))
            known = others.lines
        left_out = self._left_out
        new = counted.lines or (counted.size_bytes and not left_out)
        detail = repeated(left_out, known) if left_out else ""
        outcome = "counted" if new else "known"
        if counted.rejected and not (counted.counted or counted.filtered):
            outcome = "rejected"
        report = counted.report(source.name, outcome, detail)
        return Tried(report=report, known_lines=known + left_out.total())

    def _find(
        self, source: Input, content: Content, head: bytes, recipe: Recipe
    ) -> HeldSource | None:
        """The source that a content is, if it is known."""
        options = self.options
        wanted = WantedSource(
            counter=options.counter,
            truth_of=0,
            name=options.name,
            recipe=recipe,
            path=source.name,
            head=head[:KNOWN_BYTES],
        )
        found = self.link.run(
            partial(find, content=content, wanted=wanted, looking=self.watch.look)
        )
        held = found.held
        if held is not None and held.source.recipe != recipe:
            if not self.link.run(partial(may_begin_anew, source=held.source)):
                raise BackfillError(
                    self.link.run(partial(other_recipe, source=held.source, recipe=recipe))
                )
            held = None
        return held

    def _chunks(
        self, content: Content, reader: Reader, head: bytes, held: HeldSource | None
    ) -> Iterator[ReadChunk]:
        """What would be counted of a content."""
        if held is not None:
            waiting = self.link.run(partial(chunks.to_be_counted, source=held.source.id))
            for chunk in waiting:
                place = chunk.source, chunk.start_at
                if chunk.end_at <= held.to and place not in self._again and not self.stop():
                    begin = self.link.run(partial(start_of_planned, chunk=chunk))
                    found = self._read_chunk(
                        content, reader, begin, held.source.id, end=chunk.end_at
                    )
                    if found is not None:
                        self._again.add(place)
                        yield found
            if held.verdict == "older":
                return
        number = None if held is None else held.source.id
        reading = self._before.of(content, content.name, head[:KNOWN_BYTES], number)
        if reading is None:
            return
        if reading.spans:
            start = reading.next()
        elif held is not None and reading.source is not None:
            start = self.link.run(partial(start_of_next, source=held.source, content=content))
        else:
            start = Start(at=0, reads_from=0, first_line=1)
        content.keep(False)
        number = self._number(reading)
        while not self.stop():
            found = self._read_chunk(content, reader, start, number)
            if found is None:
                return
            yield found
            reading.spans.append(found.span)
            start = reading.next()

    def _number(self, reading: Reading) -> int:
        """The number of a source, negative if it is none in the tables yet."""
        if reading.source is not None:
            return reading.source
        for number, path in self._tried.paths.items():
            if path == reading.path:
                return number
        number = -1 - len(self._tried.paths)
        self._tried.paths[number] = reading.path
        return number

    def _read_chunk(
        self,
        content: Content,
        reader: Reader,
        start: Start,
        source: int,
        end: int | None = None,
    ) -> ReadChunk | None:
        """A chunk without what another source has."""
        options = self.options
        scope = scope_of(options.counter, 0, options.name)
        read = partial(read_chunk, content, reader, start, options.counter, self.in_force, end=end)
        found = read(scope=scope)
        if found is None:
            return None
        lines = lines_of(source, found)
        verdict = Verdict()
        if not options.count_repeats:
            verdict = self.link.run(
                lambda session: judge(
                    lines, _CountedOrTried(session, scope, self._tried), self._recipe, RUN
                )
            )
        self._tried.add(lines, verdict, found.span.end)
        if not verdict.left_out:
            return found
        for (of_source, _, _), size in verdict.of.items():
            self._left_out[self.link.run(partial(self._path, source=of_source))] += size
        return read(left_out=verdict.left_out)

    def _path(self, session: Session, source: int) -> str:
        return _CountedOrTried(session, b"", self._tried).about(source)[0]

    def _add(self, source: Input, found: ReadChunk) -> LineCounts:
        counter = self.options.counter
        by_label = Counter({label: keys.total() for label, keys in found.amounts.items()})
        changed = [label for label, amount in by_label.items() if amount]
        self.link.run(
            partial(
                targets.refuse_set_days, in_force=self.in_force, counter=counter, labels=changed
            )
        )
        self.by_label.update(by_label)
        self.rejected(tuple(named(source.name, found.rejects)))
        counted = LineCounts(
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


def add(
    options: BackfillOptions,
    found: Sequence[Input],
    failed: Sequence[SourceReport],
    link: PatientSession,
    in_force: Policies,
    watch: ProgressWatch,
    stop: Callable[[], bool],
) -> BackfillReport:
    """What adding these sources would do; rejected lines are written only if a file is named.

    Raises:
        StoreError: MySQL did not do its part.
    """
    with RejectsFile(options.rejects, "name another file") as rejects:
        trial = DryRun(
            options=options,
            link=link,
            in_force=in_force,
            minutes=minutes_asked(options.recipe, options.counter, in_force),
            begins=partial(first_minute, in_force, options.counter),
            watch=watch,
            stop=stop,
            rejected=rejects.write,
        )
        sources = list(failed)
        known_lines = 0
        too_many = False
        for source in found:
            tried = trial.source(source)
            sources.append(tried.report)
            known_lines += tried.known_lines
            so_far = sum(each.rejected for each in sources)
            too_many = so_far > options.rejects_allowed
            if stop() or too_many:
                break
    notices = ["nothing was changed: this was a dry run"]
    if too_many:
        most = options.rejects_allowed
        notices.append(f"more than {most:,} lines are rejected: it would stop there")
    elif stop():
        notices.append(STOPPED)
    notices += rejects.notices()
    return report(
        options,
        None,
        state_of(sources, stopped=stop() or too_many),
        sources,
        known_lines=known_lines,
        by_day=trial.by_day(),
        notices=notices,
    )

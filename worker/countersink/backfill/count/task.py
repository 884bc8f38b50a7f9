"""What the chunks of a run share: ``Work``, ``--rate`` (pauses between chunks), what is
told of progress, and refusals of tracked counters and, in strict mode, unknown ones."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Final

from countersink.backfill.content import Content, Input, head_of, open_content
from countersink.backfill.count import targets
from countersink.backfill.count.reader_pool import ReaderPool
from countersink.backfill.count.sources import KNOWN_BYTES, Source, Sources
from countersink.backfill.count.targets import CounterTarget, Target
from countersink.backfill.errors import BackfillError, WrongOption
from countersink.backfill.formats import Reader, check_head, make_reader, recipe_for
from countersink.backfill.history import LineCounts, printable
from countersink.backfill.options import BackfillOptions, Progress, Recipe
from countersink.backfill.rejects import RejectsFile
from countersink.backfill.spans import LINES
from countersink.counting.apply.control import read_control
from countersink.counting.counters.all_counters import known_names
from countersink.counting.counters.buckets import MAX_MINUTE
from countersink.counting.counters.catalog import Catalog, Scheme, load
from countersink.counting.visitors import kept
from countersink.database.session import Session
from countersink.database.sessions import KeptSession
from countersink.runtime.members import Salt
from countersink.runtime.pace import pause

NO_RUN: Final = -1
"""The run of what is only tried: no row of a table has this number."""
FEWEST: Final = 1_000
"""Lines of a chunk, however slow it is to go."""


def refuse(session: Session, catalog: Catalog, counter: str) -> None:
    """Check that a backfill may count a counter.

    Raises:
        WrongOption: it is that of a tracked table.
        BackfillError: it is, in strict mode, one that nobody has made.
    """
    if counter in catalog.tracked:
        raise WrongOption(
            f"{counter!r} is the row count of a tracked table, and only its triggers count it:"
            f" count under another name, or `countersink untrack {counter}` first"
        )
    if catalog.strict and counter not in catalog.known:
        if not known_names(session, [counter]):
            raise BackfillError(
                f"no counter is called {counter!r}, and only known ones are counted here:"
                f" `countersink counter set {counter}` makes it"
            )
        catalog.known.add(counter)


def require_unique(catalog: Catalog, counter: str) -> None:
    """Check that a counter counts its different visitors.

    Raises:
        BackfillError: it does not.
    """
    if counter not in catalog.salt_days:
        raise BackfillError(
            f"{counter} does not count different visitors: `countersink counter set {counter}"
            " --unique` first, or leave out --visitor"
        )


def salts_of(session: Session, recipe: Recipe, counter: str) -> tuple[Salt, ...] | None:
    """The salts for the visitors of a counter, read after the catalog by which it is counted, as
    their periods change with it; None: the recipe has no visitors.
    """
    return tuple(kept(session).get(counter, ())) if recipe.visitor else None


class LineRate:
    """Pauses between chunks.

    Args:
        rate: lines per second at most; None: no pauses.
        stop: true: pause no longer.

    Attributes:
        max_lines: how many lines a chunk is to have, so that the pauses are about a second.
    """

    def __init__(self, rate: float | None, stop: Callable[[], bool]) -> None:
        self._rate = math.inf if rate is None else rate
        self._stop = stop
        self._ready = 0.0
        self.max_lines = int(min(LINES, max(FEWEST, self._rate)))

    def note(self, lines: int) -> None:
        """So many lines were counted since the last pause."""
        self._ready += lines / self._rate

    def wait(self) -> None:
        """Wait as long as it takes that those that were counted are no more than may be: before
        the next chunk, so that nothing is waited for after the last.
        """
        pause(self._ready - time.monotonic(), self._stop)
        self._ready = max(self._ready, time.monotonic())


class ProgressWatch:
    """Knows how far the sources are read, and says so.

    Args:
        on_progress: told.
        sources: all that are read.

    Attributes:
        jobs: child processes at work.
    """

    def __init__(self, on_progress: Callable[[Progress], object], sources: Sequence[Input]) -> None:
        self._on_progress = on_progress
        sizes = [source.size for source in sources]
        self._size = None if None in sizes else sum(size or 0 for size in sizes)
        self._before = 0
        self._source = ""
        self._content: Content | None = None
        self._counted = LineCounts()
        self.jobs = 0

    def begin(self, source: Input, content: Content) -> None:
        """A source is opened."""
        self._source, self._content = source.name, content
        self.say()

    def add(self, counted: LineCounts) -> None:
        """Some of it is counted."""
        self._counted += counted
        self.say()

    def say(self) -> None:
        """Say how far it is."""
        progress = Progress(
            doing="reading",
            source=self._source,
            done=self._before + (0 if self._content is None else self._content.position),
            size=self._size,
            lines=self._counted.lines,
            counted=self._counted.counted,
            filtered=self._counted.filtered,
            rejected=self._counted.rejected,
            jobs=self.jobs,
        )
        self._on_progress(progress)

    def finish(self, source: Input, content: Content) -> None:
        """The source is done with."""
        self._before += source.size or content.position
        self._content = None
        self.say()


@dataclass(slots=True, kw_only=True)
class Work:
    """Parts of a running backfill: database, options, connection, target, pace, progress.

    Attributes:
        mysql_url: the database.
        options: as asked.
        link: the connection.
        catalog: as it was when it was last looked at.
        run: its number.
        target: where amounts go.
        sources: which sources are known.
        pool: reads chunks.
        rejects: where rejected lines go.
        pace: how fast to go.
        watch: says how far it is.
        stop: true once it should end.
    """

    mysql_url: str = field(repr=False)
    options: BackfillOptions
    link: KeptSession
    catalog: Catalog = field(repr=False)
    run: int = NO_RUN
    target: Target = field(default_factory=CounterTarget)
    sources: Sources
    pool: ReaderPool
    rejects: RejectsFile
    pace: LineRate
    watch: ProgressWatch
    stop: Callable[[], bool]

    @property
    def counter(self) -> str:
        """Which is counted."""
        return self.options.counter

    @property
    def scheme(self) -> Scheme:
        """How lines go into buckets, as the catalog has it and the target wants it."""
        return self.target.scheme(self.catalog.of(self.counter))

    def locked_catalog(self, session: Session) -> Catalog:
        """The catalog; it stays so until the transaction ends.

        Raises:
            BackfillError: the counter may not be counted by a backfill.
        """
        control = read_control(session)
        if self.catalog.version != control.catalog_version:
            self.catalog = load(session)
        refuse(session, self.catalog, self.counter)
        if self.target.truth_of:
            targets.refuse_breakdowns(session, self.counter)
        return self.catalog


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A source at hand.

    Attributes:
        content: its bytes.
        head: how they begin.
        wanted: what it is to be.
        reader: reads its lines.
        leave_open: a last line without a newline is to be left, as more of it may be written.
    """

    content: Content
    head: bytes
    wanted: Source
    reader: Reader
    leave_open: bool


@contextmanager
def opened(work: Work, source: Input) -> Iterator[OpenSource | None]:
    """Open a source; None: it is empty.

    Raises:
        BackfillError: it cannot be read, or not so.
    """
    options = work.options
    with open_content(source, work.stop) as content:
        work.watch.begin(source, content)
        try:
            head = head_of(content)
            if not head:
                yield None
                return
            recipe = recipe_for(options.recipe, head)
            wanted = Source(
                id=0,
                counter=options.counter,
                truth_of=work.target.truth_of,
                name=options.name,
                recipe=recipe,
                path=source.name if source.path is None else printable(str(source.path)),
                head=head[:KNOWN_BYTES],
                count_repeats=options.count_repeats,
            )
            own = work.catalog.of(options.counter)
            reader = reader_of(recipe, options.counter, own, head)
            check_head(recipe, reader, head)
            # Exports are written once, and often without a last newline.
            is_log = recipe.input_format not in ("csv", "ndjson")
            leave_open = is_log and options.mode == "add" and content.may_grow
            yield OpenSource(content, head, wanted, reader, leave_open)
        finally:
            work.watch.finish(source, content)


def reader_of(recipe: Recipe, counter: str, scheme: Scheme, head: bytes) -> Reader:
    """What reads a source of a counter, whose days are those of its own time zone.

    Args:
        recipe: how.
        counter: whose lines count.
        scheme: of it.
        head: how the content begins.

    Raises:
        BackfillError: the source cannot be read so.
        UnknownZone: a time zone is unknown on this machine.
    """
    begins = scheme.first_minute
    first, until = 0, MAX_MINUTE + 1
    if recipe.start is not None:
        first = begins(recipe.start)
    if recipe.end is not None and recipe.end < date.max:
        until = begins(recipe.end + timedelta(days=1))
    within_days = recipe.start is not None or recipe.end is not None
    minutes = (first, max(first, until)) if within_days else None
    return make_reader(recipe, head, minutes, begins, counter)

"""``Work``, the state that all chunks of a running backfill share. Further parts of this module
make the pauses for ``--rate``, report progress, open sources, and check the counter."""

import math
import shlex
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
from countersink.backfill.formats import Reader, check_head, make_reader, recipe_for, unnamed_amount
from countersink.backfill.history import LineCounts, printable
from countersink.backfill.options import BackfillOptions, Progress, Recipe
from countersink.backfill.rejects import RejectsFile
from countersink.backfill.spans import LINES
from countersink.counting.apply.guards import read_control
from countersink.counting.counters.all_counters import known_names
from countersink.counting.counters.buckets import MAX_MINUTE
from countersink.counting.counters.catalog import Catalog, Scheme, load
from countersink.counting.visitors import kept
from countersink.database.session import Session
from countersink.database.sessions import KeptSession
from countersink.runtime.members import Salt
from countersink.runtime.retry import pause

NO_RUN: Final = -1
"""Number of the run in chunks of a dry run. No row of a table has it."""
MIN_LINES: Final = 1_000
"""Least value of ``LineRate.max_lines``, however low the rate is."""


def refuse_counter(session: Session, catalog: Catalog, counter: str) -> None:
    """Check that a backfill may count a counter.

    Raises:
        WrongOption: it is the row count of a tracked table, which only triggers may count.
        BackfillError: strict mode is on, in which counters must be created before they are counted,
            and the counter does not exist.
    """
    if counter in catalog.tracked:
        raise WrongOption(
            f"{counter!r} is the row count of a tracked table, and only its triggers count it:"
            f" count under another name, or `countersink untrack {counter}` first"
        )
    if catalog.strict and counter not in catalog.known:
        if not known_names(session, [counter]):
            raise BackfillError(
                f"there is no counter {counter!r}, and in strict mode only known counters are"
                f" counted: `countersink counter set {counter}` creates it"
            )
        catalog.known.add(counter)


def require_unique(catalog: Catalog, counter: str) -> None:
    """Check that a counter counts its different visitors.

    Raises:
        BackfillError: it does not count them.
    """
    if counter not in catalog.salt_days:
        raise BackfillError(
            f"{counter} does not count different visitors: `countersink counter set {counter}"
            " --unique` first, or leave out --visitor"
        )


def salts_of(session: Session, recipe: Recipe, counter: str) -> tuple[Salt, ...] | None:
    """Return the counter's salts that are not deleted, for hashes of its visitors; empty if there
    are none. Return None if the recipe has no visitors. Call this after the catalog was read: a
    change of the catalog can also change the period in which a salt is used.
    """
    return tuple(kept(session).get(counter, ())) if recipe.visitor else None


class LineRate:
    """Pauses between chunks, which keep the lines per second below ``--rate``.

    Args:
        rate: maximum of lines per second; None to make no pauses.
        stop: called during a pause; the pause ends early once it returns true.

    Attributes:
        max_lines: maximum of lines in a chunk: what the rate allows in a second, so that pauses are
            short, but at least :data:`MIN_LINES` and at most ``LINES``; ``LINES`` without a rate.
    """

    def __init__(self, rate: float | None, stop: Callable[[], bool]) -> None:
        self._rate = math.inf if rate is None else rate
        self._stop = stop
        self._ready = 0.0
        self.max_lines = int(min(LINES, max(MIN_LINES, self._rate)))

    def note(self, lines: int) -> None:
        """Record that ``lines`` more lines were read, also lines that were left out or rejected.
        With a rate, the next :meth:`wait` is longer."""
        self._ready += lines / self._rate

    def wait(self) -> None:
        """Wait until the rate allows the next chunk, or ``stop`` returns true. Call it before each
        chunk, so that there is no pause after the last chunk.
        """
        if (seconds := self._ready - time.monotonic()) > 0:
            pause(seconds, self._stop)
        self._ready = max(self._ready, time.monotonic())


class ProgressWatch:
    """Progress of reading the sources, reported to a function.

    Args:
        on_progress: called with the current progress, at each report.
        sources: all sources of the run. Their sizes give the total, which is unknown if one of them
            is a pipe or standard input.

    Attributes:
        jobs: number of child processes that are working, as set by ``ReadAhead``.
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
        """Record that a source was opened, and report the progress. From now on, reports include
        the position in ``content``."""
        self._source, self._content = source.name, content
        self.report()

    def add(self, counted: LineCounts) -> None:
        """Add the sums of a counted chunk, and report the progress."""
        self._counted += counted
        self.report()

    def report(self) -> None:
        """Call ``on_progress`` with the current progress."""
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
        """Record that a source is closed, and report the progress."""
        self._before += source.size or content.position
        self._content = None
        self.report()


@dataclass(slots=True, kw_only=True)
class Work:
    """The state that all chunks of a running backfill share.

    Attributes:
        mysql_url: URL of the database.
        options: options of the run.
        link: the session with the database, opened again if it is lost.
        catalog: the catalog as it was last read; :meth:`locked_catalog` replaces it.
        run: number of the run; :data:`NO_RUN` before it begins, and in a dry run.
        target: where the amounts of chunks are added: the counter, or the sums of a reconcile.
        sources: access to the known sources; in a dry run the ``Trial``.
        pool: the thread and child processes that read chunks.
        rejects: the file of rejected lines.
        pace: pauses for ``--rate``.
        watch: reports the progress.
        stop: returns true once the run should end.
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
        """Name of the counter."""
        return self.options.counter

    @property
    def scheme(self) -> Scheme:
        """The scheme by which lines are counted: that of the counter; for a reconcile, with the
        resolution that the counter had when the run began.
        """
        return self.target.scheme(self.catalog.scheme(self.counter))

    def locked_catalog(self, session: Session) -> Catalog:
        """Take the share lock of the control row, so that the settings of counters do not change
        until the transaction ends, and return :attr:`catalog`. If the version in the control row is
        another one than the catalog's, the catalog is first read again, as a new object. So a
        caller can tell that a chunk was read by an old catalog.

        Raises:
            BackfillError: a backfill may not count the counter; or a reconcile may not, since the
                counter has breakdowns.
        """
        control = read_control(session)
        if self.catalog.version != control.catalog_version:
            self.catalog = load(session)
        refuse_counter(session, self.catalog, self.counter)
        if self.target.truth_of:
            targets.refuse_breakdowns(session, self.counter)
        return self.catalog


@dataclass(frozen=True, slots=True)
class OpenSource:
    """An opened source.

    Attributes:
        content: its bytes.
        head: the first 64 KiB of its bytes.
        wanted: the row of ``backfill_source`` to insert, unless the content belongs to a known
            source; it has the recipe by which this run reads the lines.
        reader: reader of its lines.
        leave_open: True to leave out a last line without a newline: its end may not be written yet.
    """

    content: Content
    head: bytes
    wanted: Source
    reader: Reader
    leave_open: bool


@contextmanager
def open_source(work: Work, source: Input) -> Iterator[OpenSource | None]:
    """Open a source, detect its format, and check its first lines. A context manager; it gives None
    if the source is empty. ``work.watch`` reports the opening and the closing.

    Raises:
        BackfillError: the source cannot be read, or the options of the run do not fit it.
        UnknownZone: a time zone is unknown on this machine.
    """
    options = work.options
    with open_content(source, work.stop) as content:
        work.watch.begin(source, content)
        try:
            head = head_of(content)
            if not head:
                yield None
                return
            recipe = recipe_for(options.recipe, head, source.name)
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
            scheme = work.catalog.scheme(options.counter)
            reader = reader_of(recipe, options.counter, scheme, head)
            check_head(recipe, reader, head)
            if not options.count_lines and (column := unnamed_amount(recipe, head)):
                raise BackfillError(
                    f"it has a column {column!r}: add up its amounts by --amount-column"
                    f" {shlex.quote(column)}, or count each line as 1 by --count-lines"
                )
            # Exports are written once, and often without a last newline.
            is_log = recipe.input_format not in ("csv", "ndjson")
            leave_open = is_log and options.mode == "add" and content.may_grow
            yield OpenSource(content, head, wanted, reader, leave_open)
        finally:
            work.watch.finish(source, content)


def reader_of(recipe: Recipe, counter: str, scheme: Scheme, head: bytes) -> Reader:
    """Return the reader of a source. It leaves out lines that are outside the recipe's days in the
    counter's time zone.

    Args:
        recipe: options by which the source is read.
        counter: name of the counter. If the recipe has a counter column, only lines with this name
            count; otherwise all lines do.
        scheme: scheme of the counter.
        head: the first 64 KiB of the source.

    Raises:
        BackfillError: the source cannot be read by this recipe.
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

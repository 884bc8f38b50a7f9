"""Days of a reconcile: ``choose`` selects the days from ``--from`` to ``--to`` that can be set, and
makes notices about the others. ``DayBuckets`` finds all buckets of a day, whatever their widths."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import Final

from countersink.backfill.content import Input
from countersink.backfill.count import targets
from countersink.backfill.count.task import Work, open_source, reader_of
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import BackfillOptions, Progress
from countersink.backfill.spans import SpanReader, block_of
from countersink.counting.apply import key_caps
from countersink.counting.apply.key_caps import OVERFLOW
from countersink.counting.counters.all_counters import refuse_tracked
from countersink.counting.counters.buckets import (
    FINER,
    MINUTES,
    NUMBER,
    ONE_DAY,
    Resolution,
    Width,
    date_at,
    days,
    intervals,
)
from countersink.counting.counters.catalog import Scheme, load_scheme
from countersink.database.session import Session
from countersink.database.sql import datetime_of, day_label, labels_where
from countersink.logs.formats.reader import RecordTally

MOST_DAYS: Final = 40_000
"""Maximum number of days of a run, more than a century. There is a maximum because workers keep the
marks of days in memory."""
_BYTES: Final = 64 * 1024
_END: Final = 2**62


@dataclass(frozen=True, slots=True)
class DayBuckets:
    """The buckets of a counter's days, of all widths, which a reconcile sets.

    Attributes:
        counter: name of the counter.
        scheme: current scheme of the counter.
        resolution: width of the buckets in which the run sums up its sources.
    """

    counter: str
    scheme: Scheme
    resolution: Resolution

    @classmethod
    def read(
        cls, session: Session, counter: str, resolution: Resolution, *, lock: str = ""
    ) -> "DayBuckets":
        """Read the scheme of a counter, and return its :class:`DayBuckets`.

        Args:
            session: session, in a transaction if ``lock`` is given.
            counter: name of the counter.
            resolution: see the attribute.
            lock: SQL clause that locks the scheme until the transaction ends; '' to lock nothing.
        """
        return cls(counter, load_scheme(session, counter, lock), resolution)

    @property
    def widths(self) -> tuple[Width, ...]:
        """The widths of buckets that a day may have, without ``month``: a day that is rolled up
        to its month cannot be set."""
        return tuple(sorted({*self.scheme.widths, self.resolution} - {"month"}))

    def labels(self, day: date) -> tuple[int, ...]:
        """Return the labels of all buckets, of all ``widths``, that lie wholly within a day. A
        label is a number for a bucket's beginning and width.
        """
        return _labels(self.scheme.known_zone(), self.widths, day)

    def intervals(self, day: date) -> Sequence[tuple[int | None, int | None]]:
        """Return a day as intervals (begin, end) in Unix seconds, where None means that the day is
        open on that side. This is one interval; but none if the counter's time zone skipped the
        date, and two if the zone repeated it.
        """
        return intervals(self.scheme.known_zone(), day, day)

    def left_out(self, session: Session, day: date) -> str:
        """Return the reason, for users, why a past day cannot be set, or '' if it can be set. It
        cannot be set if it is rolled up to months, or is about to be. Neither can it be set if a
        bucket of the width ``resolution``, or another bucket that has rows, lies partly in another
        day.

        Args:
            session: session for reading the rows of buckets that lie partly in the day.
            day: a day that exists in the counter's time zone.
        """
        rolled_to = self.scheme.rolled_to("month")
        edges = {edge for pair in self.intervals(day) for edge in pair if edge is not None}
        if rolled_to is not None and min(edges) < rolled_to:
            return "rolled up to months"
        across = {
            self.scheme.label_in(width, edge // 60): width
            for width in set(FINER).intersection(self.widths)
            for edge in edges
            if edge % (MINUTES[width] * 60)
        }
        if not across:
            return ""
        where, args = labels_where(across)
        ask = f"SELECT 1 FROM counter_slot WHERE counter = %s AND {where} LIMIT 1"
        if self.resolution in across.values() or session.query(ask, (self.counter, *args)):
            return "a bucket is partly in another day"
        return ""


@lru_cache(maxsize=16)
def _labels(zone: str, widths: Sequence[Width], day: date) -> tuple[int, ...]:
    found = [day_label(day)] if "day" in widths else []
    for width in FINER:
        if width in widths:
            step = MINUTES[width] * 60
            for begin, end in intervals(zone, day, day):
                if begin is not None and end is not None:
                    starts = range(-(-begin // step) * step, end - step + 1, step)
                    found += [start + NUMBER[width] for start in starts]
    return tuple(found)


def each_day(some: Sequence[date], on_progress: Callable[[Progress], object]) -> Iterator[date]:
    """Iterate over days, and report the progress before each day."""
    for number, day in enumerate(some):
        on_progress(Progress(doing="correcting", source=str(day), done=number, size=len(some)))
        yield day


def check_days(work: Work, found: Iterable[Input]) -> None:
    """Check that the options give the first and the last day, and not too many days. Call it before
    the sources are counted.

    Args:
        work: what all steps of the run share.
        found: the sources; if a day is missing, the error names the times of their lines.

    Raises:
        BackfillError: the first or the last day is missing, or there are too many days.
    """
    start, end = work.options.recipe.start, work.options.recipe.end
    if start is None or end is None:
        raise BackfillError(
            "a reconcile sets whole days: give the first and the last day by --from and --to"
            f"{_covered_text(work, found)}"
        )
    if (number := (end - start).days + 1) > MOST_DAYS:
        raise BackfillError(
            f"--from and --to cover {number:,} days, more than the {MOST_DAYS:,} of one run:"
            " reconcile fewer days at a time"
        )


def choose(
    session: Session, buckets: DayBuckets, options: BackfillOptions, t0: int
) -> tuple[list[date], list[str]]:
    """Return the days from ``--from`` to ``--to`` that can be set, and notices about the other
    days. Call it once all sources have been read.

    A day is left out if it had not ended ``grace_s`` seconds before ``t0``, because its increments
    could still arrive. A day is also left out if :meth:`DayBuckets.left_out` gives a reason: it is
    rolled up to months, or a bucket lies partly in another day. Dates that the counter's time zone
    skipped are left out without a notice.

    Args:
        session: session, in or outside a transaction.
        buckets: buckets of the counter's days.
        options: options of the run.
        t0: time at which the reconcile began, Unix ms, from
            :func:`countersink.backfill.reconcile.begin`.

    Raises:
        TrackedCounter: the counter is the row count of a tracked table.
        BackfillError: it has breakdowns; or, without ``delete_missing``, some days have counts in
            the overflow key.
    """
    refuse_tracked(session, options.counter)
    targets.refuse_breakdowns(session, options.counter)
    start, end = options.recipe.start, options.recipe.end
    assert start is not None  # see check_days
    assert end is not None
    chosen: list[date] = []
    skipped: dict[str, list[date]] = {}
    for day in filter(buckets.intervals, days(start, end)):
        over = buckets.intervals(day)[-1][1]
        if over is None or over * 1000 + options.grace_s * 1000 > t0:
            why = f"not over for {options.grace_s:g} s when this run began"
        else:
            why = buckets.left_out(session, day)
        (skipped.setdefault(why, []) if why else chosen).append(day)
    if not options.delete_missing:
        _refuse_overflown(session, buckets, chosen)
    return chosen, left_out(skipped)


def truth_days(session: Session, run: int, chosen: Iterable[date]) -> list[date]:
    """Return the chosen days that may have sums of the run's sources, so that :func:`correct` can
    skip the others: these surely have none.
    """
    # A loose index scan: reads only the first row of each bucket.
    found = session.query(
        "SELECT DISTINCT DATE(bucket) FROM (SELECT DISTINCT run, bucket FROM backfill_correction"
        " WHERE run = %s) AS buckets",
        (run,),
    )
    # Dates are in UTC: a local day also has hours of the UTC day before or after.
    near = {day + number * ONE_DAY for (day,) in found for number in (-1, 0, 1)}
    return [day for day in chosen if day in near]


def left_out(skipped: Mapping[str, Iterable[date]]) -> list[str]:
    """Return a notice for each reason why days are left out. ``skipped`` has the days of each
    reason.
    """
    return [f"left out ({why}): {targets.days_text(some)}" for why, some in skipped.items()]


def _refuse_overflown(session: Session, buckets: DayBuckets, chosen: Iterable[date]) -> None:
    """Check that no day has counts in the overflow key, which takes the counts of further keys when
    a counter has its maximum of keys. The sources have these counts under their own keys, so they
    would be counted twice.

    Raises:
        BackfillError: some days have counts in the overflow key.
    """
    counter = buckets.counter
    held = {buckets.scheme.local_day(at) for _, at in key_caps.overflown(session, [counter])}
    if some := held.intersection(chosen):
        raise BackfillError(
            f"{counter} exceeded its maximum of keys on {targets.days_text(some)}: the sources have"
            f" the counts of the key {OVERFLOW} under other keys, so they would be counted twice."
            f" If the sources have all events of these days, --delete-missing sets {OVERFLOW} to 0;"
            " else leave the days out, by --from and --to"
        )


def _covered_text(work: Work, found: Iterable[Input]) -> str:
    """Return text for users: the earliest and the latest time in the first and last lines of the
    sources, and the whole days between; '' if no time is known.

    Args:
        work: what all steps of the run share.
        found: the sources; pipes and sources that cannot be read are skipped.
    """
    minutes = set[int]()
    for source in found:
        with contextlib.suppress(BackfillError):
            if source.size is not None:
                minutes |= _minutes(work, source)
    if not minutes:
        return ""
    zone = work.catalog.scheme(work.options.counter).known_zone()
    first, last = min(minutes), max(minutes)
    after = date_at(zone, first * 60 - 60) + ONE_DAY
    before = date_at(zone, last * 60 + 60) - ONE_DAY
    whole_days = targets.days_text(days(after, before)) if after <= before else "none"
    return (
        f"; these sources have lines from {datetime_of(first * 60):%Y-%m-%d %H:%M} to"
        f" {datetime_of(last * 60):%Y-%m-%d %H:%M} UTC, and the whole days between are {whole_days}"
        f" ({zone})"
    )


def _minutes(work: Work, source: Input) -> set[int]:
    """Return the Unix minutes of the lines in the first and the last 64 KiB of a source; none if it
    is empty. Lines that the recipe leaves out are included; lines that would be rejected are not.

    Raises:
        BackfillError: the source cannot be read.
    """
    tally = RecordTally()
    with open_source(work, source) as opened:
        if opened is None:
            return set()
        content, counter = opened.content, work.options.counter
        recipe = opened.wanted.recipe
        every = replace(recipe, where=(), exclude_keys=(), counter_column="", start=None, end=None)
        reader = reader_of(every, counter, work.catalog.scheme(counter), opened.head)
        content.seek(_END)
        start = max(0, content.offset - _BYTES)
        whole_line = start + content.read_at(_BYTES, start).find(b"\n") + 1 if start else 0
        for offset in sorted({0, whole_line}):
            reader.look_back(content.read_at, offset)
            # Line numbers do not matter here, but must be greater than those of directives before.
            spans = SpanReader(content, offset, offset + 1, quoted=reader.quoted, max_bytes=_BYTES)
            for piece in spans.pieces():
                reader.count(block_of(piece, reader.quoted), tally)
    return set(tally.amounts)

"""Which days a reconcile sets: those asked for that are over, at most ``MOST_DAYS``, and all
buckets that lie in them, of whatever width; the notices about days left out, and the error where no
days are given."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import Final

from countersink.backfill.content import Input
from countersink.backfill.count import targets
from countersink.backfill.count.task import Work, opened, reader_of
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import BackfillOptions, Progress
from countersink.backfill.spans import SpanReader, window_of
from countersink.counting.apply import key_caps
from countersink.counting.apply.key_caps import OVERFLOW
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
"""More than a hundred years; workers keep their marks in memory."""
_BYTES: Final = 64 * 1024
_END: Final = 2**62


@dataclass(frozen=True, slots=True)
class DayBuckets:
    """The buckets that the days of a counter have.

    Attributes:
        counter: its name.
        scheme: as it is now.
        resolution: of the buckets that the sources are read in.
    """

    counter: str
    scheme: Scheme
    resolution: Resolution

    @classmethod
    def read(
        cls, session: Session, counter: str, resolution: Resolution, *, lock: str = ""
    ) -> "DayBuckets":
        """Read the scheme; with a lock it stays so until the transaction ends."""
        return cls(counter, load_scheme(session, counter, lock), resolution)

    @property
    def widths(self) -> tuple[Width, ...]:
        """The widths of the buckets that its days may have."""
        return tuple(sorted({*self.scheme.widths, self.resolution} - {"month"}))

    def of(self, day: date) -> tuple[int, ...]:
        """The labels of all buckets that lie in a day."""
        return _labels(self.scheme.known_zone(), self.widths, day)

    def intervals(self, day: date) -> Sequence[tuple[int | None, int | None]]:
        """When a day begins and ends, in Unix seconds, None: never; nothing: the counter's time
        zone has left the date out.
        """
        return intervals(self.scheme.known_zone(), day, day)

    def left_out(self, session: Session, day: date) -> str:
        """Why a day that is over cannot be set, for people; '': it can.

        Args:
            session: which sees what is counted in it now.
            day: the day.
        """
        rolled_to = self.scheme.rolled_to("month")
        edges = {edge for pair in self.intervals(day) for edge in pair if edge is not None}
        if rolled_to is not None and min(edges) < rolled_to:
            return "as their days are rolled up to months"
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
            return "as buckets that begin or end in them are partly of other days"
        return ""


@lru_cache(maxsize=16)
def _labels(zone: str, widths: Sequence[Width], day: date) -> tuple[int, ...]:
    found = [day_label(day)] if "day" in widths else []
    for width in FINER:
        if width in widths:
            step = MINUTES[width] * 60
            for begin, end in intervals(zone, day, day):
                if begin is not None and end is not None:
                    own = range(-(-begin // step) * step, end - step + 1, step)
                    found += [start + NUMBER[width] for start in own]
    return tuple(found)


def each_day(some: Sequence[date], on_progress: Callable[[Progress], object]) -> Iterator[date]:
    """The days; says before each how far it is."""
    for number, day in enumerate(some):
        on_progress(Progress(doing="correcting", source=str(day), done=number, size=len(some)))
        yield day


def check_days(work: Work, found: Iterable[Input]) -> None:
    """Check the days that are asked for, before anything is counted.

    Raises:
        BackfillError: the first and the last one were not both given; or these are too many.
    """
    start, end = work.options.recipe.start, work.options.recipe.end
    if start is None or end is None:
        raise BackfillError(
            "a reconcile sets whole days: give the first and the last one by --from and --to"
            f"{_covered(work, found)}"
        )
    if (number := (end - start).days + 1) > MOST_DAYS:
        raise BackfillError(
            f"{number:,} days are more than the {MOST_DAYS:,} that one run can set: reconcile fewer"
            " days at a time, by --from and --to"
        )


def choose(
    session: Session, buckets: DayBuckets, options: BackfillOptions, t0: int
) -> tuple[list[date], list[str]]:
    """The days to be set of those that are asked for, once all sources have been read, and notices
    about the others.

    Left out are days that were not over at ``t0`` (what belongs to them was still on its way), that
    are in months, or of which a bucket is partly of another day.

    Args:
        session: outside a transaction or in one.
        buckets: of the counter's days.
        options: of the run.
        t0: Unix ms, from :func:`countersink.backfill.reconcile.begin`.

    Raises:
        BackfillError: it is a tracked table's counter; some days hold what had no room among their
            keys.
    """
    targets.refuse_tracked(session, options.counter)
    targets.refuse_breakdowns(session, options.counter)
    start, end = options.recipe.start, options.recipe.end
    assert start is not None  # see check_days
    assert end is not None
    chosen: list[date] = []
    left: dict[str, list[date]] = {}
    for day in filter(buckets.intervals, days(start, end)):
        over = buckets.intervals(day)[-1][1]
        if over is None or over * 1000 + options.grace_s * 1000 > t0:
            why = f"as not over for {options.grace_s:g} s when this began"
        else:
            why = buckets.left_out(session, day)
        (left.setdefault(why, []) if why else chosen).append(day)
    if not options.delete_missing:
        _refuse_overflown(session, buckets, chosen)
    return chosen, left_out(left)


def left_out(left: Mapping[str, Iterable[date]]) -> list[str]:
    """What to say of days that are left out, by the reason."""
    return [f"left out, {why}: {targets.days_text(some)}" for why, some in left.items()]


def _refuse_overflown(session: Session, buckets: DayBuckets, chosen: Iterable[date]) -> None:
    """Check that no day holds what cannot be told from what the sources say by key.

    Raises:
        BackfillError: some do.
    """
    counter = buckets.counter
    held = {buckets.scheme.local_day(at) for _, at in key_caps.overflown(session, [counter])}
    if some := held.intersection(chosen):
        raise BackfillError(
            f"{counter} had more keys than it may have on {targets.days_text(some)}: what is in the"
            f" key {OVERFLOW} there is in these sources under other keys, so it would be counted"
            " twice. If they have all there is of these days, --delete-missing takes it away; else"
            " leave the days out, by --from and --to"
        )


def _covered(work: Work, found: Iterable[Input]) -> str:
    """From when to when sources have lines, and which whole days lie between, for people; '' if
    that is not known.

    Args:
        found: the sources; a pipe is not read.
    """
    minutes = set[int]()
    for source in found:
        with contextlib.suppress(BackfillError):
            if source.size is not None:
                minutes |= _minutes(work, source)
    if not minutes:
        return ""
    zone = work.catalog.of(work.options.counter).known_zone()
    first, last = min(minutes), max(minutes)
    after = date_at(zone, first * 60 - 60) + ONE_DAY
    before = date_at(zone, last * 60 + 60) - ONE_DAY
    whole = targets.days_text(days(after, before)) if after <= before else "none"
    return (
        f"; these sources have lines from {datetime_of(first * 60):%Y-%m-%d %H:%M} to"
        f" {datetime_of(last * 60):%Y-%m-%d %H:%M} UTC, and the whole days between are {whole}"
        f" ({zone})"
    )


def _minutes(work: Work, source: Input) -> set[int]:
    """The Unix minutes of the lines that a source begins and ends with, those included that the
    recipe leaves out.

    Raises:
        BackfillError: it cannot be read.
    """
    tally = RecordTally()
    with opened(work, source) as at_hand:
        if at_hand is None:
            return set()
        content, counter = at_hand.content, work.options.counter
        own = at_hand.wanted.recipe
        every = replace(own, where=(), exclude_keys=(), counter_column="", start=None, end=None)
        reader = reader_of(every, counter, work.catalog.of(counter), at_hand.head)
        content.seek(_END)
        start = max(0, content.offset - _BYTES)
        whole_line = start + content.read_at(_BYTES, start).find(b"\n") + 1 if start else 0
        for at in sorted({0, whole_line}):
            reader.look_back(content.read_at, at)
            # No line is known by its number; those of directives before it are lower ones.
            spans = SpanReader(content, at, at + 1, quoted=reader.quoted, max_bytes=_BYTES)
            for piece in spans.pieces():
                reader.count(window_of(piece, reader.quoted), tally)
    return set(tally.amounts)

"""Which days a reconcile sets: those asked for that are over, at most ``MOST_DAYS``, and all
buckets that lie in them, of whatever width; the notices about days left out, and the error where no
days are given."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache, partial
from typing import Final

from countersink.backfill.count import targets
from countersink.backfill.count.task import OpenSource, Work, opened, reader_of
from countersink.backfill.errors import BackfillError
from countersink.backfill.formats import Reader
from countersink.backfill.input.files import Input
from countersink.backfill.input.spans import SpanReader, window_of
from countersink.backfill.options import BackfillOptions, Progress
from countersink.producers.access_log.formats.reader import RecordTally
from countersink.store.apply import key_caps
from countersink.store.apply.key_caps import OVERFLOW
from countersink.store.connection import Session
from countersink.store.counters.buckets import (
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
from countersink.store.counters.catalog import Scheme, load_scheme
from countersink.store.sql import datetime_of, day_label, labels_where

MOST_DAYS: Final = 40_000
"""More than a hundred years; workers keep their marks in memory."""
JOINED_MINUTES: Final = 60
"""Minutes without a line between the end of one source and the beginning of the next, at most: as
between rotated logs."""
_RANGES_NAMED: Final = 10
_PROGRESS_S: Final = 0.25
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

    def exist(self, day: date) -> bool:
        """Whether the counter's time zone has the day: it may have left a date out."""
        return bool(intervals(self.scheme.known_zone(), day, day))

    def ends_at(self, day: date) -> int | None:
        """Unix seconds at which a day is over; None: never."""
        return intervals(self.scheme.known_zone(), day, day)[-1][1]

    def left_out(self, session: Session, day: date) -> str:
        """Why a day that is over cannot be set, for people; '': it can.

        Args:
            session: which sees what is counted in it now.
            day: the day.
        """
        rolled_to = self.scheme.rolled_to("month")
        zone = self.scheme.known_zone()
        edges = {edge for pair in intervals(zone, day, day) for edge in pair if edge is not None}
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


@dataclass(frozen=True, slots=True)
class Chosen:
    """The days that a reconcile sets, and the notices about those left out.

    Attributes:
        days: those to be set, in order.
        notices: for people: what is left out.
    """

    days: tuple[date, ...]
    notices: tuple[str, ...]

    def each(self, on_progress: Callable[[Progress], object]) -> Iterator[date]:
        """The days; says how far it is, several times a second at most."""
        told = float("-inf")
        for number, day in enumerate(self.days):
            if time.monotonic() - told >= _PROGRESS_S:
                told = time.monotonic()
                on_progress(
                    Progress(doing="correcting", source=str(day), done=number, size=len(self.days))
                )
            yield day


def check_days(work: Work, found: Iterable[Input]) -> None:
    """Check the days that are asked for, before anything is counted.

    Raises:
        BackfillError: there are none, or too many.
    """
    try:
        _asked(work.options)
    except BackfillError as error:
        recipe = work.options.recipe
        covered = _covered(work, found) if recipe.start is None or recipe.end is None else ""
        raise BackfillError(f"{error}; {covered}" if covered else str(error)) from error


def _asked(options: BackfillOptions) -> list[date]:
    """The days that are to be set.

    Raises:
        BackfillError: the first and the last one were not both given; or these are too many.
    """
    start, end = options.recipe.start, options.recipe.end
    if start is None or end is None:
        raise BackfillError(
            "a reconcile sets whole days: give the first and the last one by --from and --to"
        )
    if (number := (end - start).days + 1) > MOST_DAYS:
        raise BackfillError(
            f"{number:,} days are more than the {MOST_DAYS:,} that one run can set: reconcile fewer"
            " days at a time, by --from and --to"
        )
    return days(start, end)


def choose(session: Session, run: int, options: BackfillOptions, t0: int) -> Chosen:
    """Choose the days of those that are asked for, once all sources have been read.

    Left out are days that were not over at ``t0`` (what belongs to them was still on its way), that
    are in months, or of which a bucket is partly of another day.

    Args:
        session: outside a transaction or in one.
        run: its number.
        options: of it.
        t0: Unix ms, from :func:`countersink.backfill.reconcile.begin`.

    Raises:
        BackfillError: it is a tracked table's counter; too many days; some of them hold what had no
            room among their keys.
    """
    counter = options.counter
    targets.refuse_tracked(session, counter)
    targets.refuse_breakdowns(session, counter)
    buckets = DayBuckets.read(session, counter, targets.resolution_of(session, run))
    chosen: list[date] = []
    left: dict[str, list[date]] = {}
    for day in filter(buckets.exist, _asked(options)):
        over = buckets.ends_at(day)
        if over is None or over * 1000 + options.grace_s * 1000 > t0:
            why = f"as not over for {options.grace_s:g} s when this began"
        else:
            why = buckets.left_out(session, day)
        (left.setdefault(why, []) if why else chosen).append(day)
    if not options.delete_missing:
        _refuse_overflown(session, buckets, chosen)
    return Chosen(tuple(chosen), tuple(left_out(left)))


def left_out(left: Mapping[str, Iterable[date]]) -> list[str]:
    """What to say of days that are left out, by the reason."""
    return [f"left out, {why}: {_days(some)}" for why, some in left.items()]


def _refuse_overflown(session: Session, buckets: DayBuckets, chosen: Iterable[date]) -> None:
    """Check that no day holds what cannot be told from what the sources say by key.

    Raises:
        BackfillError: some do.
    """
    counter = buckets.counter
    held = {buckets.scheme.local_day(at) for _, at in key_caps.overflown(session, [counter])}
    if some := held.intersection(chosen):
        raise BackfillError(
            f"{counter} had more keys than it may have on {_days(some)}: what is in the"
            f" key {OVERFLOW} there is in these sources under other keys, so it would be counted"
            " twice. If they have all there is of these days, --delete-missing takes it away; else"
            " leave the days out, by --from and --to"
        )


def _days(some: Iterable[date]) -> str:
    """Days as ranges: ``2026-03-14, 2026-03-16 to 2026-03-20``."""
    ranges: list[list[date]] = []
    for day in sorted(some):
        if ranges and day - ONE_DAY == ranges[-1][1]:
            ranges[-1][1] = day
        else:
            ranges.append([day, day])
    return _named(ranges)


def _named(ranges: Sequence[Sequence[date]]) -> str:
    """Ranges of days, each from its first to its last one."""
    texts = [f"{one}" if one == other else f"{one} to {other}" for one, other in ranges]
    more = len(texts) - _RANGES_NAMED
    return ", ".join(texts[:_RANGES_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _covered(work: Work, found: Iterable[Input]) -> str:
    """From when to when sources have lines, and which days they have whole, for people; '' if that
    is not known.

    Args:
        found: the sources; a pipe is not read.
    """
    zone = work.catalog.of(work.options.counter).known_zone()
    joined: list[tuple[int, int]] = []
    for first, last in sorted(_intervals(work, found)):
        before = joined.pop() if joined and first - joined[-1][1] <= JOINED_MINUTES else None
        joined.append((first, last) if before is None else (before[0], max(last, before[1])))
    if not joined:
        return ""
    days = [
        (date_at(zone, first * 60 - 60) + ONE_DAY, date_at(zone, last * 60 + 60) - ONE_DAY)
        for first, last in joined
    ]
    whole = _named([(first, last) for first, last in days if first <= last]) or "no day"
    first, last = joined[0][0], max(last for _, last in joined)
    return (
        f"these sources have lines from {datetime_of(first * 60):%Y-%m-%d %H:%M} to"
        f" {datetime_of(last * 60):%Y-%m-%d %H:%M} UTC, which is {whole} as a whole ({zone})"
    )


def _intervals(work: Work, found: Iterable[Input]) -> Iterator[tuple[int, int]]:
    for source in found:
        with contextlib.suppress(BackfillError):
            if source.size is not None and (own := _interval(work, source)) is not None:
                yield own


def _interval(work: Work, source: Input) -> tuple[int, int] | None:
    """The Unix minutes of the first and the last line of a source, those included that the recipe
    leaves out; None: it has none with a time.

    Raises:
        BackfillError: it cannot be read.
    """
    with opened(work, source) as at_hand:
        if at_hand is None:
            return None
        content, wanted = at_hand.content, at_hand.wanted
        all_of_it = replace(
            wanted.recipe, where=(), exclude_keys=(), counter_column="", start=None, end=None
        )
        own = work.catalog.of(wanted.counter)
        read = partial(reader_of, all_of_it, wanted.counter, own, at_hand.head)
        minutes = _minutes(at_hand, read(), 0)
        content.seek(_END)
        last = max(0, content.offset - _BYTES)
        if last:
            content.seek(last)
            last += content.read(_BYTES).find(b"\n") + 1
            minutes |= _minutes(at_hand, read(), last)
    return (min(minutes), max(minutes)) if minutes else None


def _minutes(at_hand: OpenSource, reader: Reader, start: int) -> set[int]:
    """The minutes of the lines from ``start`` on."""
    tally = RecordTally()
    reader.look_back(at_hand.content.read_at, start)
    # No line is known by its number; those of directives before it are lower ones.
    spans = SpanReader(at_hand.content, start, start + 1, quoted=reader.quoted, max_bytes=_BYTES)
    for piece in spans.pieces():
        reader.count(window_of(piece, reader.quoted), tally)
    return set(tally.amounts)

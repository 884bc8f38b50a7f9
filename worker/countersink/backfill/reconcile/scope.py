"""Which days a reconcile sets: days the sources cover whole, days that are over, at most
``MOST_BUCKETS``; and the notices about days left out."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import chain, pairwise
from typing import Final

from countersink.backfill.count import targets
from countersink.backfill.count.task import reader_of
from countersink.backfill.errors import BackfillError
from countersink.backfill.formats import Reader
from countersink.backfill.input.content import Content
from countersink.backfill.input.spans import SpanReader
from countersink.backfill.options import BackfillOptions, Progress, Recipe
from countersink.producers.access_log.formats.reader import RecordTally
from countersink.store.apply import key_caps
from countersink.store.apply.key_caps import OVERFLOW
from countersink.store.connection import Session
from countersink.store.counters.buckets import ONE_DAY, date_at, day_begins
from countersink.store.counters.policies import Policies, Policy, counting
from countersink.store.errors import InexactZone
from countersink.store.sql import label_of
from countersink.store.totals.views import View

MOST_BUCKETS: Final = 200_000
"""Workers keep their marks in memory: five years of quarters of an hour."""
JOINED_MINUTES: Final = 60
"""Minutes without a line between the end of one source and the beginning of the next, at most: as
between rotated logs."""
_RANGES_NAMED: Final = 10
_PROGRESS_S: Final = 0.25
_LONGEST_DAY: Final = 27 * 60
_BYTES: Final = 64 * 1024
_END: Final = 2**62


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """The time from a source's first line to its last one.

    Attributes:
        first, last: Unix minutes of the two.
        days: the lines are of whole days, so that each day that has one is covered.
    """

    first: float
    last: float
    days: bool = False

    def holds(self, begins_at: int, ends_at: int) -> bool:
        """Whether there are lines before and after a bucket, whose bounds are Unix seconds."""
        if self.days:
            return (
                self.first * 60 - _LONGEST_DAY * 60 < begins_at
                and ends_at <= (self.last + _LONGEST_DAY) * 60
            )
        return self.first * 60 < begins_at and ends_at <= self.last * 60


EVER: Final = Interval(float("-inf"), float("inf"), days=True)
"""Of sources that are known to have all."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The buckets that a reconcile sets, and the notices about those left out.

    Attributes:
        view: the buckets that the counter's events are counted in, in its own time zones.
        labels: those to be set, in order.
        notices: for people: what is left out.
    """

    view: View
    labels: tuple[int, ...]
    notices: tuple[str, ...]

    def days(self, labels: Iterable[int]) -> str:
        """The days of some buckets, for people."""
        return _days(self.view, labels)

    def by_day(self) -> list[list[int]]:
        """The buckets, those of a day together."""
        found: dict[date, list[int]] = {}
        for label in self.labels:
            found.setdefault(self.view.day(label), []).append(label)
        return list(found.values())

    def each(self, on_progress: Callable[[Progress], object]) -> Iterator[int]:
        """The buckets; says how far it is, several times a second at most."""
        told = float("-inf")
        for number, label in enumerate(self.labels):
            if time.monotonic() - told >= _PROGRESS_S:
                told = time.monotonic()
                on_progress(
                    Progress(
                        doing="correcting",
                        source=str(self.view.day(label)),
                        done=number,
                        size=len(self.labels),
                    )
                )
            yield label


def check_days(options: BackfillOptions, in_force: Policies) -> None:
    """Check the days that are asked for, before anything is read.

    Raises:
        BackfillError: the range begins or ends within a bucket, or has no end; too many buckets.
    """
    start, end = options.recipe.start, options.recipe.end
    if start is not None and end is not None:
        _between(_view(options.counter, in_force.of(options.counter)), start, end)


def choose(
    session: Session, run: int, options: BackfillOptions, t0: int, intervals: Sequence[Interval]
) -> Chosen:
    """Choose the buckets, once all sources have been read.

    Those of the days that the sources have whole; with both ``start`` and ``end`` all from one to
    the other, whether or not the sources know anything of them. Left out are buckets that were open
    at ``t0`` (what belongs to them was still on its way), and days that are in months or, be it in
    part, in wider buckets.

    Args:
        session: outside a transaction or in one.
        run: its number.
        options: of it.
        t0: Unix ms, from :func:`countersink.backfill.reconcile.begin`.
        intervals: from when to when each of the sources has lines.

    Raises:
        BackfillError: it is a tracked table's counter; its policies have changed since the sources
            were read; the range begins or ends within a bucket; too many buckets; some of them hold
            what had no room among the keys of their day.
    """
    targets.refuse_tracked(session, options.counter)
    targets.refuse_breakdowns(session, options.counter)
    policies = targets.require_policies(session, run, options.counter, t0)
    view = _view(options.counter, policies)
    said = targets.truth_labels(session, run)
    notices: list[str] = []
    start, end = options.recipe.start, options.recipe.end
    if start is not None and end is not None:
        found = sorted({*said, *_between(view, start, end)})
        in_part: set[int] = set()
    else:
        days = {day: _between(view, day, day) for day in dict.fromkeys(map(view.day, said))}
        found = sorted({*said, *chain.from_iterable(days.values())})
        in_part = _in_part(view, days, options, intervals)
    if len(found) > MOST_BUCKETS:
        raise _too_many(len(found))
    rolled_up = RolledUpTo.read(session, options.counter)
    chosen: list[int] = []
    still_open: list[int] = []
    gone: dict[str, list[int]] = {}
    for label in found:
        if label in in_part:
            continue
        if view.policy(label).ends_at(label) * 1000 + options.grace_s * 1000 > t0:
            still_open.append(label)
        elif into := rolled_up.into(view, label):
            gone.setdefault(into, []).append(label)
        else:
            chosen.append(label)
    if not options.delete_missing:
        _refuse_overflown(session, view, chosen)
    if in_part:
        notices.append(
            "left out, as the sources have no lines before and after them, so that they may have"
            f" but a part of them: {_days(view, in_part)}. If they have all of them, give --from"
            " and --to"
        )
    if still_open:
        notices.append(
            f"left out, as not over for {options.grace_s:g} s when this began:"
            f" {_days(view, still_open)}"
        )
    notices += [is_rolled_up(into, _days(view, labels)) for into, labels in gone.items()]
    return Chosen(view, tuple(chosen), tuple(notices))


def _in_part(
    view: View,
    days: Mapping[date, Sequence[int]],
    options: BackfillOptions,
    intervals: Sequence[Interval],
) -> set[int]:
    """The buckets of the days, in order, of which the sources may have but a part."""
    recipe = options.recipe
    covered = union(intervals, begun=recipe.start is not None, ended=recipe.end is not None)
    found = set[date]()
    for day, labels in days.items():
        begins_at = min(view.policy(label).starts_at(label) for label in labels)
        ends_at = max(view.policy(label).ends_at(label) for label in labels)
        if not any(one.holds(begins_at, ends_at) for one in covered):
            found.add(day)
    filtered = recipe.where or recipe.exclude_keys or recipe.counter_column
    if not (filtered or any(one.days for one in covered)):
        # A log of these days is missing, and may have had a part of those beside them.
        for one, other in pairwise(days):
            if other - one > ONE_DAY:
                found |= {one, other}
    return {label for day in found for label in days[day]}


def union(intervals: Iterable[Interval], *, begun: bool, ended: bool) -> list[Interval]:
    """The intervals that sources cover together.

    Args:
        begun: somebody has said from when on they do.
        ended: the same of their end.
    """
    found: list[Interval] = []
    for one in sorted(intervals):
        last = found[-1] if found else None
        if last is None or last.days != one.days or one.first - last.last > JOINED_MINUTES:
            found.append(one)
        else:
            found[-1] = replace(last, last=max(last.last, one.last))
    if found and begun:
        found[0] = replace(found[0], first=float("-inf"))
    if found and ended:
        at = max(range(len(found)), key=lambda place: found[place].last)
        found[at] = replace(found[at], last=float("inf"))
    return found


def _refuse_overflown(session: Session, view: View, labels: Iterable[int]) -> None:
    """Check that no bucket holds what cannot be told from what the sources say by key.

    Raises:
        BackfillError: some do.
    """
    held = key_caps.overflow_labels(session, view.counter)
    if days := held.intersection(labels):
        raise BackfillError(
            f"{view.counter} had more keys than it may have on {_days(view, days)}: what is in the"
            f" key {OVERFLOW} there is in these sources under other keys, so it would be counted"
            " twice. If they have all there is of these days, --delete-missing takes it away; else"
            " leave the days out, by --from and --to"
        )


def is_rolled_up(into: str, days: str) -> str:
    """What to say of days that are in months, or in wider buckets."""
    return f"left out, as their days are rolled up to {into}: {days}"


def _view(counter: str, policies: Sequence[Policy]) -> View:
    # Sources say what is counted, not what became of it.
    return View(counter, counting(policies), None)


def _between(view: View, start: date, end: date) -> list[int]:
    try:
        view.require_range(start, end)
    except InexactZone as error:
        raise BackfillError(
            f"{error} (--from and --to begin and end days of the counter, in whole buckets)"
        ) from error
    found: list[int] = []
    for one in view.ranges(start, end) or ():
        if one.first is None or one.until is None:
            raise BackfillError(f"{start} to {end} has no end: give days that there are")
        own = range(one.first + (one.number - one.first) % one.step, one.until, one.step)
        if len(found) + len(own) > MOST_BUCKETS:
            raise _too_many(len(found) + len(own))
        found += own
    return found


@dataclass(frozen=True, slots=True)
class RolledUpTo:
    """Up to when the buckets of a counter are rolled up: what is there is not what was counted.

    Attributes:
        day: days before it are in months; None: none are.
        minutes: by the number of a policy the Unix minute before which its buckets are wider ones.
    """

    day: date | None
    minutes: Mapping[int, int]

    @staticmethod
    def read(session: Session, counter: str, *, lock: str = "") -> "RolledUpTo":
        """What is on record; with a lock it stays so until the transaction ends."""
        rows = session.query(f"SELECT rolled_up_to FROM counter WHERE name = %s{lock}", (counter,))
        minutes: dict[int, int] = {}
        for number, rolled_to in session.query(
            "SELECT rolls, rolled_to FROM counter_policy WHERE counter = %s AND rolls IS NOT NULL"
            f"{lock}",
            (counter,),
        ):
            if rolled_to is not None:
                until = label_of(rolled_to) // 60
                minutes[int(number)] = max(until, minutes.get(int(number), until))
        return RolledUpTo(rows[0][0] if rows else None, minutes)

    def into(self, view: View, label: int) -> str:
        """What a bucket, or another one of its day, is rolled up to, for people; '' for nothing."""
        if self.day is not None and view.last_day(label) < self.day:
            return "months"
        policy = view.policy(label)
        until = self.minutes.get(policy.number)
        if until is not None and day_begins(policy.known_zone(), view.day(label)) < until * 60:
            return "wider buckets, all of them or a part"
        return ""


def _days(view: View, labels: Iterable[int]) -> str:
    """Days as ranges: ``2026-03-14, 2026-03-16 to 2026-03-20``."""
    ranges: list[list[date]] = []
    for day in sorted({view.day(label) for label in labels}):
        if ranges and day - ONE_DAY == ranges[-1][1]:
            ranges[-1][1] = day
        else:
            ranges.append([day, day])
    texts = [f"{one}" if one == other else f"{one} to {other}" for one, other in ranges]
    more = len(texts) - _RANGES_NAMED
    return ", ".join(texts[:_RANGES_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _too_many(number: int) -> BackfillError:
    return BackfillError(
        f"{number:,} buckets are more than the {MOST_BUCKETS:,} that one run can set: reconcile"
        " fewer days at a time, by --from and --to"
    )


_DAY: Final = 1440


def interval_of(
    content: Content,
    head: bytes,
    recipe: Recipe,
    counter: str,
    in_force: Policies,
) -> Interval | None:
    """From when to when a source has lines, those included that the recipe leaves out and those of
    other counters; None: it has none with a time.

    Args:
        content: of the source, which was read to its end.
        head: how it begins.
        counter: whose days they may be of.
        in_force: the policies.

    Raises:
        Unreadable: it cannot be read.
    """
    all_of_it = replace(recipe, where=(), exclude_keys=(), counter_column="", start=None, end=None)
    reader = reader_of(all_of_it, counter, in_force, head)
    content.seek(_END)
    end = content.offset
    last = max(0, end - _BYTES)
    if last:
        content.seek(last)
        data = content.read(_BYTES)
        last += data.find(b"\n") + 1
    minutes = _minutes(content, reader, last)
    if last:
        minutes |= _minutes(content, reader, 0)
    if not minutes:
        return None
    zones = {policy.known_zone() for policy in in_force.of(counter)}
    days = recipe.input_format in ("csv", "ndjson") and any(
        all(_begins_day(minute, place) for minute in minutes)
        for place in zones | {"UTC", recipe.time_zone or "UTC"}
    )
    return Interval(min(minutes), max(minutes), days)


def _minutes(content: Content, reader: Reader, start: int) -> set[int]:
    """The minutes of the lines from ``start`` on."""
    tally = RecordTally()
    for window in SpanReader(content, start, 1, quoted=reader.quoted, max_bytes=_BYTES):
        reader.count(window, tally)
    return set(tally.amounts)


def _begins_day(minute: int, place: str) -> bool:
    return -(-day_begins(place, date_at(place, minute * 60)) // 60) == minute

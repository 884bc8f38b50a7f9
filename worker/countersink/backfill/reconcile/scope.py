"""Which buckets a reconcile sets: those of the days asked for that are over, at most
``MOST_BUCKETS``; the notices about days left out, and the error where no days are given."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Final

from countersink.backfill.count import targets
from countersink.backfill.count.task import Work, opened, reader_of
from countersink.backfill.errors import BackfillError
from countersink.backfill.formats import Reader
from countersink.backfill.input.content import Content
from countersink.backfill.input.files import Input
from countersink.backfill.input.spans import SpanReader
from countersink.backfill.options import BackfillOptions, Progress
from countersink.producers.access_log.formats.reader import RecordTally
from countersink.store.apply import key_caps
from countersink.store.apply.key_caps import OVERFLOW
from countersink.store.connection import Session
from countersink.store.counters.buckets import ONE_DAY, date_at, day_begins
from countersink.store.counters.policies import Policy, counting
from countersink.store.errors import InexactZone
from countersink.store.sql import label_of, label_time
from countersink.store.totals.views import View

MOST_BUCKETS: Final = 200_000
"""Workers keep their marks in memory: five years of quarters of an hour."""
JOINED_MINUTES: Final = 60
"""Minutes without a line between the end of one source and the beginning of the next, at most: as
between rotated logs."""
_RANGES_NAMED: Final = 10
_PROGRESS_S: Final = 0.25
_BYTES: Final = 64 * 1024
_END: Final = 2**62


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


def check_days(work: Work, found: Iterable[Input]) -> None:
    """Check the days that are asked for, before anything is counted.

    Raises:
        BackfillError: there are none; the range begins or ends within a bucket, or has no end; too
            many buckets.
    """
    options = work.options
    try:
        start, end = _asked(options)
    except BackfillError as error:
        covered = _covered(work, found)
        raise BackfillError(f"{error}; {covered}" if covered else str(error)) from error
    _between(_view(options.counter, work.in_force.of(options.counter)), start, end)


def _asked(options: BackfillOptions) -> tuple[date, date]:
    """The first and the last day that are to be set.

    Raises:
        BackfillError: they were not both given.
    """
    start, end = options.recipe.start, options.recipe.end
    if start is None or end is None:
        raise BackfillError(
            "a reconcile sets whole days: give the first and the last one by --from and --to"
        )
    return start, end


def choose(session: Session, run: int, options: BackfillOptions, t0: int) -> Chosen:
    """Choose the buckets of the days that are asked for, once all sources have been read.

    Left out are buckets that were open at ``t0`` (what belongs to them was still on its way), and
    days that are in months or, be it in part, in wider buckets.

    Args:
        session: outside a transaction or in one.
        run: its number.
        options: of it.
        t0: Unix ms, from :func:`countersink.backfill.reconcile.begin`.

    Raises:
        BackfillError: it is a tracked table's counter; its policies have changed since the sources
            were read; the range begins or ends within a bucket; too many buckets; some of them hold
            what had no room among the keys of their day.
    """
    targets.refuse_tracked(session, options.counter)
    targets.refuse_breakdowns(session, options.counter)
    policies = targets.require_policies(session, run, options.counter, t0)
    view = _view(options.counter, policies)
    rolled_up = RolledUpTo.read(session, options.counter)
    chosen: list[int] = []
    still_open: list[int] = []
    gone: dict[str, list[int]] = {}
    for label in sorted(_between(view, *_asked(options))):
        if view.policy(label).ends_at(label) * 1000 + options.grace_s * 1000 > t0:
            still_open.append(label)
        elif into := rolled_up.into(view, label):
            gone.setdefault(into, []).append(label)
        else:
            chosen.append(label)
    if not options.delete_missing:
        _refuse_overflown(session, view, chosen)
    notices: list[str] = []
    if still_open:
        notices.append(
            f"left out, as not over for {options.grace_s:g} s when this began:"
            f" {_days(view, still_open)}"
        )
    notices += [is_rolled_up(into, _days(view, labels)) for into, labels in gone.items()]
    return Chosen(view, tuple(chosen), tuple(notices))


def _refuse_overflown(session: Session, view: View, labels: Iterable[int]) -> None:
    """Check that no bucket holds what cannot be told from what the sources say by key.

    Raises:
        BackfillError: some do.
    """
    held = {label for _, label in key_caps.overflown(session, [view.counter])}
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
    return _named(ranges)


def _named(ranges: Sequence[Sequence[date]]) -> str:
    """Ranges of days, each from its first to its last one."""
    texts = [f"{one}" if one == other else f"{one} to {other}" for one, other in ranges]
    more = len(texts) - _RANGES_NAMED
    return ", ".join(texts[:_RANGES_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _too_many(number: int) -> BackfillError:
    return BackfillError(
        f"{number:,} buckets are more than the {MOST_BUCKETS:,} that one run can set: reconcile"
        " fewer days at a time, by --from and --to"
    )


def _covered(work: Work, found: Iterable[Input]) -> str:
    """From when to when sources have lines, and which days they have whole, for people; '' if that
    is not known.

    Args:
        found: the sources; a pipe is not read.
    """
    zone = work.in_force.of(work.options.counter)[-1].known_zone()
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
        f"these sources have lines from {label_time(first * 60):%Y-%m-%d %H:%M} to"
        f" {label_time(last * 60):%Y-%m-%d %H:%M} UTC, which is {whole} as a whole ({zone})"
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
        read = partial(reader_of, all_of_it, wanted.counter, work.in_force, at_hand.head)
        minutes = _minutes(content, read(), 0)
        content.keep(False)
        content.seek(_END)
        last = max(0, content.offset - _BYTES)
        if last:
            content.seek(last)
            last += content.read(_BYTES).find(b"\n") + 1
            minutes |= _minutes(content, read(), last)
    return (min(minutes), max(minutes)) if minutes else None


def _minutes(content: Content, reader: Reader, start: int) -> set[int]:
    """The minutes of the lines from ``start`` on."""
    tally = RecordTally()
    reader.look_back(content.read_at, start)
    # No line is known by its number; those of directives before it are lower ones.
    number = start + 1
    for window in SpanReader(content, start, number, quoted=reader.quoted, max_bytes=_BYTES):
        reader.count(window, tally)
    return set(tally.amounts)

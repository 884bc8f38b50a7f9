"""Which buckets a reconcile sets: those that its sources are the whole truth for."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final

from countersink.backfill import truth
from countersink.backfill.options import BackfillError, Options, Progress
from countersink.store import overflow
from countersink.store.connection import Session
from countersink.store.errors import InexactZone
from countersink.store.overflow import OVERFLOW
from countersink.store.periods import ONE_DAY
from countersink.store.policies import Policies
from countersink.store.views import View

MOST_BUCKETS: Final = 200_000
"""Workers keep their marks in memory: five years of quarters of an hour."""
_RANGES_NAMED: Final = 10
_PROGRESS_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Chosen:
    """The buckets of a reconcile.

    Attributes:
        view: the counter's buckets in its own time zones.
        labels: those to be set, in order.
        notices: for people: what is left out.
        assumed: the first and the last bucket of the sources, where nobody has said for which days
            they are the whole truth.
    """

    view: View
    labels: tuple[int, ...]
    notices: tuple[str, ...]
    assumed: tuple[int, int] | None = None

    def all_notices(self, corrections: int, advice: str) -> tuple[str, ...]:
        """The notices; where something differed, also what was taken for granted.

        Args:
            corrections: how much did.
            advice: what to do if it is not so.
        """
        if self.assumed is None or not corrections:
            return self.notices
        first, last = self.assumed
        taken_for = (
            f"the sources are taken for the whole of {self.view.day(first)}, where they begin, and"
            f" of {self.view.last_day(last)}, where they end: if they begin or end in the midst of"
            f" a day, {advice}"
        )
        return taken_for, *self.notices

    def days(self, labels: Iterable[int]) -> str:
        """The days of some buckets, for people."""
        return _days(self.view, labels)

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


def check_days(options: Options, in_force: Policies) -> None:
    """Check the days that are asked for, before anything is read.

    Raises:
        BackfillError: the range begins or ends within a bucket, or has no end; too many buckets.
    """
    start, end = options.recipe.start, options.recipe.end
    if start is not None and end is not None:
        _between(View(options.counter, in_force.of(options.counter), None), start, end)


def choose(session: Session, run: int, options: Options, t0: int) -> Chosen:
    """Choose the buckets, once all sources have been read.

    Those of the sources; with both ``start`` and ``end`` all from one to the other, whether or not
    the sources know anything of them. Left out are buckets that were open at ``t0`` (what belongs
    to them was still on its way), and days that are in months.

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
    truth.refuse_tracked(session, options.counter)
    policies = truth.require_policies(session, run, options.counter, t0)
    view = View(options.counter, policies, None)
    found = truth.labels(session, run)
    notices: list[str] = []
    assumed: tuple[int, int] | None = None
    start, end = options.recipe.start, options.recipe.end
    if start is not None and end is not None:
        found = sorted({*found, *_between(view, start, end)})
    elif found and start is None and end is None:
        assumed = found[0], found[-1]
    if len(found) > MOST_BUCKETS:
        raise _too_many(len(found))
    rolled_up_to = _rolled_up_to(session, options.counter)
    chosen: list[int] = []
    still_open: list[int] = []
    in_months: list[int] = []
    for label in found:
        if view.policy(label).ends_at(label) * 1000 + options.grace_s * 1000 > t0:
            still_open.append(label)
        elif rolled_up_to is not None and view.last_day(label) < rolled_up_to:
            in_months.append(label)
        else:
            chosen.append(label)
    if not options.delete_missing:
        _refuse_overflown(session, view, chosen)
    if still_open:
        notices.append(
            f"left out, as not over for {options.grace_s:g} s when this began:"
            f" {_days(view, still_open)}"
        )
    if in_months:
        notices.append(rolled_up(_days(view, in_months)))
    return Chosen(view, tuple(chosen), tuple(notices), assumed)


def _refuse_overflown(session: Session, view: View, labels: Iterable[int]) -> None:
    """Check that no bucket holds what cannot be told from what the sources say by key.

    Raises:
        BackfillError: some do.
    """
    held = overflow.labels(session, view.counter)
    if days := held.intersection(labels):
        raise BackfillError(
            f"{view.counter} had more keys than it may have on {_days(view, days)}: what is in the"
            f" key {OVERFLOW} there is in these sources under other keys, so it would be counted"
            " twice. If they have all there is of these days, --delete-missing takes it away; else"
            " leave the days out, by --from and --to"
        )


def rolled_up(days: str) -> str:
    """What to say of days that are in months."""
    return f"left out, as their days are rolled up to months: {days}"


def _between(view: View, start: date, end: date) -> Iterable[int]:
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


def _rolled_up_to(session: Session, counter: str) -> date | None:
    rows = session.query("SELECT rolled_up_to FROM counter WHERE name = %s", (counter,))
    found: date | None = rows[0][0] if rows else None
    return found


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

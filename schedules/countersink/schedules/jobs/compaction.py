"""Compaction, as job and as ``countersink compact``: which buckets and keys are compacted, when and
in which order, sizes of a pass, and the sentence of its result.

Buckets that are over are compacted whole, also again when late events came; of those that are not,
the keys that have gathered many rows. Totals do not change, and so nothing is posted; what
applications have posted for buckets that are over is moved from their ledger to that of all. A pass
can be stopped or killed at any point: what is left is found by the next.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Final, Self

from countersink.runtime.pace import Pace
from countersink.schedules.jobs import Context, JobOutcome
from countersink.schedules.jobs.move import Mover, open_tables
from countersink.schedules.jobs.ranges import (
    BucketKey,
    counters,
    now_and_policies,
    page,
    require_counter,
)
from countersink.store.connection import Connect
from countersink.store.counters.breakdowns import counter_of, names_of
from countersink.store.ledger import postings
from countersink.store.sql import day_label

RECENT_DAYS: Final = 3
"""Days of which the job looks at the buckets; ``retention`` looks at all of them."""
DAY_S: Final = 86_400
_FIRST_LABEL: Final = -2 * DAY_S
_LAST_BEFORE: Final = date(9999, 12, 28)
_GROUP: Final = 4096
_RECENT_GROUP: Final = 512
"""Counters that are looked at together; the second where each is a range of the index."""
_PAGE_ROWS: Final = 20_000
"""Rows that are looked at together, at most, or a bucket that has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """What to compact, and how.

    Attributes:
        counter: of this counter and its breakdowns alone; None: of all.
        before: only buckets of days before this one, over or not; None: those that are over, and
            of the others the keys above the threshold.
        recent_days: leave out buckets from longer ago; None: none.
        grace_s: seconds a bucket has been over before it counts as closed: late events.
        threshold: rows of a key, other than that in slot 0, above which it is compacted in an
            open bucket.
        rows: slot rows per transaction, or a few more; up to eight times as many in a closed bucket
            as long as nobody is in the way, and far fewer where somebody is.
        share: of the time spent working; the rest is pause.
    """

    counter: str | None = None
    before: date | None = None
    recent_days: int | None = None
    grace_s: float = 3600.0
    threshold: int = 8
    rows: int = 2000
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassDone:
    """What a pass did, so far or in all, and what it left as it is.

    Attributes:
        rows_before: rows of the keys that were compacted.
        rows_after: rows of the same keys that are there now.
        ranges: transactions that moved something.
        rolled_up: slot rows that were added to wider buckets and months.
        counters: of which buckets are rolled up.
        busy: keys that an open transaction held; the next pass comes back to them.
        overflowing: keys whose sum, or whose month or wider bucket, would not fit 64 bits.
        unreadable: keys whose different members are not what was written, or take a library that is
            not installed.
        astride: buckets that lie in two months, or in two days where they were to become wider.
        unknown: buckets that no policy of their counter made.
        seconds: how long it took.
        share_done: of the counters to compact, from 0 to 1.
        finished: False if it was stopped, or goes on.
    """

    rows_before: int
    rows_after: int
    ranges: int
    rolled_up: int
    counters: int
    busy: tuple[BucketKey, ...]
    overflowing: tuple[BucketKey, ...]
    unreadable: tuple[BucketKey, ...]
    astride: tuple[BucketKey, ...]
    unknown: tuple[BucketKey, ...]
    seconds: float
    share_done: float
    finished: bool

    @property
    def left(self) -> dict[str, tuple[BucketKey, ...]]:
        """What was left, by why it was."""
        every = {
            "keys left for the next run, as others held them": self.busy,
            "keys left as they are, as their sum does not fit 64 bits": self.overflowing,
            "keys left as they are, as their different members cannot be read": self.unreadable,
            "buckets left as they are, as they lie in two months or days": self.astride,
            "buckets left as they are, as no policy of their counter made them": self.unknown,
        }
        return {why: places for why, places in every.items() if places}

    def outcome(self, said: str) -> JobOutcome:
        """Of the job: ``said``, what was left, how many and the first of them, and whether the
        pass ended.
        """
        for why, places in self.left.items():
            said += f"; {why}: {len(places):,}, first {places[0]}"
        rows = self.rows_before - self.rows_after + self.rolled_up
        said = said if self.finished else f"{said}; stopped early, the next run goes on"
        return JobOutcome(rows, said, finished=self.finished)


def compact(
    connect: Connect,
    what: CompactOptions,
    *,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[PassDone], object] | None = None,
) -> PassDone:
    """Compact once all that is selected. Totals are the same before, during and after.

    Args:
        connect: makes sessions as :func:`countersink.schedules.jobs.move.open_tables` does.
        what: the selection.
        stop: true once it should end; cheap to call.
        progress: called now and then with what was done so far.

    Raises:
        UnknownCounter: nothing was ever counted as ``what.counter``.
        Unavailable: the server is away, or was lost several times.
        StoreError: as any query. What was done so far stays done.
    """
    with Pass(connect, what, stop, progress) as one:
        one.compact()
        return one.done(finished=not stop())


def job(context: Context) -> JobOutcome:
    """Compact what is recent, at the scheduled pace; ``retention`` compacts everything."""
    what = scheduled(context, recent_days=RECENT_DAYS)
    done = compact(partial(open_tables, context.mysql_url), what, stop=context.stop)
    return done.outcome(
        f"buckets of the last {RECENT_DAYS} days: {done.rows_before:,} rows became"
        f" {done.rows_after:,}"
    )


def scheduled(context: Context, *, recent_days: int | None = None) -> CompactOptions:
    """All counters as the jobs are set, at the scheduled pace.

    Args:
        context: of the run.
        recent_days: leave out buckets from longer ago; None: none.
    """
    options = context.options
    return CompactOptions(
        recent_days=recent_days,
        grace_s=options.compact_grace_s,
        threshold=options.compact_threshold,
        rows=options.compact_rows,
        share=options.compact_share,
    )


class Pass:
    """One pass over the buckets; a context manager, for one thread.

    Args:
        connect, what, stop, progress: as for :func:`compact`.

    Attributes:
        mover: moves what is found.
        pace: of the pass.
        now: Unix seconds on the server's clock when :meth:`look_again` was called last.
        policies: those there were then.
        counters, astride, unknown: as :class:`PassDone` has them.
    """

    def __init__(
        self,
        connect: Connect,
        what: CompactOptions,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[PassDone], object] | None = None,
    ) -> None:
        self._began = time.monotonic()
        self._what = what
        self._progress = progress
        self.pace = Pace(what.share, stop)
        self.mover = Mover(connect, self.pace, what.rows)
        self.counters = 0
        self.astride: list[BucketKey] = []
        self.unknown: list[BucketKey] = []
        self._share_done = 0.0
        self.now, self.policies = self.mover.run(now_and_policies)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.mover.close()

    def look_again(self, *, anew: bool = False) -> None:
        """Read the clock again, and the policies if they were changed, or ``anew``. To be called
        after buckets were looked for: whoever made one went by a policy that is there by now.
        """
        known = None if anew else self.policies
        self.now, self.policies = self.mover.run(partial(now_and_policies, known=known))

    def compact(self) -> None:
        """Compact all that is selected."""
        names, size = self._names(), _GROUP
        start = end = None
        if self._what.counter is not None:
            start = _FIRST_LABEL  # others may lie between a counter and its breakdowns
        if self._what.recent_days is not None:
            start, size = (self.now // DAY_S - self._what.recent_days) * DAY_S, _RECENT_GROUP
        if self._what.before is not None:
            # A bucket's label and its local day may lie a day apart.
            end = day_label(min(self._what.before, _LAST_BEFORE)) + 2 * DAY_S
        done, first, beyond = 0, 0, None
        while done < len(names) and not self.pace.stopped:
            some = names[done : done + (size if beyond is None else 1)]
            found = self.mover.run(
                partial(
                    page,
                    counters=some,
                    policies=self.policies,
                    start=start if beyond is None else beyond,
                    end=end,
                    rows=_PAGE_ROWS,
                )
            )
            self.look_again()
            first = found.first if beyond is None else first
            beyond = found.beyond
            for name, label, most in found.buckets:
                self._bucket(name, label, most)
            done += found.counters
            within = 0.0 if beyond is None else (beyond - first) / max(self.now - first, 1)
            self._share_done = (done + min(within, 1.0)) / len(names)
            self._rest()
        self._postings()

    def done(self, *, finished: bool) -> PassDone:
        """What it did."""
        mover = self.mover
        return PassDone(
            rows_before=mover.before,
            rows_after=mover.after,
            ranges=mover.ranges,
            rolled_up=mover.rolled_up,
            counters=self.counters,
            busy=tuple(mover.busy),
            overflowing=tuple(mover.overflowing),
            unreadable=tuple(mover.unreadable),
            astride=tuple(dict.fromkeys(self.astride)),
            unknown=tuple(dict.fromkeys(self.unknown)),
            seconds=time.monotonic() - self._began,
            share_done=1.0 if finished else self._share_done,
            finished=finished,
        )

    def _names(self) -> list[str]:
        name = self._what.counter
        if name is None:
            return self.mover.run(counters)
        self.mover.run(lambda session: require_counter(session, name))
        return sorted([name, *self.mover.run(partial(names_of, counter=name))])

    def _bucket(self, name: str, label: int, most: int | None) -> None:
        """Compact a bucket that is over, or the crowded keys of one that is not."""
        try:
            whole = self._is_whole(name, label)
        except LookupError:
            self.unknown.append(BucketKey(name, label))
            return
        above = 0 if whole else self._what.threshold
        moves = (whole or self._what.before is None) and (most is None or most > above)
        after: bytes | None = None
        while moves and not self.pace.stopped:
            after = self.mover.move_next(name, label, after, above=above)
            moves = after is not None
            self._rest()

    def _is_whole(self, name: str, label: int) -> bool:
        policy = self.policies.numbered(name, label)
        if self._what.before is not None:
            return policy.local_day(label) < self._what.before
        return policy.ends_at(label) + self._what.grace_s <= self.now

    def _postings(self) -> None:
        """Move what applications have posted for buckets that are over to the ledger of all."""
        for name, label in self.mover.run(postings.buckets):
            try:
                asked = self._what.counter in (None, counter_of(name))
                over = asked and self._is_whole(name, label)
            except LookupError:
                continue
            after: int | None = -1 if over else None
            while after is not None and not self.pace.stopped:
                after = self.mover.run(
                    partial(postings.move, counter=name, label=label, after=after)
                )
                self._rest()

    def _rest(self) -> None:
        self.pace.rest()
        if self._progress is not None:
            self._progress(self.done(finished=False))

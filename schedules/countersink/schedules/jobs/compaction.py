"""Compaction, as job and as ``countersink compact``: which buckets and keys are compacted, when and
in which order, sizes of a pass, and the sentence of its result.

Buckets that are over are compacted whole, also again when late events came; of those that are not,
the keys that have gathered many rows. Totals do not change, and so nothing is posted; what
applications have posted for buckets that are over is moved from their ledger to that of all. A pass
can be stopped or killed at any point: what is left is found by the next.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Final

from countersink.schedules.jobs import Context, JobOutcome, Pace
from countersink.schedules.jobs.move import Mover, open_tables
from countersink.schedules.jobs.ranges import (
    Bucket,
    BucketKey,
    PassDone,
    bucket_labels,
    counters,
    first_beyond,
    now_and_policies,
    now_and_version,
    require_counter,
    uncompacted,
    unsettled,
)
from countersink.store.connection import Connect
from countersink.store.counters.breakdowns import counter_of, names_of
from countersink.store.ledger import postings
from countersink.store.sql import day_label

RECENT_DAYS: Final = 3
"""Days of which the job looks at the buckets; ``retention`` looks at all of them."""
DAY_S: Final = 86_400
_LAST_BEFORE: Final = date(9999, 12, 28)
_FIRST_WINDOW: Final = 8
_LARGEST_WINDOW: Final = 1024
"""Buckets looked through at a time."""
_GROUP: Final = 4096
_RECENT_GROUP: Final = 512
"""Counters that are looked at together; the second where each is a range of the index."""
_GROUP_ROWS: Final = 20_000
"""Rows that they have, at most; a counter that has more by itself is looked at by itself."""
_QUICK_S: Final = 0.02
_SLOW_S: Final = 0.1


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
class Compacted(PassDone):
    """What a pass did, so far or in all, and what it left.

    Attributes:
        rows_before: rows of the keys that were compacted.
        rows_after: rows of the same keys that are there now.
        ranges: transactions that this took.
        seconds: how long it took.
        share_done: of the counters to look at, from 0 to 1.
    """

    rows_before: int = 0
    rows_after: int = 0
    ranges: int = 0
    seconds: float = 0.0
    finished: bool = False
    share_done: float = 0.0


def compact(
    connect: Connect,
    what: CompactOptions,
    *,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[Compacted], object] | None = None,
) -> Compacted:
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
    pace = Pace(what.share, stop)
    with Mover(connect, pace, what.rows) as mover:
        return _Pass(mover, pace, what, progress).run()


def job(context: Context) -> JobOutcome:
    """Compact what is recent, at the scheduled pace; ``retention`` compacts everything."""
    done = compact_all(context, recent_days=RECENT_DAYS)
    said = done.sentence(
        f"buckets of the last {RECENT_DAYS} days: {done.rows_before:,} rows became"
        f" {done.rows_after:,}"
    )
    return JobOutcome(done.rows_before - done.rows_after, said, finished=done.finished)


def compact_all(context: Context, *, recent_days: int | None = None) -> Compacted:
    """Compact all counters as the jobs are set, at the scheduled pace.

    Args:
        context: of the run.
        recent_days: leave out buckets from longer ago; None: none.
    """
    options = context.options
    return compact(
        partial(open_tables, context.mysql_url),
        CompactOptions(
            recent_days=recent_days,
            grace_s=options.compact_grace_s,
            threshold=options.compact_threshold,
            rows=options.compact_rows,
            share=options.compact_share,
        ),
        stop=context.stop,
    )


@dataclass(repr=False, eq=False)
class _Pass:
    """One pass over the buckets."""

    _mover: Mover
    _pace: Pace
    _what: CompactOptions
    _progress: Callable[[Compacted], object] | None

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._unknown: list[BucketKey] = []
        self._group: list[str] = []
        self._counters = self._done = 0  # all of them, and those before the group
        self._all = self._seen = 0  # buckets of the group
        self._window = _FIRST_WINDOW
        self._now, self._policies = self._mover.run(now_and_policies)

    def run(self) -> Compacted:
        names = self._names()
        self._counters = len(names)
        size = _GROUP if self._what.recent_days is None else _RECENT_GROUP
        while self._done < len(names) and not self._pace.stopped:
            self._compact(self._labels(names[self._done : self._done + size]))
            self._done += len(self._group)
        self._postings()
        return self._so_far(finished=not self._pace.stopped)

    def _compact(self, labels: dict[str, list[int]]) -> None:
        """Compact these buckets of the counters at hand."""
        # Asked again, after the buckets: whoever made one went by a policy that is there by now.
        self._now, version = self._mover.run(now_and_version)
        if version != self._policies.version:
            self._now, self._policies = self._mover.run(now_and_policies)
        self._all, self._seen = sum(map(len, labels.values())), 0
        closed: list[Bucket] = []
        opened: list[Bucket] = []
        for name, own in labels.items():
            of_closed, of_opened = self._sorted(name, own)
            closed += [(name, label) for label in of_closed]
            opened += [(name, label) for label in of_opened]
        for above, places in ((0, closed), (self._what.threshold, opened)):
            for name, label in self._uncompacted(places, above):
                self._bucket(name, label, above=above)
        self._rest()

    def _postings(self) -> None:
        """Move what applications have posted for buckets that are over to the ledger of all."""
        for name, label in self._mover.run(postings.buckets):
            try:
                asked = self._what.counter in (None, counter_of(name))
                over = asked and self._is_whole(name, label)
            except LookupError:
                continue
            after: int | None = -1 if over else None
            while after is not None and not self._pace.stopped:
                after = self._mover.run(
                    partial(postings.move, counter=name, label=label, after=after)
                )
                self._rest()

    def _names(self) -> list[str]:
        name = self._what.counter
        if name is None:
            return self._mover.run(counters)
        self._mover.run(lambda session: require_counter(session, name))
        return [name, *self._mover.run(partial(names_of, counter=name))]

    def _labels(self, counters: list[str]) -> dict[str, list[int]]:
        """Take the first of some counters in hand, as many as are small together, or a large one;
        of small ones the buckets that may have something to do, of a large one all.
        """
        start = end = None
        if self._what.recent_days is not None:
            start = self._now // DAY_S * DAY_S - self._what.recent_days * DAY_S
        if self._what.before is not None:
            # A bucket's label and its local day may lie a day apart.
            end = day_label(min(self._what.before, _LAST_BEFORE)) + 2 * DAY_S
        between = partial(partial, start=start, end=end)
        beyond = self._mover.run(between(first_beyond, counters=counters, rows=_GROUP_ROWS))
        small = len(counters) if beyond is None else bisect_left(counters, beyond)
        self._group = counters[: max(1, small)]
        if small == 0:
            return {counters[0]: self._mover.run(between(bucket_labels, counter=counters[0]))}
        numbers = self._policies.shared_numbers(self._group)
        return self._mover.run(between(unsettled, counters=self._group, numbers=numbers))

    def _sorted(self, name: str, labels: list[int]) -> tuple[list[int], list[int]]:
        """The buckets to compact whole, and those to look through for crowded keys."""
        closed: list[int] = []
        opened: list[int] = []
        for label in labels:
            try:
                whole = self._is_whole(name, label)
            except LookupError:
                self._unknown.append(BucketKey(name, label))
                continue
            if whole:
                closed.append(label)
            elif self._what.before is None:
                opened.append(label)
        self._seen += len(labels) - len(closed) - len(opened)
        return closed, opened

    def _is_whole(self, name: str, label: int) -> bool:
        policy = self._policies.numbered(name, label)
        if self._what.before is not None:
            return policy.local_day(label) < self._what.before
        return policy.ends_at(label) + self._what.grace_s <= self._now

    def _uncompacted(self, places: list[Bucket], above: int) -> Iterator[Bucket]:
        """Those that have keys with more rows to move than ``above``.

        Most were compacted long ago: they are looked through many at a time, as many as take a few
        hundredths of a second.
        """
        at = 0
        while at < len(places) and not self._pace.stopped:
            window = _window(places, at, self._window)
            at += len(window)
            begun = time.monotonic()
            found = self._mover.run(partial(uncompacted, places=window, above=above))
            took = time.monotonic() - begun
            if took < _QUICK_S:
                self._window = min(_LARGEST_WINDOW, self._window * 2)
            elif took > _SLOW_S:
                self._window = max(1, self._window // 2)
            self._seen += len(window) - len(found)
            self._rest()
            yield from found

    def _bucket(self, name: str, label: int, *, above: int) -> None:
        after: bytes | None = None
        while not self._pace.stopped:
            after = self._mover.move_next(name, label, after, above=above)
            if after is None:
                break
            self._tell()
        self._seen += 1
        self._rest()

    def _rest(self) -> None:
        self._pace.rest()
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._so_far(finished=False))

    def _so_far(self, *, finished: bool) -> Compacted:
        mover = self._mover
        return Compacted(
            rows_before=mover.before,
            rows_after=mover.after,
            ranges=mover.ranges,
            busy=tuple(mover.busy),
            overflowing=tuple(mover.overflowing),
            unreadable=tuple(mover.unreadable),
            unknown=tuple(self._unknown),
            seconds=time.monotonic() - self._began,
            finished=finished,
            share_done=1.0 if finished else self._share_done(),
        )

    def _share_done(self) -> float:
        """Of the counters; of those at hand as much as was seen of their buckets."""
        of_group = min(1.0, self._seen / self._all) if self._all else 1.0
        done = self._done + len(self._group) * of_group
        return min(1.0, done / max(1, self._counters))


def _window(places: list[Bucket], at: int, size: int) -> list[Bucket]:
    """The next buckets, at most so many: some of one counter, or all of several."""
    window, following = places[at : at + size], places[at + size : at + size + 1]
    first = window[0][0]
    begun = at > 0 and places[at - 1][0] == first
    if begun or (following and following[0][0] == first):
        return [place for place in window if place[0] == first]
    return [place for place in window if not following or place[0] != following[0][0]]

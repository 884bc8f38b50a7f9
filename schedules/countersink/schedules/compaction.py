"""Compaction: of every key of a bucket that is over, one row is left, in slot 0.

Buckets that are over are compacted whole, also again when late events came; of those that are not,
the keys that have gathered many rows. A pass can be stopped or killed at any point: what is left is
found by the next.
"""

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from os import getpid
from secrets import token_hex
from typing import Final

from countersink.schedules.context import Context, Outcome
from countersink.schedules.mover import Mover, open_tables
from countersink.schedules.pace import Pace
from countersink.schedules.places import BUSY, OVERFLOWING, UNKNOWN, Place, mention
from countersink.schedules.ranges import (
    bucket_labels,
    counters,
    next_part,
    now_and_policies,
    require_counter,
    uncompacted,
)
from countersink.store import lease
from countersink.store.buckets import day_label
from countersink.store.connection import Connect, Session

RECENT_DAYS: Final = 3
"""Days of which every run of the job looks at the buckets; it looks at all of them once a day."""
DAY_S: Final = 86_400
_ALL: Final = "compact:all"
_LAST_BEFORE: Final = date(9999, 12, 28)
_FIRST_WINDOW: Final = 8
_LARGEST_WINDOW: Final = 512
"""Closed buckets looked through at a time."""
_QUICK_S: Final = 0.02
_SLOW_S: Final = 0.1
_ALL_WITHIN_S: Final = 2 * 3600.0
"""Seconds until another run looks at all buckets where one that did was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to compact, and how.

    Attributes:
        counter: of this counter alone; None: of all.
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
class Compacted:
    """What a pass did, so far or in all.

    Attributes:
        rows_before: rows of the keys that were compacted.
        rows_after: rows of the same keys that are there now.
        ranges: transactions that this took.
        busy: keys that an open transaction held; the next pass comes back to them.
        overflowing: keys whose sum does not fit 64 bits; their rows stay as they are.
        unknown: buckets that no policy of their counter made; their rows stay as they are.
        seconds: how long it took.
        finished: False if it was stopped.
        share_done: of the buckets to look at, from 0 to 1.
    """

    rows_before: int = 0
    rows_after: int = 0
    ranges: int = 0
    busy: tuple[Place, ...] = ()
    overflowing: tuple[Place, ...] = ()
    unknown: tuple[Place, ...] = ()
    seconds: float = 0.0
    finished: bool = False
    share_done: float = 0.0


def compact(
    connect: Connect,
    what: Selection,
    *,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[Compacted], object] | None = None,
) -> Compacted:
    """Compact once all that is selected. Totals are the same before, during and after.

    Args:
        connect: makes sessions as :func:`countersink.schedules.mover.open_tables` does.
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


def job(context: Context) -> Outcome:
    """Compact what is recent, and once a day everything, at the scheduled pace."""
    options = context.options
    holder = f"compact-{socket.gethostname()}-{getpid()}-{token_hex(4)}"

    def connect() -> Session:
        return open_tables(context.mysql_url)

    with connect() as session:
        # Who holds this lease looks at everything, and keeps it for a day once it has done so.
        everything = lease.acquire(session, _ALL, holder, _ALL_WITHIN_S) is not None
    done = compact(
        connect,
        Selection(
            recent_days=None if everything else RECENT_DAYS,
            grace_s=options.compact_grace_s,
            threshold=options.compact_threshold,
            rows=options.compact_rows,
            share=options.compact_share,
        ),
        stop=context.stop,
    )
    if everything:
        with connect() as session:
            if done.finished:
                lease.renew(session, _ALL, holder, DAY_S)
            else:
                lease.release(session, _ALL, holder)
    moved = done.rows_before - done.rows_after
    return Outcome(moved, _sentence(done, everything), finished=done.finished)


class _Pass:
    """One pass over the buckets."""

    def __init__(
        self,
        mover: Mover,
        pace: Pace,
        what: Selection,
        progress: Callable[[Compacted], object] | None,
    ) -> None:
        self._mover = mover
        self._pace = pace
        self._what = what
        self._progress = progress
        self._began = time.monotonic()
        self._unknown: list[Place] = []
        self._all = self._seen = 0
        self._now, self._policies = mover.run(now_and_policies)

    def run(self) -> Compacted:
        labels = {name: self._labels(name) for name in self._names()}
        # Read again, after the buckets: whoever made one went by a policy that is there by now.
        self._now, self._policies = self._mover.run(now_and_policies)
        self._all = sum(map(len, labels.values()))
        for name, own in labels.items():
            closed, opened = self._sorted(name, own)
            for label in self._uncompacted(name, closed):
                self._bucket(name, label, above=0)
            for label in opened:
                self._bucket(name, label, above=self._what.threshold)
        return self._so_far(finished=not self._pace.stopped)

    def _names(self) -> list[str]:
        name = self._what.counter
        if name is None:
            return self._mover.run(counters)
        self._mover.run(lambda session: require_counter(session, name))
        return [name]

    def _labels(self, name: str) -> list[int]:
        start = end = None
        if self._what.recent_days is not None:
            start = self._now // DAY_S * DAY_S - self._what.recent_days * DAY_S
        if self._what.before is not None:
            # A bucket's label and its local day may lie a day apart.
            end = day_label(min(self._what.before, _LAST_BEFORE)) + 2 * DAY_S
        return self._mover.run(lambda session: bucket_labels(session, name, start=start, end=end))

    def _sorted(self, name: str, labels: list[int]) -> tuple[list[int], list[int]]:
        """The buckets to compact whole, and those to look through for crowded keys."""
        closed: list[int] = []
        opened: list[int] = []
        for label in labels:
            try:
                whole = self._is_whole(name, label)
            except LookupError:
                self._unknown.append(Place(name, label))
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

    def _uncompacted(self, name: str, labels: list[int]) -> Iterator[int]:
        """Those that have rows to move.

        Most were compacted long ago: they are looked through many at a time, as many as take a few
        hundredths of a second.
        """
        size, at = _FIRST_WINDOW, 0
        while at < len(labels) and not self._pace.stopped:
            window = labels[at : at + size]
            at += len(window)
            begun = time.monotonic()
            found = self._mover.run(partial(uncompacted, counter=name, labels=window))
            took = time.monotonic() - begun
            if took < _QUICK_S:
                size = min(_LARGEST_WINDOW, size * 2)
            elif took > _SLOW_S:
                size = max(1, size // 2)
            self._seen += len(window) - len(found)
            self._rest()
            yield from found

    def _bucket(self, name: str, label: int, *, above: int) -> None:
        after: bytes | None = None
        while not self._pace.stopped:
            look = partial(
                next_part,
                counter=name,
                bucket=label,
                after=after,
                above=above,
                rows=self._mover.size(disturbing=above > 0),
            )
            part = self._mover.run(look)
            if part is None:
                break
            self._mover.move(part)
            after = part.last
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
            unknown=tuple(self._unknown),
            seconds=time.monotonic() - self._began,
            finished=finished,
            share_done=1.0 if finished else min(1.0, self._seen / max(1, self._all)),
        )


def _sentence(done: Compacted, everything: bool) -> str:
    looked = "all buckets" if everything else f"buckets of the last {RECENT_DAYS} days"
    said = (
        f"{looked}: {done.rows_before:,} rows became {done.rows_after:,}"
        + mention(done.busy, BUSY)
        + mention(done.overflowing, OVERFLOWING)
        + mention(done.unknown, UNKNOWN)
    )
    return said if done.finished else f"{said}; stopped early, the next run goes on"

"""Compaction, for the job ``compact`` and for ``countersink compact``: which buckets and keys are
compacted, when and in which order, how many rows one query reads and one transaction moves, and the
sentence of the result.

In a closed bucket (its end is some time ago) all keys are compacted, and again after late events.
In an open bucket, keys with many rows are compacted, and some of the smaller keys that lie between
them. Keys whose rows others have locked stay as they are. Totals do not change, so the ledger gets
no postings. Compaction also adds up rows of the ledger: those of applications' slots that have not
changed for an hour go into the row of slot 0. A pass is one compaction of all that is selected. It
can be stopped or killed at any point; the next pass finds the rest.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Final, Self

from countersink.counting import ledger
from countersink.counting.counters.all_counters import names_of, require
from countersink.database.errors import UnknownZone
from countersink.database.session import Connect
from countersink.database.sql import day_label
from countersink.runtime.retry import Pace
from countersink.runtime.texts import plural
from countersink.schedules.jobs import Context, JobOutcome
from countersink.schedules.jobs.move import Mover, PassDone, open_tables
from countersink.schedules.jobs.ranges import counters, now_and_catalog, page

RECENT_DAYS: Final = 3
"""Number of days before today (UTC) whose buckets, and today's, the job ``compact`` reads. The job
``retention`` reads all buckets."""
DAY_S: Final = 86_400
_FIRST_BUCKET: Final = -2 * DAY_S
_LAST_BEFORE: Final = date(9999, 12, 28)
_GROUP: Final = 4096
_RECENT_GROUP: Final = 512
"""Number of counters whose buckets are read at once. ``_RECENT_GROUP`` is used where the query
reads one range of the index for each counter."""
_PAGE_ROWS: Final = 20_000
"""Number of rows that are read at once, at most. A bucket with more rows is not read: it is taken
to need work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """The scope and the pace of a compaction.

    Attributes:
        counter: the only counter to compact, together with its breakdowns; None for all counters.
        before: compact all keys of the buckets of days before this day (in the counter's time
            zone), both open and closed buckets, and no others. None to compact all keys of closed
            buckets, and the keys that ``threshold`` selects in open buckets.
        recent_days: compact only buckets that begin this number of days before today (UTC) or
            later; None for no such limit.
        grace_s: seconds from the end of a bucket until it counts as closed. Late events need this
            time.
        threshold: in an open bucket, a key is compacted if it has more rows than this, without slot
            0. A smaller key may be compacted, too, if it lies between two such keys.
        rows: about how many slot rows one transaction moves at first. Without conflicts, the number
            grows, up to eight times this, where all keys of a bucket are compacted. After
            conflicts, it becomes a quarter, but not less than a sixteenth of this.
        share: share of the time that is spent working, above 0 and at most 1; the rest is pause.
    """

    counter: str | None = None
    before: date | None = None
    recent_days: int | None = None
    grace_s: float = 3600.0
    threshold: int = 8
    rows: int = 2000
    share: float = 1.0


def compact(
    connect: Connect,
    options: CompactOptions,
    *,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[PassDone], object] | None = None,
) -> PassDone:
    """Make one pass that compacts all that ``options`` select, and return its result, in which
    ``finished`` is False if ``stop`` ended the pass. Totals are the same before, during and after
    the pass.

    Args:
        connect: opens sessions as :func:`countersink.schedules.jobs.move.open_tables` does.
        options: what is compacted, and how fast.
        stop: returns true once the pass should end. A call costs little.
        progress: called now and then with the result so far.

    Raises:
        UnknownCounter: ``options.counter`` was neither created nor ever counted.
        UnknownZone: this machine does not know a counter's time zone. This is raised at the end of
            the pass: the other counters are done, unless ``stop`` ended the pass.
        Unavailable: the server was away for a minute, or is away when the pass is to stop.
        StoreError: any other error of a query. What was committed stays done.
    """
    with Pass(connect, options, stop, progress) as one:
        one.compact()
        return one.end()


def job(context: Context) -> JobOutcome:
    """Compact buckets of today (UTC) and of the ``RECENT_DAYS`` days before it, at the scheduled
    pace. The job ``retention`` compacts buckets of all days."""
    options = scheduled(context, recent_days=RECENT_DAYS)
    done = compact(partial(open_tables, context.mysql_url), options, stop=context.stop)
    return done.outcome(
        f"buckets of the last {RECENT_DAYS} days: {plural(done.rows_before, 'row')} became"
        f" {done.rows_after:,}"
    )


def scheduled(context: Context, *, recent_days: int | None = None) -> CompactOptions:
    """Return the options of a pass of the job ``compact`` or ``retention``: all counters, at the
    pace that the run's options determine.

    Args:
        context: the argument of the job.
        recent_days: as in :class:`CompactOptions`.
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
    """One pass over the buckets of counters, for compaction and for rolling up. For use in one
    thread. It connects when it is made; the end of its ``with`` block closes the connection.

    Args:
        connect, options, stop, progress: the same as for :func:`compact`.

    Attributes:
        mover: moves the rows.
        pace: makes the pauses of the pass, and knows whether it is to stop.
        done: the result so far.
        now: the server's clock at the last :meth:`refresh`, in Unix seconds.
        catalog: the catalog at the last :meth:`refresh`.
    """

    def __init__(
        self,
        connect: Connect,
        options: CompactOptions,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[PassDone], object] | None = None,
    ) -> None:
        self._began = time.monotonic()
        self._options = options
        self._progress = progress
        self.pace = Pace(options.share, stop)
        self.mover = Mover(connect, self.pace, options.rows)
        self.done = self.mover.done
        self._unknown_zone: UnknownZone | None = None
        self.now, self.catalog = self.mover.run(now_and_catalog)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.mover.close()

    def refresh(self, *, anew: bool = False) -> None:
        """Read the server's clock. Read the catalog, too, if its version has changed or ``anew`` is
        True.

        Call this after reading buckets. Then the catalog is at least as new as the catalog of the
        worker that wrote the buckets.
        """
        known = None if anew else self.catalog
        self.now, self.catalog = self.mover.run(partial(now_and_catalog, known=known))

    def compact(self) -> None:
        """Compact all that the options select, and merge ledger rows. A stop ends this early."""
        names, size = self._names(), _GROUP
        start = end = None
        if self._options.counter is not None:
            start = _FIRST_BUCKET  # other counters may lie between a counter and its breakdowns
        if self._options.recent_days is not None:
            start, size = (self.now // DAY_S - self._options.recent_days) * DAY_S, _RECENT_GROUP
        if self._options.before is not None:
            # A bucket's label and its local day may lie a day apart.
            end = day_label(min(self._options.before, _LAST_BEFORE)) + 2 * DAY_S
        done, beyond = 0, None
        while done < len(names) and not self.pace.stopped:
            some = names[done : done + (size if beyond is None else 1)]
            found = self.mover.run(
                partial(
                    page,
                    counters=some,
                    catalog=self.catalog,
                    start=start if beyond is None else beyond,
                    end=end,
                    rows=_PAGE_ROWS,
                )
            )
            self.refresh()
            beyond = found.beyond
            for name, label, most in found.buckets:
                with self.defer_unknown_zone():
                    self._bucket(name, label, most)
            done += found.counters
            self.done.share = done / len(names)
            self._rest()
        while not self.pace.stopped and self.mover.run(ledger.merge):
            self._rest()

    @contextmanager
    def defer_unknown_zone(self) -> Iterator[None]:
        """Catch UnknownZone, which the ``with`` block raises if this machine does not know a
        counter's time zone. So the other counters are done first. :meth:`end` raises the first
        error that was caught."""
        try:
            yield
        except UnknownZone as error:
            self._unknown_zone = self._unknown_zone or error

    def end(self) -> PassDone:
        """Return the result of the whole pass, with its duration, and whether it was stopped.

        Raises:
            UnknownZone: this machine does not know a counter's time zone. Some or all buckets of
                this counter were left out; the other counters are done, unless the pass was
                stopped.
        """
        if self._unknown_zone is not None:
            raise self._unknown_zone
        self.done.seconds = time.monotonic() - self._began
        self.done.finished = not self.pace.stopped
        return self.done

    def _names(self) -> list[str]:
        name = self._options.counter
        if name is None:
            return self.mover.run(counters)
        self.mover.run(partial(require, name=name))
        return sorted([name, *self.mover.run(partial(names_of, counter=name))])

    def _bucket(self, name: str, label: int, most: int | None) -> None:
        """Compact one bucket, as the options say. A stop ends this early.

        If the option ``before`` is None, compact all keys of a closed bucket; in an open bucket,
        compact keys with more rows than the threshold, and some of the smaller keys between them.
        If ``before`` is a day, compact all keys of a bucket of an earlier day, and no keys of other
        buckets. A bucket of an unknown width is only noted in the result.

        Args:
            name: the counter of the bucket.
            label: the bucket's label.
            most: greatest number of rows, without slot 0, that a key of the bucket has; None if
                this number is unknown.
        """
        if self.pace.stopped:
            return
        try:
            all_keys = self._takes_all_keys(name, label)
        except LookupError:
            self.done.note(self.done.unknown, name, label)
            return
        above = 0 if all_keys else self._options.threshold
        moves = (all_keys or self._options.before is None) and (most is None or most > above)
        after: bytes | None = None
        while moves and not self.pace.stopped:
            after = self.mover.move_next(name, label, after, above=above)
            moves = after is not None
            self._rest()

    def _takes_all_keys(self, name: str, label: int) -> bool:
        scheme = self.catalog.scheme(name)
        if self._options.before is not None:
            return scheme.local_day(label) < self._options.before
        return scheme.ends_at(label) + self._options.grace_s <= self.now

    def _rest(self) -> None:
        self.pace.rest()
        if self._progress is not None:
            self._progress(self.done)

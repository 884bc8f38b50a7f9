"""Compaction, as a job and as ``countersink compact``: which buckets and keys are compacted, when
and in which order, sizes of a pass, the sentence of its result.

Closed buckets are compacted completely, again after late events; in open buckets, the keys with
many rows. Totals do not change, and so nothing is posted; ledger rows that applications have not
touched for an hour are folded into one. A pass can be stopped or killed at any point: the next pass
finds the rest.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Final, Self

from countersink.counting import ledger
from countersink.counting.counters.all_counters import counter_of, names_of, require
from countersink.database.errors import UnknownZone
from countersink.database.session import Connect
from countersink.database.sql import day_label
from countersink.runtime.retry import Pace
from countersink.runtime.texts import plural
from countersink.schedules.jobs import Context, JobOutcome
from countersink.schedules.jobs.move import Mover, PassDone, open_tables
from countersink.schedules.jobs.ranges import counters, now_and_catalog, page

RECENT_DAYS: Final = 3
"""Days whose buckets the job reads; ``retention`` reads all buckets."""
DAY_S: Final = 86_400
_FIRST_BUCKET: Final = -2 * DAY_S
_LAST_BEFORE: Final = date(9999, 12, 28)
_GROUP: Final = 4096
_RECENT_GROUP: Final = 512
"""Counters read at once; the second where each is a range of the index."""
_PAGE_ROWS: Final = 20_000
"""Rows read at once, at most, or one larger bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """Selection and pace of a compaction.

    Attributes:
        counter: only this counter and its breakdowns; None: all.
        before: only buckets of days before this day, open or closed; None: closed buckets, and the
            keys above the threshold in open ones.
        recent_days: leave out buckets from longer ago; None: none.
        grace_s: seconds after a bucket's end before it counts as closed: late events.
        threshold: rows of a key, without slot 0, above which it is compacted in an open bucket.
        rows: slot rows per transaction, or a few more; up to eight times as many in a closed bucket
            without conflicts, and far fewer with conflicts.
        share: of the time spent working; the rest is pause.
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
    """Compact all that is selected, once. Totals are equal before, during and after.

    Args:
        connect: makes sessions as :func:`countersink.schedules.jobs.move.open_tables` does.
        options: selection and pace.
        stop: true once the pass should end; cheap to call.
        progress: called now and then with the result so far.

    Raises:
        UnknownCounter: nothing was ever counted as ``options.counter``.
        Unavailable: the server is away, or was lost several times.
        StoreError: as any query. Committed work stays done.
    """
    with Pass(connect, options, stop, progress) as one:
        one.compact()
        return one.end()


def job(context: Context) -> JobOutcome:
    """Compact recent buckets, at the scheduled pace; ``retention`` compacts all."""
    options = scheduled(context, recent_days=RECENT_DAYS)
    done = compact(partial(open_tables, context.mysql_url), options, stop=context.stop)
    return done.outcome(
        f"buckets of the last {RECENT_DAYS} days: {plural(done.rows_before, 'row')} became"
        f" {done.rows_after:,}"
    )


def scheduled(context: Context, *, recent_days: int | None = None) -> CompactOptions:
    """The options of the jobs: all counters, at the scheduled pace.

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
    """A pass over the buckets; a context manager, for one thread.

    Args:
        connect, options, stop, progress: as for :func:`compact`.

    Attributes:
        mover: moves the rows.
        pace: of the pass.
        done: the result so far.
        now: Unix seconds on the server's clock at the last :meth:`refresh`.
        catalog: of that time.
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
        """Read the clock, and the catalog if its version changed, or ``anew``. To be called after
        buckets were read: the catalog of their writers exists by then.
        """
        known = None if anew else self.catalog
        self.now, self.catalog = self.mover.run(partial(now_and_catalog, known=known))

    def compact(self) -> None:
        """Compact all that is selected."""
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
        self._fold()

    @contextmanager
    def defer_unknown_zone(self) -> Iterator[None]:
        """Keep the error of a counter whose time zone is unknown on this machine for :meth:`end`,
        after the other counters.
        """
        try:
            yield
        except UnknownZone as error:
            self._unknown_zone = self._unknown_zone or error

    def end(self) -> PassDone:
        """The result of the whole pass.

        Raises:
            UnknownZone: of a counter that was left out; the others are done.
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
        """Compact a closed bucket, or the keys above the threshold of an open one."""
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

    def _fold(self) -> None:
        """Fold ledger rows of applications that have been idle for long."""
        for name in self.mover.run(ledger.foldable):
            after: int | None = -1 if self._options.counter in (None, counter_of(name)) else None
            while after is not None and not self.pace.stopped:
                after = self.mover.run(partial(ledger.fold, counter=name, after=after))
                self._rest()

    def _rest(self) -> None:
        self.pace.rest()
        if self._progress is not None:
            self._progress(self.done)

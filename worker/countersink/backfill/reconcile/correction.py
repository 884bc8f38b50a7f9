"""Corrections of a reconcile: ``correct_day`` sets the totals of a day's keys to the sums of the
sources, and writes the differences to ``backfill_correction``; ``compare`` only finds them.

All buckets of a key on a day are set in one transaction. Buckets in the run's resolution get the
sums of the sources (the *truth*). The day's other buckets get 0: they may have rolled-up counts.

At REPEATABLE READ, SELECT … FOR UPDATE locks the rows of a range of keys, in all slots, and the
gaps between them. Until COMMIT nothing is counted, compacted or deleted there: the difference is
exact. Other nodes of a Galera cluster do not see these locks. Their earlier commits are waited for
(``wsrep_sync_wait``) and summed; their later increments are added on top. Two reconciles of a
counter lock its row in turn: the second one's totals include the first one's corrections. A range
waits a second for locks; then it is split, so that other transactions do not wait behind it.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import date
from typing import Final

from countersink.backfill import history
from countersink.backfill.count.sources import lock_counter
from countersink.backfill.count.targets import refuse_breakdowns
from countersink.backfill.errors import RolledUpMeanwhile
from countersink.backfill.history import LineCounts
from countersink.backfill.options import BackfillOptions, Drift, Progress
from countersink.backfill.reconcile.scope import DayBuckets, choose, each_day
from countersink.counting.apply import cells
from countersink.counting.apply.amounts import Amounts
from countersink.counting.counters.all_counters import refuse_tracked
from countersink.counting.counters.buckets import Resolution
from countersink.database.errors import Conflict
from countersink.database.session import Connect, Session
from countersink.database.sessions import KeptSession, open_tables
from countersink.database.sql import (
    KEYS_PER_STATEMENT,
    LABEL,
    label_time,
    labels_where,
    marks,
    parts,
    width_number,
)
from countersink.runtime.limits import key_text

ROWS: Final = 1000
"""Number of rows of truth and counter in a range of keys; the rows of one key may be more."""
ATTEMPTS: Final = 30
"""Number of attempts in a row, a second each, at rows that other transactions hold."""
LOCK_WAIT_S: Final = 1
"""Seconds that a correction waits for a lock: other transactions wait behind it."""
READ_TIMEOUT_S: Final = 120.0
"""Seconds that summing up a range may take: one key may have very many rows."""
LISTED: Final = 10_000
"""Maximum number of differences that a dry run keeps."""
_LONGEST_PAUSE_S: Final = 0.2
GREATEST_KEY: Final = b"\xff" * 255
"""The greatest key that there can be."""
_ROWS: Final = "counter_slot FORCE INDEX (PRIMARY)"


@dataclass(frozen=True, slots=True)
class DayKeys:
    """A range of the keys of a day.

    Attributes:
        day: the day.
        after: the range begins after this key; None if it begins with the least key.
        last: the range ends with this key, and includes it.
    """

    day: date
    after: bytes | None
    last: bytes

    def where(self) -> tuple[str, list[object]]:
        """Return an SQL condition for the keys alone (not for their day), and its values."""
        if self.after is None:
            return "counter_key <= %s", [self.last]
        return "counter_key > %s AND counter_key <= %s", [self.after, self.last]


@dataclass(frozen=True, slots=True, order=True)
class KeyDifference:
    """A cell (label of its bucket, key) whose total, ``had``, is not ``should_be``, the truth."""

    label: int
    key: bytes
    had: int
    should_be: int


@dataclass(frozen=True, slots=True)
class Correction:
    """The corrections of one run of a reconcile, made for one range of keys at a time.

    Attributes:
        run: number of the run.
        counter: name of the counter.
        resolution: width of the buckets of the truth (the sums of the sources).
        delete_missing: True to set a key to 0 if no source has it.
    """

    run: int
    counter: str
    resolution: Resolution
    delete_missing: bool

    def buckets(self, session: Session, lock: str = "") -> DayBuckets:
        """Return the buckets of the counter's days. ``lock``: SQL clause to lock the scheme."""
        return DayBuckets.read(session, self.counter, self.resolution, lock=lock)

    def ranges(self, session: Session, keys: DayKeys, rows: int) -> list[DayKeys]:
        """Split a range into ranges of about ``rows`` rows, counting rows of the truth and the
        counter. Without ``delete_missing``, rows of keys that no source has are not counted. The
        result is empty if there are no rows to count. Locks nothing."""
        labels, values = labels_where(self.buckets(session).labels(keys.day))
        among, ends = keys.where()
        where, args = f"{labels} AND {among}", [*values, *ends]
        known = "" if self.delete_missing else " HAVING SUM(said) > 0"
        found = session.query(
            "SELECT MAX(counter_key) FROM (SELECT counter_key,"
            f" (SUM(COUNT(*)) OVER (ORDER BY counter_key) - 1) DIV {rows:d} AS place FROM"
            f" (SELECT counter_key, 1 AS said FROM backfill_correction WHERE run = %s AND {where}"
            f" UNION ALL SELECT counter_key, 0 FROM {_ROWS} WHERE counter = %s AND {where})"
            f" AS cells GROUP BY counter_key{known}) AS places GROUP BY place ORDER BY place",
            (self.run, *args, self.counter, *args),
        )
        lasts = [bytes(last) for (last,) in found]
        return [
            DayKeys(keys.day, after, last)
            for after, last in zip([keys.after, *lasts], lasts, strict=False)
        ]

    def correct(self, session: Session, keys: DayKeys) -> None:
        """Set the totals of a range of keys, in all buckets of their day; committed on return. Does
        nothing if an earlier call has done it.

        Args:
            session: session at REPEATABLE READ, outside a transaction.
            keys: the range.

        Raises:
            RolledUpMeanwhile: the day can no longer be set; nothing was done.
            BackfillError: the run has ended, or the counter has breakdowns.
            TrackedCounter: the counter is the row count of a tracked table.
            Conflict: another transaction holds a row; nothing was done.
            Unavailable: the outcome is unknown: call it again.
        """
        counter = self.counter
        with session.transaction():
            lock_counter(session, counter)
            # Retention cannot add widths to the scheme meanwhile, and locks the rows that it moves.
            buckets = self.buckets(session, " LOCK IN SHARE MODE")
            labels = buckets.labels(keys.day)
            # By an earlier attempt with unknown outcome. Checked under the counter's lock, which
            # that attempt holds as long as the server has not ended it.
            if self._was_corrected(session, labels, keys):
                return
            refuse_tracked(session, counter)
            refuse_breakdowns(session, counter)
            if why := buckets.left_out(session, keys.day):
                raise RolledUpMeanwhile(why)
            found = self.differences(session, labels, keys)
            amounts = Amounts()
            for one in found:
                amounts.add(counter, one.label, key_text(one.key), one.should_be - one.had)
            if found:
                cells.add(session, cells.slot_of(session), amounts)
                self._insert_corrections(session, found)
            changed = LineCounts(amount=sum(one.should_be - one.had for one in found))
            history.record(session, self.run, changed, corrections=len(found))

    def differences(
        self, session: Session, labels: Iterable[int], keys: DayKeys
    ) -> list[KeyDifference]:
        """Return the cells whose total is not the truth, ordered by bucket and key. Without
        ``delete_missing``, keys that no source has are left out. Locks the range's rows of the
        counter until the transaction ends.

        Args:
            session: session in a transaction.
            labels: labels of all buckets of the day.
            keys: the range.
        """
        buckets, values = labels_where(labels)
        among, ends = keys.where()
        where, args = f"{buckets} AND {among}", (*values, *ends)
        had = session.query(
            f"SELECT {LABEL}, counter_key, SUM(amount) FROM {_ROWS} WHERE counter = %s AND {where}"
            " GROUP BY bucket, width, counter_key FOR UPDATE",
            (self.counter, *args),
        )
        truth = session.query(
            f"SELECT {LABEL}, counter_key, should_be FROM backfill_correction"
            f" WHERE run = %s AND {where}",
            (self.run, *args),
        )
        should_be = {(label, key): amount for label, key, amount in truth}
        return sorted(_differences(had, should_be, delete_missing=self.delete_missing))

    def _was_corrected(self, session: Session, labels: Iterable[int], keys: DayKeys) -> bool:
        buckets, values = labels_where(labels)
        among, ends = keys.where()
        return bool(
            session.query(
                "SELECT 1 FROM backfill_correction"
                f" WHERE run = %s AND {buckets} AND {among} AND had IS NOT NULL LIMIT 1",
                (self.run, *values, *ends),
            )
        )

    def _insert_corrections(self, session: Session, found: list[KeyDifference]) -> None:
        session.insert_rows(
            "backfill_correction (run, bucket, width, counter_key, had, should_be)",
            [
                (
                    *(self.run, label_time(one.label), width_number(one.label)),
                    *(one.key, one.had, one.should_be),
                )
                for one in found
            ],
            ROWS,
            session.dialect.upsert_set("had"),
        )


def connect_for(mysql_url: str) -> Connect:
    """Return a function that opens sessions for corrections: at REPEATABLE READ, with short waits
    for locks; on a Galera cluster, they see all commits of other nodes."""

    def opened() -> Session:
        session = open_tables(
            mysql_url,
            isolation="REPEATABLE READ",
            read_timeout=READ_TIMEOUT_S,
            lock_wait=LOCK_WAIT_S,
        )
        # Wait for a lagging node of Galera: a commit of another node that is missing from the sum
        # would count on top of the correction.
        session.see_all_commits()
        return session

    return opened


def correct_day(
    keeper: KeptSession, correcting: Correction, day: date, *, stop: Callable[[], bool]
) -> bool:
    """Set the totals of a day's keys; return True. Return False if ``stop`` ended this early.

    Raises:
        RolledUpMeanwhile: the rest of the day can no longer be set.
        BackfillError, TrackedCounter: the run has ended, or the counter cannot be reconciled now.
        Conflict: other transactions lock a row for too long; corrections made so far stay.
        StoreError: MySQL failed.
    """
    rows = ROWS
    failed = 0
    ranges = keeper.run(correcting.ranges, DayKeys(day, None, GREATEST_KEY), rows)[::-1]
    while ranges and not stop():
        try:
            keeper.run(correcting.correct, ranges[-1])
        except Conflict as error:
            failed += 1
            if failed == ATTEMPTS:
                raise Conflict(
                    f"another transaction keeps rows of {correcting.counter} locked ({error}): end"
                    " it, then run this again to correct the rest",
                    code=error.code,
                ) from error
            rows = max(1, rows // 8)
            ranges += keeper.run(correcting.ranges, ranges.pop(), rows)[::-1]
            time.sleep(random.uniform(0.0, _LONGEST_PAUSE_S))
        else:
            ranges.pop()
            rows, failed = ROWS, 0
    return not ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """The result of a reconcile, or of its dry run.

    Attributes:
        corrections: number of cells whose total differed from the sum of the sources.
        amount: sum of the corrections.
        notices: sentences for users about days left out and rejected lines.
        finished: False if it was stopped before its end.
        drift: the first :data:`LISTED` differences, if this was a dry run; else empty.
    """

    corrections: int = 0
    amount: int = 0
    notices: Sequence[str] = ()
    finished: bool = True
    drift: tuple[Drift, ...] = ()


Truth = Mapping[int, Mapping[str, int]]
"""The sums of the sources: label of a bucket → key → amount."""


def compare(
    mysql_url: str,
    truth: Truth,
    options: BackfillOptions,
    resolution: Resolution,
    t0: int,
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    on_notice: Callable[[str], object] = lambda notice: None,
    stop: Callable[[], bool] = lambda: False,
) -> Corrected:
    """Return the corrections that a real run would make, computed in one snapshot. For other
    arguments, and the errors, see :func:`countersink.backfill.reconcile.correct`.

    Args:
        truth: the sums of the sources.
        resolution: width of the buckets in ``truth``.
        stop: called before each day; comparing ends early once it returns true.
    """
    corrections = amount = 0
    drift: list[Drift] = []
    finished = True
    with connect_for(mysql_url)() as session, session.transaction(snapshot=True):
        buckets = DayBuckets.read(session, options.counter, resolution)
        chosen, notices = choose(session, buckets, options, t0)
        for notice in notices:
            on_notice(notice)
        for day in each_day(chosen, on_progress):
            if stop():
                finished = False
                break
            listed: list[KeyDifference] = []
            labels = buckets.labels(day)
            should_be = {
                (label, key.encode()): amount
                for label in labels
                for key, amount in truth.get(label, {}).items()
            }
            had = _stored_totals(session, options, labels, {key for _, key in should_be})
            for one in _differences(had, should_be, delete_missing=options.delete_missing):
                corrections += 1
                amount += one.should_be - one.had
                if len(drift) + len(listed) < LISTED:
                    listed.append(one)
            drift += [Drift.make(day, *astuple(one)) for one in sorted(listed)]
    return Corrected(
        corrections=corrections,
        amount=amount,
        notices=notices,
        finished=finished,
        drift=tuple(drift),
    )


def _stored_totals(
    session: Session, options: BackfillOptions, labels: Sequence[int], keys: Iterable[bytes]
) -> Iterator[tuple[int, bytes, int]]:
    """Iterate over a day's (label, key, total); without ``delete_missing``, only of ``keys``."""
    of_day, times = set(labels), sorted(map(label_time, labels))
    some = [()] if options.delete_missing else parts(sorted(keys), KEYS_PER_STATEMENT)
    for part in some:
        index, among = "PRIMARY", ""
        if part:
            index, among = "by_key", f" AND counter_key IN ({marks(part)})"
        for row in session.stream(
            f"SELECT {LABEL}, counter_key, SUM(amount) FROM counter_slot FORCE INDEX ({index})"
            f" WHERE counter = %s AND bucket BETWEEN %s AND %s{among}"
            " GROUP BY bucket, counter_key, width",
            (options.counter, times[0], times[-1], *part),
        ):
            if row[0] in of_day:
                yield row


def _differences(
    had: Iterable[tuple[int, bytes, int]],
    truth: dict[tuple[int, bytes], int],
    *,
    delete_missing: bool,
) -> Iterator[KeyDifference]:
    """Iterate over the differences of a day. Where ``truth`` has a key in any bucket, the
    key's total should be 0 in the buckets for which ``truth`` has none.

    Args:
        had: label, key and total of each cell in the tables.
        truth: (label, key) → sum of the sources; cells of ``had`` are removed from it.
        delete_missing: True if all other keys should be 0, too.
    """
    known = {key for _, key in truth}
    for label, key, before in had:
        after = truth.pop((label, key), 0)
        if before != after and (delete_missing or key in known):
            yield KeyDifference(label, key, before, after)
    for (label, key), after in truth.items():
        if after:
            yield KeyDifference(label, key, 0, after)

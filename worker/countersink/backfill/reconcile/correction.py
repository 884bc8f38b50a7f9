"""Sets the keys of a day to what the sources say: rows per transaction (``ROWS``), lock waits,
tries and the errors after them, what was corrected (``backfill_correction``); ``--delete-missing``;
``--dry-run`` of a reconcile.

What is set is the total of a key and day. It stands in the buckets that the sources were read in;
in the other ones of that day, of whatever width, the key becomes 0, in the same transaction: so it
does not matter which of them are rolled up to wider ones meanwhile.

At REPEATABLE READ the locking read takes the rows of a range, in all slots, and the gaps between
them: until the COMMIT nobody counts, compacts or deletes there, so what is added is what was
lacking. What is counted after it is on top. On other nodes of Galera no lock of ours holds anybody
up: what was committed there before the correction begins is waited for (``wsrep_sync_wait``) and in
the sum; what is committed there later is on top. Two reconciles of a counter hold its row one after
the other: the second sums up what the first has added.

Rows that others hold are waited for, for a second; then fewer keys are tried, as nobody is to wait
behind who waits.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import date
from typing import Final

from countersink.backfill import history
from countersink.backfill.count.sources import hold_counter
from countersink.backfill.count.targets import refuse_breakdowns, refuse_tracked
from countersink.backfill.errors import RolledUpMeanwhile
from countersink.backfill.history import LineCounts
from countersink.backfill.options import BackfillOptions, Drift, Progress
from countersink.backfill.reconcile.scope import DayBuckets, choose, each_day
from countersink.counting.apply import cells
from countersink.counting.apply.amounts import Amounts
from countersink.counting.apply.control import read_control
from countersink.counting.counters.buckets import ONE_DAY, Resolution
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
"""Rows of a range, of the truth and of the counter, to begin with; or those of one key."""
ATTEMPTS: Final = 30
"""How often in a row to try what others hold, for a second each."""
LOCK_WAIT_S: Final = 1
"""Seconds that a correction waits for what others hold, as others wait behind it."""
READ_TIMEOUT_S: Final = 120.0
"""Seconds that summing up a day may take, where one key has very many rows."""
LISTED: Final = 10_000
"""Differences that are kept."""
_LONGEST_PAUSE_S: Final = 0.2
GREATEST: Final = b"\xff" * 255
"""No key is greater."""
_ROWS: Final = "counter_slot FORCE INDEX (PRIMARY)"


@dataclass(frozen=True, slots=True)
class DayKeys:
    """A range of the keys of a day.

    Attributes:
        day: which.
        after: they are greater than this one; None: there is no such end.
        last: the greatest of them.
    """

    day: date
    after: bytes | None
    last: bytes

    def where(self) -> tuple[str, list[object]]:
        """The condition for rows of these keys, and its values."""
        if self.after is None:
            return "counter_key <= %s", [self.last]
        return "counter_key > %s AND counter_key <= %s", [self.after, self.last]


@dataclass(frozen=True, slots=True, order=True)
class KeyDifference:
    """A key whose total in a bucket is not what the sources say."""

    label: int
    key: bytes
    had: int
    should_be: int


@dataclass(frozen=True, slots=True)
class Correction:
    """The corrections of one run of a reconcile.

    Attributes:
        run: its number.
        counter: which.
        resolution: of the buckets that its sources were read in.
        delete_missing: keys that the sources do not have go to zero.
    """

    run: int
    counter: str
    resolution: Resolution
    delete_missing: bool

    def buckets(self, session: Session, lock: str = "") -> DayBuckets:
        """The buckets that the counter's days have now."""
        return DayBuckets.read(session, self.counter, self.resolution, lock=lock)

    def ranges(self, session: Session, keys: DayKeys, rows: int) -> list[DayKeys]:
        """The keys of a range that have to be looked at, in ranges of about so many rows each, of
        the truth and of the counter together.

        Plain reads: they lock nothing.
        """
        labels, at = labels_where(self.buckets(session).of(keys.day))
        among, ends = keys.where()
        where, args = f"{labels} AND {among}", [*at, *ends]
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
        """Set the keys of a range in all buckets of their day; committed when it returns.

        Args:
            session: at REPEATABLE READ, outside a transaction.
            keys: the range.

        Raises:
            RolledUpMeanwhile: nothing was done, and the day is to be left as it is.
            BackfillError: the run is not running any more, or nobody may correct this counter.
            Conflict: somebody holds a row; nothing was done.
            Unavailable: it was done, or not: call it again.
        """
        counter = self.counter
        with session.transaction():
            read_control(session)
            hold_counter(session, counter)
            # No mover announces wider buckets meanwhile; and what it moves it holds, or waits for.
            buckets = self.buckets(session, " LOCK IN SHARE MODE")
            labels = buckets.of(keys.day)
            # By a transaction whose outcome is not known. Under that lock: one of ours that the
            # server is still about to end holds it.
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
                self._write_down(session, found)
            changed = LineCounts(amount=sum(one.should_be - one.had for one in found))
            history.record(session, self.run, changed, corrections=len(found))

    def differences(
        self, session: Session, labels: Iterable[int], keys: DayKeys
    ) -> list[KeyDifference]:
        """What differs in a range, in the order of buckets and keys; it stays so until the
        transaction ends.

        Args:
            session: in a transaction.
            labels: of all buckets of the day.
            keys: the range.
        """
        buckets, at = labels_where(labels)
        among, ends = keys.where()
        where, args = f"{buckets} AND {among}", (*at, *ends)
        had = session.query(
            f"SELECT {LABEL}, counter_key, SUM(amount) FROM {_ROWS} WHERE counter = %s AND {where}"
            " GROUP BY bucket, width, counter_key FOR UPDATE",
            (self.counter, *args),
        )
        said = session.query(
            f"SELECT {LABEL}, counter_key, should_be FROM backfill_correction"
            f" WHERE run = %s AND {where}",
            (self.run, *args),
        )
        should_be = {(label, key): amount for label, key, amount in said}
        return sorted(_differing(had, should_be, delete_missing=self.delete_missing))

    def _was_corrected(self, session: Session, labels: Iterable[int], keys: DayKeys) -> bool:
        buckets, at = labels_where(labels)
        among, ends = keys.where()
        return bool(
            session.query(
                "SELECT 1 FROM backfill_correction"
                f" WHERE run = %s AND {buckets} AND {among} AND had IS NOT NULL LIMIT 1",
                (self.run, *at, *ends),
            )
        )

    def _write_down(self, session: Session, found: list[KeyDifference]) -> None:
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
    """How to get sessions as correcting needs them."""

    def opened() -> Session:
        session = open_tables(
            mysql_url,
            isolation="REPEATABLE READ",
            read_timeout=READ_TIMEOUT_S,
            lock_wait=LOCK_WAIT_S,
        )
        # A node of Galera that lags is waited for; else what another one has committed already
        # would be missing from the sum, and count on top of the correction.
        session.read_all()
        return session

    return opened


def said_of(session: Session, run: int, chosen: Iterable[date]) -> list[date]:
    """The days of those chosen of which the sources may say something."""
    # A loose scan: not a row of a bucket but its first is looked at.
    found = session.query(
        "SELECT DISTINCT DATE(bucket) FROM (SELECT DISTINCT run, bucket FROM backfill_correction"
        " WHERE run = %s) AS buckets",
        (run,),
    )
    # In UTC: a local day has hours of the one before it, or of the one after it.
    near = {day + number * ONE_DAY for (day,) in found for number in (-1, 0, 1)}
    return [day for day in chosen if day in near]


def correct_day(
    keeper: KeptSession, correcting: Correction, day: date, *, stop: Callable[[], bool]
) -> bool:
    """Set all keys of a day; False where it was told to stop.

    Raises:
        RolledUpMeanwhile: the rest of it is to be left as it is.
        BackfillError: as :meth:`Correction.correct`.
        Conflict: others held a row all the time. What was corrected is corrected.
        StoreError: as any query.
    """
    rows = ROWS
    failed = 0
    left = keeper.run(correcting.ranges, DayKeys(day, None, GREATEST), rows)[::-1]
    while left and not stop():
        try:
            keeper.run(correcting.correct, left[-1])
        except Conflict as error:
            failed += 1
            if failed == ATTEMPTS:
                raise Conflict(
                    f"another transaction holds rows of {correcting.counter} all the time"
                    f" ({error}): end it, and run this again, which corrects what is left",
                    code=error.code,
                ) from error
            rows = max(1, rows // 8)
            left += keeper.run(correcting.ranges, left.pop(), rows)[::-1]
            time.sleep(random.uniform(0.0, _LONGEST_PAUSE_S))
        else:
            left.pop()
            rows, failed = ROWS, 0
    return not left


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """What a reconcile corrected, or would correct.

    Attributes:
        corrections: (key, bucket) that differed; they are in ``backfill_correction``.
        amount: what was added to the totals in all.
        notices: for people, a sentence each: what was left out, and why.
        finished: False where it was told to stop.
        drift: the first of what would be corrected.
    """

    corrections: int = 0
    amount: int = 0
    notices: Sequence[str] = ()
    finished: bool = True
    drift: tuple[Drift, ...] = ()


Said = Mapping[int, Mapping[str, int]]
"""What sources say: bucket's label → key → amount."""


def compare(
    mysql_url: str,
    said: Said,
    options: BackfillOptions,
    resolution: Resolution,
    t0: int,
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    on_notice: Callable[[str], object] = lambda notice: None,
    stop: Callable[[], bool] = lambda: False,
) -> Corrected:
    """What correcting would do, in one snapshot; for dry runs.

    Args:
        said: what the sources say, in all.
        resolution: of the buckets that they were read in.

    Raises:
        BackfillError, StoreError: as :func:`countersink.backfill.reconcile.correct`.
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
            listed: list[KeyDifference] = []
            labels = buckets.of(day)
            should_be = {
                (label, key.encode()): amount
                for label in labels
                for key, amount in said.get(label, {}).items()
            }
            had = _had(session, options, labels, {key for _, key in should_be})
            for one in _differing(had, should_be, delete_missing=options.delete_missing):
                corrections += 1
                amount += one.should_be - one.had
                if len(drift) + len(listed) < LISTED:
                    listed.append(one)
            drift += [Drift.of(day, *astuple(one)) for one in sorted(listed)]
            if stop():
                finished = False
                break
    return Corrected(
        corrections=corrections,
        amount=amount,
        notices=notices,
        finished=finished,
        drift=tuple(drift),
    )


def _had(
    session: Session, options: BackfillOptions, labels: Sequence[int], keys: Iterable[bytes]
) -> Iterator[tuple[int, bytes, int]]:
    """What is in the buckets of a day: label, key and amount; of these keys, or of all."""
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


def _differing(
    had: Iterable[tuple[int, bytes, int]],
    said: dict[tuple[int, bytes], int],
    *,
    delete_missing: bool,
) -> Iterator[KeyDifference]:
    """What differs on a day. Of a key of which the sources say something they say 0 where they say
    nothing.

    Args:
        had: label, key and amount that were counted.
        said: what the sources say by label and key; what was there is taken out of it.
        delete_missing: of other keys they say 0, too.
    """
    known = {key for _, key in said}
    for label, key, before in had:
        after = said.pop((label, key), 0)
        if before != after and (delete_missing or key in known):
            yield KeyDifference(label, key, before, after)
    for (label, key), after in said.items():
        if after:
            yield KeyDifference(label, key, 0, after)

"""Sets the keys of a bucket to what the sources say: keys per transaction (``ROWS``), lock waits,
tries and the errors after them, drift in ``backfill_drift``; ``--delete-missing``; ``--dry-run`` of
a reconcile.

At REPEATABLE READ the locking read takes the rows of a range, in all slots, and the gaps between
them: until the COMMIT nobody counts, compacts or deletes there, so what is added is what was
lacking. What is counted after it is on top. On other nodes of Galera no lock of ours holds anybody
up: a transaction there that counts or deletes the counter's keys, and that is not in the sum, and
the correction are not both committed. Two reconciles of a counter hold its row of
``backfill_counter`` one after the other: the second sums up what the first has added.

Rows that others hold are waited for, for a second; then fewer keys are tried, as nobody is to wait
behind who waits.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from countersink.backfill import run_state
from countersink.backfill.count.targets import (
    complete_truth,
    refuse_breakdowns,
    refuse_tracked,
    require_policies,
    truth_labels,
)
from countersink.backfill.errors import BackfillError, RolledUpMeanwhile
from countersink.backfill.history import Drift
from countersink.backfill.options import BackfillOptions, Progress
from countersink.backfill.reconcile.scope import Chosen, RolledUpTo, choose
from countersink.runtime.limits import key_text
from countersink.store.apply import cells
from countersink.store.apply.amounts import Amounts
from countersink.store.apply.control import read_control
from countersink.store.connection import Connect, Session
from countersink.store.errors import Conflict
from countersink.store.in_app import settings_version
from countersink.store.sessions import PatientSession, open_tables
from countersink.store.sql import label_time
from countersink.store.totals.views import View

ROWS: Final = 1000
"""Rows of a range, of the truth or of the counter, to begin with."""
ATTEMPTS: Final = 30
"""How often in a row to try what others hold, for a second each."""
LOCK_WAIT_S: Final = 1
"""Seconds that a correction waits for what others hold, as others wait behind it."""
READ_TIMEOUT_S: Final = 120.0
"""Seconds that summing up a bucket may take, where one key has very many rows."""
LISTED: Final = 10_000
"""Differences that are kept."""
_LONGEST_PAUSE_S: Final = 0.2
_ROWS: Final = "counter_slot FORCE INDEX (PRIMARY)"
_IN_RANGE: Final = "counter_key >= %s AND counter_key <= %s"


@dataclass(frozen=True, slots=True)
class BucketKeys:
    """A range of keys of a bucket, both ends included."""

    bucket: int
    first: bytes
    last: bytes

    @property
    def args(self) -> tuple[object, ...]:
        """Bucket, first and last key, as the tables have them."""
        return label_time(self.bucket), self.first, self.last


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key whose total is not what the sources say."""

    key: bytes
    had: int
    should_be: int


@dataclass(slots=True)
class Correction:
    """The corrections of one run of a reconcile.

    Attributes:
        run: its number.
        view: the counter's buckets.
        t0: as in :func:`countersink.backfill.reconcile.scope.choose`.
        delete_missing: keys that the sources do not have go to zero.
        version: of the policies that were last looked at.
    """

    run: int
    view: View
    t0: int
    delete_missing: bool
    version: int = -1

    def next_range(
        self, session: Session, bucket: int, after: bytes | None, rows: int
    ) -> BucketKeys | None:
        """The next keys of a bucket that have to be looked at; None if there are none.

        Plain reads: they lock nothing.
        """
        at: list[object] = [label_time(bucket)]
        beyond = ""
        if after is not None:
            beyond, at = " AND counter_key > %s", [*at, after]
        said = session.query(
            "SELECT counter_key FROM backfill_truth WHERE run = %s AND bucket = %s"
            f"{beyond} ORDER BY counter_key LIMIT %s",
            (self.run, *at, rows),
        )
        first = bytes(said[0][0]) if said else None
        if self.delete_missing:
            there = session.query(
                f"SELECT counter_key FROM {_ROWS} WHERE counter = %s AND bucket = %s"
                f"{beyond} ORDER BY counter_key LIMIT 1",
                (self.view.counter, *at),
            )
            if there:
                least = bytes(there[0][0])
                first = least if first is None else min(first, least)
        if first is None:
            return None
        ends = [bytes(said[-1][0])] if len(said) == rows else []
        page = session.query(
            f"SELECT counter_key FROM {_ROWS} WHERE counter = %s AND bucket = %s"
            " AND counter_key >= %s ORDER BY counter_key, slot LIMIT 1 OFFSET %s",
            (self.view.counter, label_time(bucket), first, rows - 1),
        )
        ends += [bytes(key) for (key,) in page]
        if not ends:
            # All that is left. Without delete_missing nothing behind the last of the truth matters.
            ends = [max(bytes(said[-1][0]) if said else first, self._last(session, bucket, first))]
        return BucketKeys(bucket, first, min(ends))

    def correct(self, session: Session, keys: BucketKeys, *, again: bool = False) -> None:
        """Set the keys of a range; committed when it returns.

        Args:
            session: at REPEATABLE READ, outside a transaction.
            keys: the range.
            again: it may have been done before, by a transaction whose outcome is not known: look
                at what was written down first.

        Raises:
            RolledUpMeanwhile: nothing was done, and the bucket is to be left as it is.
            BackfillError: the run is not running any more, or nobody may correct this counter.
            Conflict: somebody holds a row; nothing was done.
            Unavailable: it was done, or not.
        """
        counter = self.view.counter
        with session.transaction():
            session.query(
                "SELECT counter FROM backfill_counter WHERE counter = %s FOR UPDATE", (counter,)
            )
            # Under that lock: a transaction of ours that the server is still about to end holds it.
            if again and self._was_corrected(session, keys):
                return
            self._check(session, keys.bucket)
            found = list(self.differences(session, keys, lock=" FOR UPDATE"))
            amounts = Amounts()
            for one in found:
                amounts.add(counter, keys.bucket, key_text(one.key), one.should_be - one.had)
            if found:
                # After the rows, as those do who count.
                settings_version.write_fences(session, counter)
                cells.add(session, cells.slot_of(session), amounts)
                self._write_down(session, keys.bucket, found)
            self._note(session, found)

    def differences(
        self, session: Session, keys: BucketKeys, *, lock: str = ""
    ) -> Iterator[KeyDifference]:
        """What differs in a range, in the order of the keys.

        Args:
            session: in a transaction, so that both reads see the same.
            keys: the range.
            lock: as a locking read.
        """
        had = _sums(
            session.query(
                f"SELECT counter_key, SUM(amount) FROM {_ROWS}"
                f" WHERE counter = %s AND bucket = %s AND {_IN_RANGE} GROUP BY counter_key{lock}",
                (self.view.counter, *keys.args),
            )
        )
        said = _sums(
            session.query(
                "SELECT counter_key, amount FROM backfill_truth"
                f" WHERE run = %s AND bucket = %s AND {_IN_RANGE}",
                (self.run, *keys.args),
            )
        )
        for key in sorted({*said, *had} if self.delete_missing else said):
            before, after = had.get(key, 0), said.get(key, 0)
            if before != after:
                yield KeyDifference(key, before, after)

    def _check(self, session: Session, bucket: int) -> None:
        """Hold the counter as it is, and see that its buckets are what they were."""
        counter = self.view.counter
        version = read_control(session).policy_version
        if version != self.version:
            refuse_tracked(session, counter)
            refuse_breakdowns(session, counter)
            require_policies(session, self.run, counter, self.t0)
        rolled_up = RolledUpTo.read(session, counter, lock=" LOCK IN SHARE MODE")
        if into := rolled_up.into(self.view, bucket):
            raise RolledUpMeanwhile(into)
        self.version = version

    def _was_corrected(self, session: Session, keys: BucketKeys) -> bool:
        return bool(
            session.query(
                "SELECT 1 FROM backfill_drift"
                f" WHERE run = %s AND bucket = %s AND {_IN_RANGE} LIMIT 1",
                (self.run, *keys.args),
            )
        )

    def _last(self, session: Session, bucket: int, least: bytes) -> bytes:
        if not self.delete_missing:
            return least
        ((last,),) = session.query(
            f"SELECT MAX(counter_key) FROM {_ROWS} WHERE counter = %s AND bucket = %s",
            (self.view.counter, label_time(bucket)),
        )
        return least if last is None else max(least, bytes(last))

    def _write_down(self, session: Session, bucket: int, found: list[KeyDifference]) -> None:
        at = label_time(bucket)
        values = ", ".join(["(%s, %s, %s, %s, %s)"] * len(found))
        session.execute(
            "INSERT INTO backfill_drift (run, bucket, counter_key, had, should_be)"
            f" VALUES {values}",
            [value for one in found for value in (self.run, at, one.key, one.had, one.should_be)],
        )

    def _note(self, session: Session, found: list[KeyDifference]) -> None:
        require_running(session, self.run)
        session.execute(
            "UPDATE backfill_run SET corrections = corrections + %s, amount = amount + %s,"
            " seen = UTC_TIMESTAMP(3) WHERE id = %s",
            (len(found), sum(one.should_be - one.had for one in found), self.run),
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
        # A node of Galera that lags is waited for; else corrections would lose the race again and
        # again.
        session.read_all()
        return session

    return opened


def completed(
    mysql_url: str, run: int, options: BackfillOptions, chosen: Chosen, stop: Callable[[], bool]
) -> Chosen:
    """Let the sources say what they have of a key in all buckets of its days; the buckets of which
    they say something, or all of them with ``delete_missing``.

    Raises:
        StoreError: as any statement.
    """
    if options.delete_missing:
        return chosen
    with PatientSession(partial(open_tables, mysql_url), stop).open() as link:
        for labels in chosen.by_day():
            if len(labels) > 1:
                link.run(complete_truth, run, chosen.view.counter, labels)
        said = frozenset(link.run(truth_labels, run))
    return replace(chosen, labels=tuple(label for label in chosen.labels if label in said))


def correct_bucket(
    keeper: PatientSession, correcting: Correction, bucket: int, *, stop: Callable[[], bool]
) -> bool:
    """Set all keys of a bucket; False where it was told to stop.

    Raises:
        RolledUpMeanwhile: the rest of it is to be left as it is.
        BackfillError: as :meth:`Correction.correct`.
        Conflict: others held a row all the time. What was corrected is corrected.
        StoreError: as any query.
    """
    after: bytes | None = None
    rows = ROWS
    failed = 0
    while not stop():
        look = partial(correcting.next_range, bucket=bucket, after=after, rows=rows)
        keys = keeper.run(look)
        if keys is None:
            return True
        try:
            _correct_once(keeper, correcting, keys)
        except Conflict as error:
            failed += 1
            if failed == ATTEMPTS:
                raise Conflict(
                    f"another transaction holds rows of {correcting.view.counter} all the time"
                    f" ({error}): end it, and run this again, which corrects what is left",
                    code=error.code,
                ) from error
            rows = max(1, rows // 8)
            time.sleep(random.uniform(0.0, _LONGEST_PAUSE_S))
        else:
            after = keys.last
            failed = 0
            rows = min(ROWS, rows * 2)
    return False


def require_running(session: Session, run: int) -> None:
    """Hold a run's row until the transaction ends, and see that it is running.

    Raises:
        BackfillError: somebody has ended or undone it.
    """
    state = run_state.state_of(session, run, lock=" FOR UPDATE")
    if state != "running":
        raise BackfillError(
            f"backfill {run} is {state} by now, so nothing more is corrected by it: run this again"
            " if that is wanted"
        )


def _correct_once(keeper: PatientSession, correcting: Correction, keys: BucketKeys) -> None:
    """Correct a range, and where the outcome is unknown look before it is tried again."""
    tried = False

    def work(session: Session) -> None:
        nonlocal tried
        again, tried = tried, True
        correcting.correct(session, keys, again=again)

    keeper.run(work)


def _sums(rows: list[tuple[Any, ...]]) -> dict[bytes, int]:
    return {bytes(key): int(amount) for key, amount in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """What a reconcile corrected, or would correct.

    Attributes:
        corrections: (key, bucket) that differed; they are in ``backfill_drift``.
        amount: what was added to the totals in all.
        notices: for people, a sentence each: what was left out, and why.
        finished: False where it was told to stop.
        drift: the first of what would be corrected.
    """

    corrections: int
    amount: int
    notices: tuple[str, ...] = ()
    finished: bool = True
    drift: tuple[Drift, ...] = ()


def compare(
    mysql_url: str,
    run: int,
    options: BackfillOptions,
    t0: int,
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    on_notice: Callable[[str], object] = lambda notice: None,
    stop: Callable[[], bool] = lambda: False,
) -> Corrected:
    """What correcting would do, in one snapshot; for dry runs.

    Raises:
        BackfillError, StoreError: as :func:`countersink.backfill.reconcile.correct`.
    """
    corrections = amount = 0
    drift: list[Drift] = []
    finished = True
    with connect_for(mysql_url)() as session:
        chosen = choose(session, run, options, t0)
    for notice in chosen.notices:
        on_notice(notice)
    chosen = completed(mysql_url, run, options, chosen, stop)
    with connect_for(mysql_url)() as session, session.transaction(snapshot=True):
        run_state.require_running(session, run)  # nobody has cleared away what it read
        work = Correction(run, chosen.view, t0, options.delete_missing)
        for label, found in _differences(session, work, chosen.each(on_progress)):
            corrections += len(found)
            amount += sum(one.should_be - one.had for one in found)
            drift += [_drift(chosen, label, one) for one in found[: LISTED - len(drift)]]
            if stop():
                finished = False
                break
    return Corrected(
        corrections=corrections,
        amount=amount,
        notices=chosen.notices,
        finished=finished,
        drift=tuple(drift),
    )


def _differences(
    session: Session, work: Correction, labels: Iterable[int]
) -> Iterator[tuple[int, list[KeyDifference]]]:
    """What differs, range by range."""
    for label in labels:
        after: bytes | None = None
        while (keys := work.next_range(session, label, after, ROWS)) is not None:
            yield label, list(work.differences(session, keys))
            after = keys.last


def _drift(chosen: Chosen, label: int, one: KeyDifference) -> Drift:
    return Drift(
        day=chosen.view.day(label),
        bucket=label_time(label),
        key=one.key.decode(errors="replace"),
        had=one.had,
        should_be=one.should_be,
    )

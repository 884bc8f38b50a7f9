"""Guards, which keep an entry from being counted twice, and the control row with its locks.

A guard is a row of ``applied_entry``. Guards are inserted and looked up. Pruning raises the
watermark, and deletes the guards of entries that were both first sent and applied before it. It is
refused while the clocks of MySQL and Redis differ by more than five minutes.

The control row has the watermark, the version of the catalog, strict mode, the default cap and the
default settings of counters. Every batch reads it under a share lock, and keeps this lock until its
transaction ends. Whoever changes the row takes the exclusive lock. So no transaction that has read
the old values can commit after the change.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from countersink.database.connection import LOCK_WAIT
from countersink.database.errors import Refused
from countersink.database.session import Session, rerun
from countersink.database.sql import NOW_MS, marks, parts

EXCLUSIVE_LOCK_WAIT: Final = 1
"""Seconds to wait for the exclusive lock. While somebody waits for it, no worker gets the share
lock."""
EXCLUSIVE_ATTEMPTS: Final = 20

Result = TypeVar("Result")


class CounterDefaults(NamedTuple):
    """The default settings of counters. A counter without a row in ``counter`` has these settings,
    and its row is inserted with them.

    Attributes:
        time_zone: IANA name of the time zone.
        resolution: width of the buckets in which events are counted.
        keep_steps: text of the steps of retention; None to keep all buckets for ever.
    """

    time_zone: str = "UTC"
    resolution: str = "day"
    keep_steps: str | None = None


BUILT_IN: Final = CounterDefaults()
"""The default settings of a new installation."""


@dataclass(frozen=True, slots=True)
class Control:
    """The values of the control row.

    Attributes:
        watermark: a time in Unix ms. If an entry was first sent before it, the entry's guard may
            have been deleted.
        now: time of the server's clock in Unix ms.
        catalog_version: version of the catalog; it grows with every change of the catalog.
        strict: True if strict mode is on: rows of counters that were neither created nor counted
            before are refused.
        max_keys: maximum number of keys per day of a counter without its own cap; None for any
            number.
        defaults: the default settings of counters.
    """

    watermark: int
    now: int
    catalog_version: int
    strict: bool
    max_keys: int | None
    defaults: CounterDefaults


def read_control(session: Session, lock: str = "LOCK IN SHARE MODE") -> Control:
    """Read the control row under a lock that lasts until the transaction ends.

    While the share lock is held, watermark and catalog do not change. So if an entry is not too old
    when the row is read, it is still not too old when its guard is inserted.

    Args:
        session: in a transaction. If ``lock`` is empty, it need not be in one.
        lock: SQL locking clause; an empty text reads without a lock.

    Raises:
        Refused: the row is missing.
    """
    rows = session.query(
        f"SELECT pruned_before, {NOW_MS}, catalog_version, strict, max_keys, time_zone, resolution,"
        f" keep_steps FROM control WHERE id = 1 {lock}"
    )
    if not rows:
        raise Refused(
            "the row of table control is missing: restore it, with its pruned_before, from a backup"
        )
    watermark, now, version, strict, max_keys, *defaults = rows[0]
    return Control(
        int(watermark), int(now), int(version), bool(strict), max_keys, CounterDefaults(*defaults)
    )


def exclusive(
    session: Session,
    work: Callable[[Control], Result],
    *,
    attempts: int = EXCLUSIVE_ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
    before: Callable[[], object] = lambda: None,
) -> Result:
    """Run ``work`` in a transaction that holds the exclusive lock on the control row. Commit, and
    return the result of ``work``.

    While a transaction waits for this lock, no other can read the row under a share lock. So an
    attempt waits for one second at most for each lock.

    Args:
        session: outside a transaction.
        work: gets the control row. It is run again after a conflict with another transaction.
        attempts: maximum number of attempts.
        pause: sleeps for the given seconds between attempts.
        before: called in the transaction before it locks the control row. Here it can take locks
            for which it may have to wait, without making others wait for the control row.

    Raises:
        Conflict: each attempt conflicted with other transactions, and was rolled back.
    """

    def attempt() -> Result:
        with session.transaction():
            before()
            return work(read_control(session, lock="FOR UPDATE"))

    with short_waits(session):
        return rerun(attempt, attempts=attempts, pause=pause)


def bump(session: Session) -> None:
    """Increase the version of the catalog, in the transaction that changes it. Each worker then
    reads the catalog again before its next batch.
    """
    session.execute("UPDATE control SET catalog_version = catalog_version + 1 WHERE id = 1")


def short_waits(session: Session) -> AbstractContextManager[None]:
    """Return a context manager. Within it, the session waits for a lock for one second at most,
    because other transactions wait for the locks that the session holds.
    """
    return session.variable("innodb_lock_wait_timeout", EXCLUSIVE_LOCK_WAIT, LOCK_WAIT)


IDS_PER_STATEMENT: Final = 1000
MAX_CLOCK_DIFFERENCE_MS: Final = 300_000
"""Maximum milliseconds by which the clocks of MySQL and Redis may differ; beyond, nothing is
pruned."""
_MAX_BIGINT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of :func:`prune`.

    Attributes:
        watermark: the watermark in Unix ms, raised or as before.
        deleted: number of deleted guards.
        finished: False if ``stop`` ended the pruning early; the next run deletes the rest.
    """

    watermark: int
    deleted: int
    finished: bool = True


def watermark(session: Session) -> int:
    """Return the watermark in Unix ms, read without a lock. If an entry was first sent before it,
    the entry's guard may have been deleted.
    """
    return read_control(session, lock="").watermark


def insert(session: Session, entries: Sequence[tuple[bytes, int]], control: Control) -> None:
    """Insert a guard for each entry, in the order of ids.

    This is a plain INSERT. It waits for another transaction that inserts the same id, and fails
    when that transaction has committed. (After a SELECT, or with INSERT IGNORE, both transactions
    would count the entry.)

    Args:
        session: in the transaction that counts the entries.
        entries: (id, at) of each entry; ``at`` is the time of its first sending in Unix ms.
        control: the control row, as read in this transaction.

    Raises:
        DuplicateKey: at least one guard exists. Roll back, and ask :func:`known` which ones.
    """
    # Not less than `at`: once this guard is pruned the watermark is above `at`, so the entry counts
    # as too old.
    least = max(control.now, control.watermark)
    guards = [(entry_id, min(max(at, least), _MAX_BIGINT)) for entry_id, at in sorted(entries)]
    session.insert_rows("applied_entry (entry_id, keep_from)", guards, IDS_PER_STATEMENT)


def known(session: Session, ids: Sequence[bytes]) -> set[bytes]:
    """Return those of ``ids`` that have a guard. Their entries were applied: counted, or stored as
    dead letters.
    """
    found: set[bytes] = set()
    for part in parts(sorted(ids), IDS_PER_STATEMENT):
        rows = session.query(
            f"SELECT entry_id FROM applied_entry WHERE entry_id IN ({marks(part)})", part
        )
        found.update(bytes(entry_id) for (entry_id,) in rows)
    return found


def prune(
    session: Session,
    *,
    keep_ms: int,
    now_ms: int,
    not_above_ms: int | None = None,
    chunk: int = 10_000,
    attempts: int = EXCLUSIVE_ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
    stop: Callable[[], bool] = lambda: False,
    rest: Callable[[], object] = lambda: None,
) -> Pruned:
    """Raise the watermark to ``keep_ms`` milliseconds ago, and delete the guards of entries that
    were both first sent and applied before the watermark.

    The new watermark is committed before guards are deleted. From then on, entries first sent
    before it are refused as too old, so their guards are not needed any more.

    "Now" is the earlier of two clocks: that of Redis, which dates entries, and that of MySQL. The
    watermark can never be lowered. If it followed a clock that is ahead, all entries would be too
    old until the right time reaches the watermark.

    Args:
        session: at READ COMMITTED, outside a transaction.
        keep_ms: milliseconds for which guards are kept.
        now_ms: time of Redis's clock in Unix ms.
        not_above_ms: first sending, in Unix ms, of the oldest entry that is still in a stream or
            pending; the watermark stays at or below it. None if there is no such entry.
        chunk: maximum number of rows that one transaction deletes.
        attempts: maximum number of attempts to get the lock on the control row.
        pause: sleeps for the given seconds between attempts.
        stop: called between transactions; if it returns True, pruning ends early.
        rest: called between transactions, to let others work.

    Raises:
        Conflict: workers held the control row at each attempt, and nothing was pruned; or the
            deletion conflicted with others, and the next call deletes the rest.
        Refused: the clocks differ by more than :data:`MAX_CLOCK_DIFFERENCE_MS`; nothing was pruned.
        ValueError: ``keep_ms`` is negative, or ``chunk`` is below 1.
    """
    if keep_ms < 0 or chunk < 1:
        raise ValueError("keep_ms must be at least 0, and chunk at least 1")
    before = exclusive(
        session,
        partial(_move_watermark, session, keep_ms, now_ms, not_above_ms),
        attempts=attempts,
        pause=pause,
    )
    deleted = 0
    delete = "DELETE FROM applied_entry WHERE keep_from < %s ORDER BY keep_from LIMIT %s"
    while True:
        rows = rerun(partial(session.execute, delete, (before, chunk)), pause=pause)
        deleted += rows
        if rows < chunk or stop():
            return Pruned(before, deleted, finished=rows < chunk)
        rest()


def _move_watermark(
    session: Session, keep_ms: int, now_ms: int, not_above_ms: int | None, control: Control
) -> int:
    difference = abs(control.now - now_ms)
    if difference > MAX_CLOCK_DIFFERENCE_MS:
        raise Refused(
            f"the clocks of MySQL and Redis differ by {difference // 1000:,} s, so nothing was"
            " pruned: synchronize both machines by NTP, then prune again"
        )
    wanted = min(control.now, now_ms) - keep_ms
    if not_above_ms is not None:
        wanted = min(wanted, not_above_ms)
    before = max(control.watermark, wanted)
    session.execute("UPDATE control SET pruned_before = %s WHERE id = 1", (before,))
    return before

"""The control row (watermark, version of the catalog, strict, max_keys) with its locks, and guards
(rows of ``applied_entry``), which keep an entry from being counted twice: insert, look up, prune by
the watermark, and the refusal to prune while the clocks of MySQL and Redis differ.

Every batch reads the control row under a share lock that lasts as long as the transaction. A change
takes the exclusive lock, so no transaction that has read the old values is still to be committed.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from countersink.database.connection import LOCK_WAIT
from countersink.database.errors import Refused
from countersink.database.session import Session, rerun
from countersink.database.sql import NOW_MS, marks, parts

EXCLUSIVE_LOCK_WAIT: Final = 1
"""Seconds to wait for the exclusive lock: meanwhile no worker gets the share lock."""
EXCLUSIVE_ATTEMPTS: Final = 20

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Control:
    """The values of the control row.

    Attributes:
        watermark: Unix ms; guards of entries first sent before it may have been pruned.
        now: Unix ms on the server's clock.
        catalog_version: grows with every change of the settings of counters.
        strict: rows of counters that were not created are refused.
        max_keys: maximum keys per day of a counter without a cap of its own; None: any number.
    """

    watermark: int
    now: int
    catalog_version: int
    strict: bool
    max_keys: int | None


def read_control(session: Session, lock: str = "LOCK IN SHARE MODE") -> Control:
    """Read the row under a lock that lasts until the transaction ends.

    Under the share lock watermark and catalog do not change, so an entry that is young enough is
    still young enough when its guard is inserted.

    Raises:
        Refused: the row is missing.
    """
    rows = session.query(
        f"SELECT pruned_before, {NOW_MS}, catalog_version, strict, max_keys FROM control"
        f" WHERE id = 1 {lock}"
    )
    if not rows:
        raise Refused(
            "the row of table control is missing: restore it, with its pruned_before, from a backup"
        )
    watermark, now, version, strict, max_keys = rows[0]
    return Control(int(watermark), int(now), int(version), bool(strict), max_keys)


def exclusive(
    session: Session,
    work: Callable[[Control], Result],
    *,
    attempts: int = EXCLUSIVE_ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
    before: Callable[[], object] = lambda: None,
) -> Result:
    """Run ``work`` in a transaction that holds the exclusive lock on the control row; committed
    when it returns.

    A request for the exclusive lock blocks new readers, so an attempt waits for one second at most.

    Args:
        session: outside a transaction.
        work: is given the row; may be run again after a conflict with another transaction.
        attempts: maximum number of attempts to get the lock.
        pause: sleeps for some seconds between attempts.
        before: called in the transaction before the lock is requested: takes other locks, so that
            nobody waits for the control row meanwhile.

    Raises:
        Conflict: other transactions held the row at each attempt; nothing was done.
    """

    def attempt() -> Result:
        with session.transaction():
            before()
            return work(read_control(session, lock="FOR UPDATE"))

    with short_waits(session):
        return rerun(attempt, attempts=attempts, pause=pause)


def bump(session: Session) -> None:
    """Increase the version of the catalog: each worker reads the catalog before its next batch."""
    session.execute("UPDATE control SET catalog_version = catalog_version + 1 WHERE id = 1")


def short_waits(session: Session) -> AbstractContextManager[None]:
    """Limit lock waits of a session to one second, as other transactions wait behind it."""
    return session.variable("innodb_lock_wait_timeout", EXCLUSIVE_LOCK_WAIT, LOCK_WAIT)


IDS_PER_STATEMENT: Final = 1000
MAX_CLOCK_DIFFERENCE_MS: Final = 300_000
"""Milliseconds by which MySQL's clock and Redis's may differ for guards to be pruned."""
_MAX_BIGINT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Pruned:
    """Outcome of :func:`prune`.

    Attributes:
        watermark: Unix ms; the new watermark.
        deleted: guards deleted.
        finished: False if it was stopped; the next run deletes the rest.
    """

    watermark: int
    deleted: int
    finished: bool = True


def watermark(session: Session) -> int:
    """The watermark in Unix ms: guards of older entries may have been pruned. Takes no lock."""
    return read_control(session, lock="").watermark


def insert(session: Session, entries: Sequence[tuple[bytes, int]], control: Control) -> None:
    """Insert the guards of (id, at) in the order of the ids.

    A plain INSERT waits for another transaction that is inserting the same id, and then fails.
    (After a SELECT, or with INSERT IGNORE, both transactions would count the entry.)

    Raises:
        DuplicateKey: at least one guard exists; roll back and ask :func:`known` which.
    """
    # Not less than `at`: once this guard is pruned the watermark is above `at`, so the entry counts
    # as too old.
    least = max(control.now, control.watermark)
    guards = [(entry_id, min(max(at, least), _MAX_BIGINT)) for entry_id, at in sorted(entries)]
    session.insert_rows("applied_entry (entry_id, keep_from)", guards, IDS_PER_STATEMENT)


def known(session: Session, ids: Sequence[bytes]) -> set[bytes]:
    """The ids of ``ids`` that have a guard: these entries were counted, or are dead letters."""
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
    """Delete the guards of entries first sent more than ``keep_ms`` milliseconds ago.

    The watermark is raised and committed first: from then on older entries are too old to be
    counted, so their guards are not needed. The watermark never decreases: a clock that jumped
    ahead would make all entries too old until that time. So the earlier of two clocks decides:
    Redis's, by which entries are dated, and MySQL's.

    Args:
        session: at READ COMMITTED, outside a transaction.
        keep_ms: age below which guards stay.
        now_ms: Unix ms on Redis's clock.
        not_above_ms: Unix ms of the oldest entry that is in a stream or pending; None: no entry.
        chunk: rows deleted per transaction.
        attempts: maximum number of attempts to get the lock on control.
        pause: sleeps for some seconds between attempts.
        stop: returns True to end early; asked between transactions.
        rest: called between transactions.

    Raises:
        Conflict: workers held the control row at each attempt; nothing was pruned.
        Refused: the clocks differ by more than :data:`MAX_CLOCK_DIFFERENCE_MS`; nothing was pruned.
        ValueError: a negative age, or a chunk below 1.
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

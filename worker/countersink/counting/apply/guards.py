"""Guards (rows of ``applied_entry``), which keep an entry from being counted twice: insert, look
up, prune by the watermark, and the refusal to prune while the clocks of MySQL and Redis differ."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.counting.apply.control import EXCLUSIVE_ATTEMPTS, Control, exclusive, read_control
from countersink.database.errors import Refused
from countersink.database.session import Session, rerun
from countersink.database.sql import marks, parts

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

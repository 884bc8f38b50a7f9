"""Guard rows (``applied_entry``), which keep an entry from counting twice: insert, look up, prune
with the watermark, and the refusal if the clocks of MySQL and Redis differ too much."""

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
    """What :func:`prune` did.

    Attributes:
        watermark: Unix ms; where it is now.
        deleted: guard rows deleted.
        finished: False if it was stopped; what is left is deleted the next time.
    """

    watermark: int
    deleted: int
    finished: bool = True


def watermark(session: Session) -> int:
    """Unix ms: the guards of entries first sent before it may have been pruned. Takes no lock."""
    return read_control(session, lock="").watermark


def insert(session: Session, entries: Sequence[tuple[bytes, int]], control: Control) -> None:
    """Insert the guards of (id, at) in the order of the ids.

    A plain INSERT: it waits for a rival that is inserting the same id and then fails. (A SELECT
    first, or an INSERT IGNORE, would let both go on and count.)

    Raises:
        DuplicateKey: at least one is there; roll back and ask :func:`known` which.
    """
    # Never below `at`: once this guard is pruned the watermark is above `at`, and the entry is
    # known as old.
    least = max(control.now, control.watermark)
    guards = [(entry_id, min(max(at, least), _MAX_BIGINT)) for entry_id, at in sorted(entries)]
    session.insert_rows("applied_entry (entry_id, keep_from)", guards, IDS_PER_STATEMENT)


def known(session: Session, ids: Sequence[bytes]) -> set[bytes]:
    """Which of these entries have a guard, so were counted or put among the dead rows."""
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
    """Forget the entries of more than ``keep_ms`` milliseconds ago.

    The watermark moves first and is committed: from then on an entry from before it is too old to
    be counted, so that its guard is no longer needed. It never moves down: a clock that jumped
    ahead would bury every entry until it is that late. So the earlier of two clocks decides, that
    of Redis, by which entries are dated, and that of MySQL.

    Args:
        session: at READ COMMITTED, outside a transaction.
        keep_ms: age below which guards stay.
        now_ms: Unix ms on Redis's clock.
        not_above_ms: Unix ms; the time of the oldest entry that is still in a stream or pending,
            None if there is none.
        chunk: rows deleted per transaction.
        attempts: how often to ask for the lock on control.
        pause: how to wait between attempts, in seconds.
        stop: true once it should end; asked between transactions.
        rest: called after each transaction that leaves something to do.

    Raises:
        Conflict: workers held the control row at each of the attempts; nothing was pruned.
        Refused: the clocks differ by more than :data:`MAX_CLOCK_DIFFERENCE_MS`; nothing was pruned.
        ValueError: a negative age.
    """
    if keep_ms < 0 or chunk < 1:
        raise ValueError("keep_ms is not negative, and chunk is at least 1")
    before = exclusive(
        session,
        partial(_move_watermark, session, keep_ms, now_ms, not_above_ms),
        attempts=attempts,
        pause=pause,
    )
    deleted = 0
    delete = "DELETE FROM applied_entry WHERE keep_from < %s ORDER BY keep_from LIMIT %s"
    while True:
        gone = rerun(partial(session.execute, delete, (before, chunk)), pause=pause)
        deleted += gone
        if gone < chunk or stop():
            return Pruned(before, deleted, finished=gone < chunk)
        rest()


def _move_watermark(
    session: Session, keep_ms: int, now_ms: int, not_above_ms: int | None, control: Control
) -> int:
    difference = abs(control.now - now_ms)
    if difference > MAX_CLOCK_DIFFERENCE_MS:
        raise Refused(
            f"the clocks of MySQL and Redis differ by {difference // 1000:,} s, so nothing was"
            " pruned: let both machines keep time by NTP, then prune again"
        )
    wanted = min(control.now, now_ms) - keep_ms
    if not_above_ms is not None:
        wanted = min(wanted, not_above_ms)
    before = max(control.watermark, wanted)
    session.execute("UPDATE control SET pruned_before = %s WHERE id = 1", (before,))
    return before

"""Taking the corrections of a reconcile back.

Each range of ``backfill_drift`` is subtracted and deleted in one transaction: so it does not matter
where it is killed, or whether two do it at once, nor what compaction, retention or a change of
policy has done to the cells since.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.backfill import truth
from countersink.backfill.keeping import Keeper
from countersink.backfill.options import BackfillError
from countersink.backfill.other_slots import with_room
from countersink.store import adding, reconciled
from countersink.store.adding import BadCells
from countersink.store.amounts import Amounts
from countersink.store.buckets import label_of
from countersink.store.connection import Connect, Session
from countersink.store.control import Control, bump, exclusive, read_control
from countersink.store.keys import key_text

ROWS: Final = 1000
"""Corrections that are taken back in a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """What was taken back of a reconcile.

    Attributes:
        ranges: transactions that took something back.
        cells: (key, bucket) that were changed.
        amount: what was added to the totals by it.
        finished: False where it was told to stop.
    """

    ranges: int
    cells: int
    amount: int
    finished: bool = True


def undo(
    connect: Connect,
    run: int,
    *,
    on_progress: Callable[[int, int], object] = lambda done, of: None,
    stop: Callable[[], bool] = lambda: False,
) -> TakenBack:
    """Take the corrections of a run back, then its marks, then its truth; not its sources.

    The caller has put the run into the state ``undoing``, so that nothing of it is committed any
    more. It can be killed, and run again.

    Args:
        connect: makes sessions at READ COMMITTED.
        run: its number.
        on_progress: is given how many ranges of corrections were taken back now, and of how many.
        stop: true once it should end.

    Raises:
        BackfillError: the counter is now that of a tracked table; a total would leave 64 bits.
        StoreError: MySQL did not do its part. What was taken back is taken back.
    """
    ranges = cells = amount = 0
    with Keeper(connect) as keeper:
        counter, number = keeper.run(partial(_size, run=run))
        of = -(-number // ROWS)
        while not stop():
            changed, added = keeper.run(partial(_take_back, counter=counter, run=run))
            if not changed:
                # Marks last: as long as something of it stands, what comes late is in it.
                keeper.run(partial(_unmark, counter=counter, run=run))
                keeper.run(partial(truth.discard, run=run))
                return TakenBack(ranges=ranges, cells=cells, amount=amount)
            ranges, cells, amount = ranges + 1, cells + changed, amount + added
            on_progress(ranges, max(of, ranges))
    return TakenBack(ranges=ranges, cells=cells, amount=amount, finished=False)


def _size(session: Session, run: int) -> tuple[str, int]:
    """The counter of a run, and how many corrections of it there are."""
    ((counter, number),) = session.query(
        "SELECT counter, (SELECT COUNT(*) FROM backfill_drift WHERE run = %s)"
        " FROM backfill_run WHERE id = %s",
        (run, run),
    )
    return counter, int(number)


def _take_back(session: Session, counter: str, run: int) -> tuple[int, int]:
    """Take the next corrections back; how many, and what was added. None are left: (0, 0)."""
    try:
        return with_room(session, partial(_attempt, session, counter, run))
    except BadCells as error:
        raise BackfillError(
            f"a correction of backfill {run} cannot be taken back, as a sum would leave 64 bits"
            f" ({error}): `countersink counter delete` or a smaller total makes room"
        ) from error


def _attempt(session: Session, counter: str, run: int, slot: int, _: int) -> tuple[int, int]:
    with session.transaction():
        read_control(session)  # its lock keeps the counter from becoming a tracked table's
        truth.refuse_tracked(session, counter)
        found = session.query(
            "SELECT bucket, counter_key, had, should_be FROM backfill_drift WHERE run = %s"
            " ORDER BY bucket, counter_key LIMIT %s FOR UPDATE",
            (run, ROWS),
        )
        if not found:
            return 0, 0
        amounts = Amounts()
        for bucket, key, had, should_be in found:
            amounts.add(counter, label_of(bucket), key_text(bytes(key)), int(had) - int(should_be))
        adding.add(session, slot, amounts)
        session.execute(
            "DELETE FROM backfill_drift WHERE run = %s ORDER BY bucket, counter_key LIMIT %s",
            (run, len(found)),
        )
    return len(found), amounts.sums()[counter]


def _unmark(session: Session, counter: str, run: int) -> None:
    marked = session.query(
        "SELECT 1 FROM reconciled_bucket WHERE counter = %s AND run = %s LIMIT 1", (counter, run)
    )
    if not marked:
        return

    def work(control: Control) -> None:
        if reconciled.unmark(session, counter, run):
            bump(session)

    exclusive(session, work)

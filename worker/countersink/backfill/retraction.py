"""The transactions that take back one chunk, or a range of a reconcile's corrections (``ROWS`` at a
time); the order of an undo and what it refuses are in ``undo.py``.

A chunk is subtracted by its journal and deleted. Each range of ``backfill_correction`` is
subtracted and deleted: so it does not matter where it is killed, or whether two do it at once, nor
what compaction and retention have done to the cells since.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.backfill.count import sources, targets
from countersink.counting.apply import cells
from countersink.counting.apply.amounts import Amounts
from countersink.counting.apply.control import Control, bump, exclusive, read_control
from countersink.counting.counters.catalog import unmark_days
from countersink.database import sql
from countersink.database.session import Connect, Session, rerun
from countersink.database.sessions import KeptSession
from countersink.runtime.limits import key_bytes, key_text

ROWS: Final = 1000
"""Corrections that are taken back in a transaction."""
Reached = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What was taken back.

    Attributes:
        chunks: transactions that took something back.
        cells: (key, bucket) that were changed.
        amount: what was added to the totals by it.
        labels: of the buckets that were changed, where these are at hand.
        finished: False where it was told to stop.
    """

    chunks: int
    cells: int
    amount: int
    labels: frozenset[int] = frozenset()
    finished: bool = True


class ChunkUndo:
    """One chunk of a run that is being taken back, the last one of its source.

    Args:
        counter: that it was added to.
        source, start_at: which one.
        reached: called with ``before_commit``.
    """

    def __init__(self, counter: str, source: int, start_at: int, reached: Reached) -> None:
        self._counter = counter
        self._at = source, start_at
        self._reached = reached
        self._taken: Amounts | None = None

    def take_back(self, session: Session) -> Amounts | None:
        """Take it back; what was added by that, None if another undo has. After Unavailable to be
        called again, on another session.

        Raises:
            BackfillError: its journal is damaged.
            StoreError: as any transaction.
        """
        return rerun(partial(self._attempt, session))

    def _attempt(self, session: Session) -> Amounts | None:
        with session.transaction():
            number, start_at = self._at
            source = sources.read(session, number, lock=True)
            # Of a run that is not being taken back it is where that has counted it anew.
            found = session.query(
                "SELECT c.amount, c.run FROM backfill_chunk AS c JOIN backfill_run AS r"
                " ON r.id = c.run AND r.state = 'undoing' WHERE c.source = %s AND c.start_at = %s"
                " AND c.end_at = %s",
                (*self._at, source.read_to if source is not None else 0),
            )
            if source is None or not found:
                return self._taken  # by a COMMIT whose reply was lost
            ((amount, run),) = found
            # Whoever deletes the counter holds it alone in the end.
            read_control(session)
            amounts = targets.read_journal(session, self._counter, *self._at, int(amount))
            taken = amounts.negated()
            cells.add(session, cells.slot_of(session), taken)
            _delete_empty(session, taken)
            sources.delete_last_chunk(session, source, start_at)
            session.execute("UPDATE backfill_run SET seen = UTC_TIMESTAMP(3) WHERE id = %s", (run,))
            self._reached("before_commit")
            self._taken = taken
        return taken


def _delete_empty(session: Session, taken: Amounts) -> None:
    """Delete the rows of cells that add up to 0 now, so that no key stays that only the run has
    made; but not of cells that have members.
    """
    for counter in taken.counters:
        for label, keys in taken.of(counter).items():
            for part in sql.parts(sorted(map(key_bytes, keys)), sql.KEYS_PER_STATEMENT):
                _delete_empty_keys(session, counter, label, part)


def _delete_empty_keys(session: Session, counter: str, label: int, keys: Sequence[bytes]) -> None:
    bucket = counter, sql.label_time(label), sql.width_number(label)
    table = "counter_slot FORCE INDEX (PRIMARY)"
    where = f"{table} WHERE counter = %s AND bucket = %s AND width = %s AND counter_key IN"
    # Without a lock first: whoever counts waits for cells that are empty, and for no others.
    empty = session.query(
        f"SELECT counter_key FROM {where} ({sql.marks(keys)}) GROUP BY counter_key"
        " HAVING SUM(amount) = 0 AND MAX(sketched) = 0",
        (*bucket, *keys),
    )
    if not empty:
        return
    rows = session.query(
        f"SELECT counter_key, slot, amount FROM {where} ({sql.marks(empty)}) FOR UPDATE",
        (*bucket, *(key for (key,) in empty)),
    )
    sums = Counter[bytes]()
    for key, _, amount in rows:
        sums[key] += amount
    gone = [(*bucket, key, slot) for key, slot, _ in rows if not sums[key]]
    for some in sql.parts(gone, sql.KEYS_PER_STATEMENT):
        # Row by row: another slot may have got one of the cell meanwhile.
        each = "(counter = %s AND bucket = %s AND width = %s AND counter_key = %s AND slot = %s)"
        session.execute(
            "DELETE counter_slot FROM counter_slot FORCE INDEX (PRIMARY)"
            f" WHERE {' OR '.join([each] * len(some))}",
            [value for row in some for value in row],
        )


def take_corrections_back(
    connect: Connect,
    run: int,
    *,
    on_progress: Callable[[int, int], object] = lambda done, of: None,
    stop: Callable[[], bool] = lambda: False,
) -> TakenBack:
    """Take the corrections of a run back, then its marks; not its sources.

    The caller has put the run into the state ``undoing``, so that nothing of it is committed any
    more. It can be killed, and run again.

    Args:
        connect: makes sessions at READ COMMITTED.
        run: its number.
        on_progress: is given how many ranges of corrections were taken back now, and of how many.
        stop: true once it should end.

    Raises:
        BackfillError: the counter is now that of a tracked table.
        StoreError: MySQL did not do its part. What was taken back is taken back.
    """
    ranges = cells = amount = 0
    with KeptSession(connect, stop, attempts=1) as keeper:
        keeper.run(targets.discard_truth, run)
        counter, number = keeper.run(_size, run)
        of = -(-number // ROWS)
        while not stop():
            changed, added = keeper.run(_take_back, counter, run)
            if not changed:
                # Marks last: as long as something of it stands, what comes late is in it.
                keeper.run(_unmark, counter, run)
                return TakenBack(ranges, cells, amount)
            ranges, cells, amount = ranges + 1, cells + changed, amount + added
            on_progress(ranges, max(of, ranges))
    return TakenBack(ranges, cells, amount, finished=False)


def _size(session: Session, run: int) -> tuple[str, int]:
    """The counter of a run, and how many corrections of it there are."""
    ((counter, number),) = session.query(
        "SELECT counter, (SELECT COUNT(*) FROM backfill_correction WHERE run = %s)"
        " FROM backfill_run WHERE id = %s",
        (run, run),
    )
    return counter, int(number)


def _take_back(session: Session, counter: str, run: int) -> tuple[int, int]:
    """Take the next corrections back; how many, and what was added. None are left: (0, 0)."""
    return rerun(partial(_attempt, session, counter, run))


def _attempt(session: Session, counter: str, run: int) -> tuple[int, int]:
    with session.transaction():
        read_control(session)  # its lock keeps the counter from becoming a tracked table's
        targets.refuse_tracked(session, counter)
        found = session.query(
            f"SELECT {sql.LABEL}, counter_key, had, should_be FROM backfill_correction"
            " WHERE run = %s ORDER BY bucket, width, counter_key LIMIT %s FOR UPDATE",
            (run, ROWS),
        )
        if not found:
            return 0, 0
        amounts = Amounts()
        for label, key, had, should_be in found:
            amounts.add(counter, int(label), key_text(bytes(key)), int(had) - int(should_be))
        cells.add(session, cells.slot_of(session), amounts)
        _delete_empty(session, amounts)
        session.execute(
            "DELETE FROM backfill_correction WHERE run = %s"
            " ORDER BY bucket, width, counter_key LIMIT %s",
            (run, len(found)),
        )
    return len(found), amounts.sums()[counter]


def _unmark(session: Session, counter: str, run: int) -> None:
    marked = session.query(
        "SELECT 1 FROM reconciled_day WHERE counter = %s AND run = %s LIMIT 1", (counter, run)
    )
    if not marked:
        return

    def work(control: Control) -> None:
        if unmark_days(session, counter, run):
            bump(session)

    exclusive(session, work)

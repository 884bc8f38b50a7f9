"""``countersink backfills undo``: takes a run back chunk by chunk, and refuses runs that cannot be
taken back; the notice about days that a later reconcile has set is in ``count/targets.py``. The
transactions that take back one chunk, or a range of a reconcile's corrections (``ROWS`` at a time);
the order of an undo and what it refuses are in ``undo.py``.

First the run is put into the state ``undoing``, so that nothing of it is committed any more, and no
other run reads on behind it. Then, a transaction each, its chunks are taken back, the last ones of
a source first: the cells in the chunk's journal are subtracted, journal and chunk are deleted, and
the source is read on there. So it does not matter where it is killed, or whether two do it at once;
and since the journal holds cells as they are in the tables, neither does what compaction and
retention have done to them since, or in which buckets the counter counts now.

A run behind which others have read on in the same source is taken back together with these.

A chunk is subtracted by its journal and deleted. Each range of ``backfill_correction`` is
subtracted and deleted: so it does not matter where it is killed, or whether two do it at once, nor
what compaction and retention have done to the cells since.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.backfill import history
from countersink.backfill.count import sources, targets
from countersink.backfill.errors import BackfillError
from countersink.backfill.history import Run
from countersink.counting.apply import cells
from countersink.counting.apply.amounts import Amounts
from countersink.counting.apply.control import Control, bump, exclusive, read_control
from countersink.counting.counters.catalog import load_scheme, marked_days, unmark_days
from countersink.database import sql
from countersink.database.session import Connect, Session, rerun
from countersink.database.sessions import KeptSession, open_tables
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
            changed, added = keeper.run(_take_corrections, counter, run)
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


def _take_corrections(session: Session, counter: str, run: int) -> tuple[int, int]:
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


_PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What an undo took back.

    Attributes:
        runs: their numbers.
        counter, mode: of the runs.
        state: ``undone``, or ``undoing`` where it was told to stop: run again, it goes on.
        chunks: that were taken back now: pieces of sources; of a reconcile, ranges of corrections.
        cells: (key, bucket) that were changed.
        amount: what was added to the totals by taking it back: mostly negative.
        notices: for people, a sentence each: what is not right now.
    """

    runs: tuple[int, ...]
    counter: str
    mode: str
    state: str
    chunks: int
    cells: int
    amount: int
    notices: tuple[str, ...] = ()


def undo(
    mysql_url: str,
    *runs: int,
    on_progress: Callable[[int, int], object] = lambda done, of: None,
    stop: Callable[[], bool] = lambda: False,
    reached: Reached = lambda point: None,
) -> Undone:
    """Take back what a run added, or set; or what several have added to one counter.

    Args:
        mysql_url: the database.
        runs: their numbers.
        on_progress: given after every chunk, or range of corrections, how many were taken back, and
            of how many.
        stop: asked before every chunk; true once it should end.
        reached: called with ``begun``, ``before_commit`` and ``taken_back``; for tests.

    Raises:
        BackfillError: there is no such run, or it was undone already, or its counter was deleted,
            or its journal is damaged; or others have read on behind it, whose numbers it names.
        StoreError: MySQL did not do its part; what was taken back is taken back, and calling it
            again goes on.
    """

    with KeptSession(partial(open_tables, mysql_url), stop).open() as link:
        begun, *_ = found = link.run(_begin, sorted({*runs}))
        reached("begun")
        if begun.mode == "reconcile":
            run = begun.id
            marked = link.run(marked_days, begun.counter, run)
            back = take_corrections_back(
                partial(open_tables, mysql_url), run, on_progress=on_progress, stop=stop
            )
            days = marked if back.cells else set()
        else:
            back = _take_back(link, found, on_progress, stop, reached)
            days = set(map(link.run(load_scheme, begun.counter).local_day, back.labels))
        # Nothing was added to what was set: so all that was added to it is older.
        older = begun.id if begun.mode == "reconcile" else 0
        notices = link.run(targets.set_days_after, begun.counter, days, older)
        if back.finished:
            reached("taken_back")
            link.run(_finish, found)
    return Undone(
        runs=tuple(run.id for run in found),
        counter=begun.counter,
        mode=begun.mode,
        state="undone" if back.finished else "undoing",
        chunks=back.chunks,
        cells=back.cells,
        amount=back.amount,
        notices=notices,
    )


def _begin(session: Session, numbers: Sequence[int]) -> list[Run]:
    """Let nothing of some runs be committed any more, nor anything behind it."""
    marks = sql.marks(numbers)
    with session.transaction():
        found = [history.run(session, number, lock=True) for number in numbers]
        for run in found:
            _refuse(run)
        if len(found) > 1 and {(run.counter, run.mode) for run in found} != {
            (found[0].counter, "add")
        }:
            raise BackfillError("only runs that have added to one counter are undone together")
        behind = session.query(
            "SELECT DISTINCT c.run FROM backfill_chunk AS c JOIN (SELECT source, MIN(start_at) AS"
            f" start_at FROM backfill_chunk WHERE run IN ({marks}) GROUP BY source) AS own"
            " ON own.source = c.source AND c.start_at > own.start_at"
            f" WHERE c.run NOT IN ({marks}) ORDER BY c.run",
            (*numbers, *numbers),
        )
        if others := [number for (number,) in behind]:
            all_of_them = " ".join(map(str, sorted({*numbers, *others}, reverse=True)))
            raise BackfillError(
                f"backfill {', '.join(map(str, others))} read on behind it in the same sources:"
                f" `countersink backfills undo {all_of_them}` takes them back together"
            )
        session.execute(
            "UPDATE backfill_run SET state = 'undoing', seen = UTC_TIMESTAMP(3),"
            f" ended = COALESCE(ended, UTC_TIMESTAMP(3)) WHERE id IN ({marks})",
            tuple(numbers),
        )
    return found


def _refuse(run: Run) -> None:
    if run.state == "undone":
        raise BackfillError(
            f"backfill {run.id} was undone already, at {run.seen:%Y-%m-%d %H:%M:%S} UTC: there is"
            " nothing left to take back"
        )
    if run.state == "deleted":
        raise BackfillError(
            f"backfill {run.id} is gone with its counter {run.counter}, which was deleted: there is"
            " nothing to take back"
        )


def _take_back(
    link: KeptSession,
    runs: Sequence[Run],
    on_progress: Callable[[int, int], object],
    stop: Callable[[], bool],
    reached: Reached,
) -> TakenBack:
    """Take back every chunk of some runs of one counter, the last ones first."""
    numbers = [run.id for run in runs]
    where = f"FROM backfill_chunk WHERE run IN ({sql.marks(numbers)})"
    page = f"SELECT source, start_at {where} ORDER BY source DESC, start_at DESC LIMIT {_PAGE:d}"
    ((of,),) = link.run(Session.query, f"SELECT COUNT(*) {where}", numbers)
    chunks = cells = amount = 0
    labels = set[int]()
    while found := link.run(Session.query, page, numbers):
        for source, start_at in found:
            if stop():
                return TakenBack(chunks, cells, amount, frozenset(labels), finished=False)
            chunk = ChunkUndo(runs[0].counter, int(source), int(start_at), reached)
            taken = link.run(chunk.take_back)
            if taken is None:
                continue  # another undo has
            chunks += 1
            cells += taken.cells
            amount += sum(taken.sums().values())
            labels.update(taken.of(runs[0].counter))
            on_progress(chunks, max(chunks, int(of)))
    return TakenBack(chunks, cells, amount, frozenset(labels))


def _finish(session: Session, runs: Sequence[Run]) -> None:
    """Say that runs are undone; forget the sources of one that has set totals."""
    if runs[0].mode == "reconcile":
        rerun(partial(sources.forget_truth, session, runs[0].id))
    session.execute(
        "UPDATE backfill_run SET state = 'undone', rejects = NULL, seen = UTC_TIMESTAMP(3)"
        f" WHERE id IN ({sql.marks(runs)}) AND state = 'undoing'",
        [run.id for run in runs],
    )

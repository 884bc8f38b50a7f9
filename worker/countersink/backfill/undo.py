"""``countersink backfills undo``: takes a run back, chunk by chunk, or, for a reconcile, ``ROWS``
corrections at a time. See ``count/targets.py`` for the notice about days set by later reconciles.

The state of the run becomes ``undoing`` first. From then on the run can commit nothing, and no
other run can count lines after its chunks. Then one transaction per chunk, from the last chunk of a
source to the first, subtracts the cells that the chunk added (its journal), and deletes journal and
chunk. Later runs read that part of the source again. Corrections are taken back in the same way.

An undo may be killed at any time, and several may work at once. Cells stay right if compaction or
retention has moved their rows. Runs that counted later lines of a source must be in the same undo.
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
from countersink.counting.apply.guards import Control, bump, exclusive, read_control
from countersink.counting.counters.all_counters import refuse_tracked
from countersink.counting.counters.catalog import load_scheme, marked_days, unmark_days
from countersink.counting.ledger import BucketSums, subtract
from countersink.database import sql
from countersink.database.session import Connect, Session, rerun
from countersink.database.sessions import KeptSession, open_tables
from countersink.runtime.limits import key_bytes, key_text

ROWS: Final = 1000
"""Number of corrections that one transaction takes back."""
Reached = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The changes that an undo has made, summed over chunks or over ranges of corrections.

    Attributes:
        chunks: number of transactions that changed totals, one for each chunk or range.
        cells: number of changed cells; a cell of several chunks counts several times.
        amount: sum of the amounts added to the counter, without its breakdowns; mostly negative.
        labels: labels (beginning and width) of the changed buckets; empty for corrections.
        finished: False if the undo was stopped before its end.
    """

    chunks: int
    cells: int
    amount: int
    labels: frozenset[int] = frozenset()
    finished: bool = True


class ChunkUndo:
    """Undo of one chunk, which must be the last chunk of its source.

    Args:
        counter: name of the counter to which the chunk was added.
        source, start_at: primary key of the chunk.
        reached: called with ``before_commit`` before the commit; for tests.
    """

    def __init__(self, counter: str, source: int, start_at: int, reached: Reached) -> None:
        self._counter = counter
        self._at = source, start_at
        self._reached = reached
        self._taken: Amounts | None = None

    def take_back(self, session: Session) -> Amounts | None:
        """Take the chunk back. Returns the amounts that this added to totals; None if another undo
        has done it. After Unavailable, call it again with another session: if the earlier call was
        committed, this returns the amounts that it added.

        Raises:
            BackfillError: the journal of the chunk is damaged.
            StoreError: MySQL failed.
        """
        return rerun(partial(self._attempt, session))

    def _attempt(self, session: Session) -> Amounts | None:
        with session.transaction():
            number, start_at = self._at
            source = sources.read(session, number, lock=True)
            # If its run is not ``undoing``, another run has counted the same bytes again.
            found = session.query(
                "SELECT c.amount, c.run FROM backfill_chunk AS c JOIN backfill_run AS r"
                " ON r.id = c.run AND r.state = 'undoing' WHERE c.source = %s AND c.start_at = %s"
                " AND c.end_at = %s",
                (*self._at, source.read_to if source is not None else 0),
            )
            if source is None or not found:
                return self._taken  # committed before; the reply was lost
            ((amount, run),) = found
            # Its lock keeps the counter from being deleted.
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
    """Delete the rows of those cells of ``taken`` whose total is 0 now, so that keys which only the
    undone run has counted disappear, and then their buckets. Cells with visitors are kept."""
    buckets = BucketSums()
    for counter in taken.counters:
        for label, keys in taken.by_bucket(counter).items():
            buckets.add(counter, label, 0, 0)
            for part in sql.parts(sorted(map(key_bytes, keys)), sql.KEYS_PER_STATEMENT):
                _delete_empty_keys(session, counter, label, part)
    subtract(session, buckets)


def _delete_empty_keys(session: Session, counter: str, label: int, keys: Sequence[bytes]) -> None:
    bucket = counter, sql.label_time(label), sql.width_number(label)
    table = "counter_slot FORCE INDEX (PRIMARY)"
    where = f"{table} WHERE counter = %s AND bucket = %s AND width = %s AND counter_key IN"
    # First without locks, so that workers wait for rows of empty cells only.
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
    empty_rows = [(*bucket, key, slot) for key, slot, _ in rows if not sums[key]]
    for some in sql.parts(empty_rows, sql.KEYS_PER_STATEMENT):
        # By row, not by cell: another slot may have inserted a row of the cell meanwhile.
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
    on_progress: Callable[[int, int], object] = lambda done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> TakenBack:
    """Take back the corrections of an ``undoing`` run in ranges of :data:`ROWS` corrections, then
    its marks on days. First delete its samples, and its sums that corrected nothing. Return the
    changes of this call. May be called again.

    Args:
        connect: opens sessions at READ COMMITTED.
        run: number of the run.
        on_progress: called after each range, with the numbers of ranges taken back and of all.
        stop: called before each range; the undo ends early once it returns true.

    Raises:
        TrackedCounter: the counter is the row count of a tracked table now.
        StoreError: MySQL failed; corrections taken back so far stay taken back.
    """
    ranges = cells = amount = 0
    with KeptSession(connect, stop, attempts=1) as keeper:
        keeper.run(targets.discard_truth, run)
        counter, number = keeper.run(_count_corrections, run)
        total = -(-number // ROWS)
        while not stop():
            changed, added = keeper.run(_take_corrections, counter, run)
            if not changed:
                # Marks last: while corrections stand, late entries are in them already.
                keeper.run(_unmark, counter, run)
                return TakenBack(ranges, cells, amount)
            ranges, cells, amount = ranges + 1, cells + changed, amount + added
            on_progress(ranges, max(total, ranges))
    return TakenBack(ranges, cells, amount, finished=False)


def _count_corrections(session: Session, run: int) -> tuple[str, int]:
    """Return the name of a run's counter, and how many corrections are not taken back yet."""
    ((counter, number),) = session.query(
        "SELECT counter, (SELECT COUNT(*) FROM backfill_correction WHERE run = %s)"
        " FROM backfill_run WHERE id = %s",
        (run, run),
    )
    return counter, int(number)


def _take_corrections(session: Session, counter: str, run: int) -> tuple[int, int]:
    """Take up to :data:`ROWS` corrections back. Return their number and their sum."""
    return rerun(partial(_attempt, session, counter, run))


def _attempt(session: Session, counter: str, run: int) -> tuple[int, int]:
    with session.transaction():
        read_control(session)  # its lock keeps the counter from becoming a tracked table's
        refuse_tracked(session, counter)
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
    marked = "SELECT 1 FROM reconciled_day WHERE counter = %s AND run = %s LIMIT 1"
    if not session.query(marked, (counter, run)):
        return

    def work(control: Control) -> None:
        if unmark_days(session, counter, run):
            bump(session)

    exclusive(session, work)


_PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """The result of an undo.

    Attributes:
        runs, counter, mode: numbers of the runs; their counter and mode (``add``, ``reconcile``).
        state: ``undone``; or ``undoing`` if it was stopped before its end: another undo continues.
        chunks: number of chunks (of a reconcile: ranges of corrections) that this undo took back.
        cells: number of changed cells; a cell of several chunks counts several times.
        amount: sum of the amounts added to the counter, without its breakdowns; mostly negative.
        notices: sentences for users about totals that are wrong now.
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
    on_progress: Callable[[int, int], object] = lambda done, total: None,
    stop: Callable[[], bool] = lambda: False,
    reached: Reached = lambda point: None,
) -> Undone:
    """Undo one run; or several runs, if all have the mode ``add`` and the same counter.

    Args:
        mysql_url, runs: URL of the database, and numbers of the runs.
        on_progress: called after each chunk (of a reconcile: range of up to :data:`ROWS`
            corrections), with the number of chunks (ranges) taken back and the number of all.
        stop: called before each chunk or range; the undo ends early once it returns true.
        reached: called with ``begun``, ``before_commit`` and ``taken_back``; for tests.

    Raises:
        BackfillError: a run does not exist, is undone already, or has a deleted counter or a
            damaged journal; or other runs, named in the message, must be undone with it.
        TrackedCounter: the counter of a reconcile is the row count of a tracked table now.
        StoreError: MySQL failed; chunks taken back so far stay taken back; another call continues.
    """
    opened = partial(open_tables, mysql_url)
    with KeptSession(opened, stop).open() as link:
        begun, *_ = found = link.run(_begin, sorted({*runs}))
        reached("begun")
        if begun.mode == "reconcile":
            run = begun.id
            marked = link.run(marked_days, begun.counter, run)
            back = take_corrections_back(opened, run, on_progress=on_progress, stop=stop)
            days = marked if back.cells else set()
        else:
            back = _take_chunks_back(link, found, on_progress, stop, reached)
            days = set(map(link.run(load_scheme, begun.counter).local_day, back.labels))
        # All reconciles of an added run's days are later: nothing is added to days that are set.
        older = begun.id if begun.mode == "reconcile" else 0
        notices = link.run(targets.later_set_notices, begun.counter, days, older)
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
    """Set runs to ``undoing``, and return them; BackfillError if they cannot be undone. From now on
    no chunk of these runs, and no chunk after one of theirs, can be committed."""
    marks = sql.marks(numbers)
    with session.transaction():
        found = [history.run(session, number, lock=True) for number in numbers]
        for run in found:
            _refuse(run)
        kinds = {(run.counter, run.mode) for run in found}
        if len(found) > 1 and kinds != {(found[0].counter, "add")}:
            raise BackfillError("only runs of --mode add and one counter can be undone together")
        later = session.query(
            "SELECT DISTINCT c.run FROM backfill_chunk AS c JOIN (SELECT source, MIN(start_at) AS"
            f" start_at FROM backfill_chunk WHERE run IN ({marks}) GROUP BY source) AS earliest"
            " ON earliest.source = c.source AND c.start_at > earliest.start_at"
            f" WHERE c.run NOT IN ({marks}) ORDER BY c.run",
            (*numbers, *numbers),
        )
        if others := [number for (number,) in later]:
            all_of_them = " ".join(map(str, sorted({*numbers, *others}, reverse=True)))
            raise BackfillError(
                f"backfill {', '.join(map(str, others))} counted later lines of the same sources:"
                f" `countersink backfills undo {all_of_them}` undoes all of them together"
            )
        session.execute(
            "UPDATE backfill_run SET state = 'undoing', seen = UTC_TIMESTAMP(3),"
            f" ended = COALESCE(ended, UTC_TIMESTAMP(3)) WHERE id IN ({marks})",
            tuple(numbers),
        )
    return found


def _refuse(run: Run) -> None:
    if run.state == "undone":
        raise BackfillError(f"backfill {run.id} was undone already, at {run.seen:%F %T} UTC")
    if run.state == "deleted":
        raise BackfillError(
            f"backfill {run.id} cannot be undone: its counter {run.counter} was deleted with all"
            " that it had counted"
        )


def _take_chunks_back(
    link: KeptSession,
    runs: Sequence[Run],
    on_progress: Callable[[int, int], object],
    stop: Callable[[], bool],
    reached: Reached,
) -> TakenBack:
    """Take back all chunks of some runs of one counter, the last chunk of each source first."""
    numbers = [run.id for run in runs]
    where = f"FROM backfill_chunk WHERE run IN ({sql.marks(numbers)})"
    page = f"SELECT source, start_at {where} ORDER BY source DESC, start_at DESC LIMIT {_PAGE:d}"
    ((total,),) = link.run(Session.query, f"SELECT COUNT(*) {where}", numbers)
    chunks = cells = amount = 0
    labels = set[int]()
    while found := link.run(Session.query, page, numbers):
        for source, start_at in found:
            if stop():
                return TakenBack(chunks, cells, amount, frozenset(labels), finished=False)
            chunk = ChunkUndo(runs[0].counter, int(source), int(start_at), reached)
            taken = link.run(chunk.take_back)
            if taken is None:
                continue  # another undo has taken it back
            chunks += 1
            cells += taken.cells
            amount += taken.sums().get(runs[0].counter, 0)
            labels.update(taken.by_bucket(runs[0].counter))
            on_progress(chunks, max(chunks, int(total)))
    return TakenBack(chunks, cells, amount, frozenset(labels))


def _finish(session: Session, runs: Sequence[Run]) -> None:
    """Set runs to ``undone``, and delete their rejected lines. Delete a reconcile's sources."""
    if runs[0].mode == "reconcile":
        rerun(partial(sources.delete_truth, session, runs[0].id))
    session.execute(
        "UPDATE backfill_run SET state = 'undone', rejects = NULL, seen = UTC_TIMESTAMP(3)"
        f" WHERE id IN ({sql.marks(runs)}) AND state = 'undoing'",
        [run.id for run in runs],
    )

"""``countersink backfills undo``: takes a run back chunk by chunk, and refuses runs that cannot be
taken back; the notice about days that a later reconcile has set is in ``count/targets.py``.

First the run is put into the state ``undoing``, so that nothing of it is committed any more, and no
other run reads on behind it. Then, a transaction each, its chunks are taken back, the last ones of
a source first: the cells in the chunk's journal are subtracted, journal and chunk are deleted, and
the source is read on there. So it does not matter where it is killed, or whether two do it at once;
and since the journal holds cells as they are in the tables, neither does what compaction and
retention have done to them since, or in which buckets the counter counts now.

A run behind which others have read on in the same source is taken back together with these.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.backfill import history, retraction
from countersink.backfill.count import sources, targets
from countersink.backfill.errors import BackfillError
from countersink.backfill.history import Run
from countersink.backfill.retraction import ChunkUndo, Reached, TakenBack
from countersink.counting.counters.catalog import load_scheme, marked_days
from countersink.database import sql
from countersink.database.session import Session, rerun
from countersink.database.sessions import KeptSession, open_tables

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
            back = retraction.take_corrections_back(
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
            undo = ChunkUndo(runs[0].counter, int(source), int(start_at), reached)
            taken = link.run(undo.take_back)
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

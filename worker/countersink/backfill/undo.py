"""``countersink backfills undo``: takes a run back chunk by chunk, and refuses runs that cannot be
taken back; the notice about days that a later reconcile has set is in ``count/targets.py``.

First the run is put into the state ``undoing``, so that nothing of it is committed any more. Then,
a transaction each, its chunks are taken back: the cells in the chunk's journal are subtracted, the
journal is deleted, and the chunk is ``undone``. So it does not matter where it is killed, or
whether two do it at once; and since the journal holds cells as they are in the tables, neither does
what compaction and retention have done to them since, or in which buckets the counter counts now.

A chunk that is undone is there to be counted again by a later run, if others stand behind it; else
it is forgotten, and the source is read on there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.backfill import history, retraction
from countersink.backfill.count import sources, targets
from countersink.backfill.errors import BackfillError
from countersink.backfill.history import Run
from countersink.backfill.retraction import ChunkUndo, Reached, TakenBack
from countersink.store.connection import Session, rerun
from countersink.store.counters.catalog import load_scheme, marked_days
from countersink.store.sessions import PatientSession, open_tables

_PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What an undo took back.

    Attributes:
        run: its number.
        counter, mode: of the run.
        state: ``undone``, or ``undoing`` where it was told to stop: run again, it goes on.
        chunks: that were taken back now: pieces of sources; of a reconcile, ranges of corrections.
        cells: (key, bucket) that were changed.
        amount: what was added to the totals by taking it back: mostly negative.
        notices: for people, a sentence each: what is not right now.
    """

    run: int
    counter: str
    mode: str
    state: str
    chunks: int
    cells: int
    amount: int
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoProgress:
    """How many chunks, or corrections, of how many are taken back.

    Attributes:
        done: chunks that were taken back.
        of: that there were to be taken back when it began.
    """

    done: int
    of: int


def undo(
    mysql_url: str,
    run: int,
    *,
    on_progress: Callable[[UndoProgress], object] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    reached: Reached = lambda point: None,
) -> Undone:
    """Take back what a run added, or set.

    Args:
        mysql_url: the database.
        run: its number.
        on_progress: called after every chunk.
        stop: asked before every chunk; true once it should end.
        reached: called with ``begun``, ``before_commit`` and ``taken_back``; for tests.

    Raises:
        BackfillError: there is no such run, or it was undone already, or its counter was deleted,
            or its journal is damaged.
        StoreError: MySQL did not do its part; what was taken back is taken back, and calling it
            again goes on.
    """

    def told(done: int, of: int) -> None:
        on_progress(UndoProgress(done=done, of=of))

    with PatientSession(partial(open_tables, mysql_url), stop).open() as link:
        begun = link.run(_begin, run)
        reached("begun")
        if begun.mode == "reconcile":
            marked = link.run(marked_days, begun.counter, run)
            back = retraction.take_corrections_back(
                partial(open_tables, mysql_url), run, on_progress=told, stop=stop
            )
            days = marked if back.cells else set()
        else:
            back = _take_back(link, begun, told, stop, reached)
            days = set(map(link.run(load_scheme, begun.counter).local_day, back.labels))
        # Nothing was added to what was set: so all that was added to it is older.
        older = run if begun.mode == "reconcile" else 0
        notices = link.run(targets.set_days_after, begun.counter, days, older)
        if back.finished:
            reached("taken_back")
            link.run(_finish, begun)
    return Undone(
        run=run,
        counter=begun.counter,
        mode=begun.mode,
        state="undone" if back.finished else "undoing",
        chunks=back.chunks,
        cells=back.cells,
        amount=back.amount,
        notices=notices,
    )


def _begin(session: Session, number: int) -> Run:
    """Let nothing of a run be committed any more."""
    with session.transaction():
        run = history.run(session, number, lock=True)
        if run.state == "undone":
            raise BackfillError(
                f"backfill {number} was undone already, at {run.seen:%Y-%m-%d %H:%M:%S} UTC: there"
                " is nothing left to take back"
            )
        if run.state == "deleted":
            raise BackfillError(
                f"backfill {number} is gone with its counter {run.counter}, which was deleted:"
                " there is nothing to take back"
            )
        session.execute(
            "UPDATE backfill_run SET state = 'undoing', seen = UTC_TIMESTAMP(3),"
            " ended = COALESCE(ended, UTC_TIMESTAMP(3)) WHERE id = %s",
            (number,),
        )
    return run


def _take_back(
    link: PatientSession,
    run: Run,
    on_progress: Callable[[int, int], object],
    stop: Callable[[], bool],
    reached: Reached,
) -> TakenBack:
    """Take back every chunk of a run, the last ones first."""
    of = link.run(_count, run)
    chunks = cells = amount = 0
    labels = set[int]()
    finished = True
    while finished and (page := link.run(_page, run)):
        for source, start_at in page:
            if stop():
                finished = False
                break
            taken = link.run(ChunkUndo(run, source, start_at, reached).take_back)
            if taken is None:
                continue  # another undo has
            chunks += 1
            cells += taken.cells
            amount += sum(taken.sums().values())
            labels.update(taken.of(run.counter))
            on_progress(chunks, max(chunks, of))
    return TakenBack(
        chunks=chunks, cells=cells, amount=amount, finished=finished, labels=frozenset(labels)
    )


def _count(session: Session, run: Run) -> int:
    ((chunks,),) = session.query(
        "SELECT COUNT(*) FROM backfill_chunk WHERE run = %s AND state = 'done'", (run.id,)
    )
    return int(chunks)


def _page(session: Session, run: Run) -> list[tuple[int, int]]:
    """(source, start_at) of the last chunks that are to be taken back."""
    found = session.query(
        "SELECT source, start_at FROM backfill_chunk WHERE run = %s AND state = 'done'"
        " ORDER BY source DESC, start_at DESC LIMIT %s",
        (run.id, _PAGE),
    )
    return [(int(source), int(start_at)) for source, start_at in found]


def _finish(session: Session, run: Run) -> None:
    """Let its sources be read on where what is counted of them ends, and say that the run is
    undone.
    """
    if run.mode == "reconcile":  # its chunks were never counted themselves
        session.execute(
            "UPDATE backfill_chunk SET state = 'undone' WHERE run = %s AND state = 'done'",
            (run.id,),
        )
    for (source,) in session.query(
        "SELECT DISTINCT source FROM backfill_chunk WHERE run = %s AND state = 'undone'"
        " ORDER BY source",
        (run.id,),
    ):
        rerun(partial(sources.release, session, source))
    session.execute(
        "UPDATE backfill_run SET state = 'undone', rejects = NULL, seen = UTC_TIMESTAMP(3)"
        " WHERE id = %s AND state = 'undoing'",
        (run.id,),
    )

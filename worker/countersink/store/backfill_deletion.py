"""The statements of :mod:`countersink.store.deletion` that take away what backfills of a counter
wrote down.

Each of these functions is one transaction's work, at REPEATABLE READ, and leaves what is written
down as right as it was: what goes with its amount goes over to the ledger of slot 0, from which the
deletion of the counter's rows takes what they hold; and a source loses its last chunks first, as if
they had never been read.
"""

from typing import Final

from countersink.store.adding import FIRST_SLOT
from countersink.store.connection import Session

MOST_REJECTS: Final = 20_000
"""Rejected lines that go in one transaction, unless one chunk has more."""
_ROWS_PER_CHUNK: Final = 50
"""A chunk takes about as long as so many rows: its journal is long."""
_REASON: Final = "its counter was deleted"


def end_runs(session: Session, counter: str) -> None:
    """Let no run of a counter commit anything more."""
    session.execute(
        "UPDATE backfill_run SET state = 'deleted', ended = COALESCE(ended, UTC_TIMESTAMP(3)),"
        " error = COALESCE(error, %s) WHERE counter = %s AND state NOT IN ('undone', 'deleted')",
        (_REASON, counter),
    )


def runs_with_corrections(session: Session, counter: str) -> list[int]:
    """The runs of a counter that may have corrections, or what their sources say."""
    return [
        int(run)
        for (run,) in session.query(
            "SELECT id FROM backfill_run WHERE counter = %s AND mode <> 'add' ORDER BY id",
            (counter,),
        )
    ]


def sources(session: Session, counter: str) -> list[int]:
    """The sources of a counter."""
    found = session.query(
        "SELECT id FROM backfill_source WHERE counter = %s ORDER BY id", (counter,)
    )
    return [int(source) for (source,) in found]


def delete_corrections(session: Session, counter: str, run: int, size: int) -> bool:
    """Delete the first ``size`` corrections of a run, and as many rows of what its sources say;
    whether there may be more.
    """
    rows = session.query(
        "SELECT should_be - had FROM backfill_drift WHERE run = %s"
        " ORDER BY bucket, counter_key LIMIT %s FOR UPDATE",
        (run, size),
    )
    if rows:
        session.execute(
            "DELETE FROM backfill_drift WHERE run = %s ORDER BY bucket, counter_key LIMIT %s",
            (run, len(rows)),
        )
        _to_slot_0(session, counter, sum(int(amount) for (amount,) in rows))
    said = session.execute(
        "DELETE FROM backfill_truth WHERE run = %s ORDER BY bucket, counter_key LIMIT %s",
        (run, size),
    )
    return len(rows) == size or said == size


def delete_chunks(session: Session, counter: str, source: int, size: int) -> bool:
    """Delete the last chunks of a source, and, when it has none left, the source; whether it is
    still there.
    """
    # First of all, as everybody who reads on in it does.
    found = session.query(
        "SELECT truth_of FROM backfill_source WHERE id = %s FOR UPDATE", (source,)
    )
    if not found:
        return False
    chunks = session.query(
        "SELECT start_at, first_line, rejected, IF(state = 'done', amount, 0) FROM backfill_chunk"
        " WHERE source = %s ORDER BY start_at DESC LIMIT %s FOR UPDATE",
        (source, max(1, size // _ROWS_PER_CHUNK)),
    )
    if not chunks:
        session.execute("DELETE FROM backfill_source WHERE id = %s", (source,))
        return False
    rejected = amount = 0
    start_at, first_line = chunks[0][:2]
    for each in chunks:
        rejected += int(each[2])
        if rejected > MOST_REJECTS and each is not chunks[0]:
            break
        start_at, first_line = each[:2]
        amount += int(each[3])
    for table in ("backfill_journal", "backfill_reject", "backfill_chunk"):
        session.execute(
            f"DELETE FROM {table} WHERE source = %s AND start_at >= %s", (source, start_at)
        )
    # Nobody knows it by its head any more: it is no source to go on with.
    session.execute(
        "UPDATE backfill_source SET read_to = %s, lines_to = %s, open_at = NULL, head = %s"
        " WHERE id = %s",
        (start_at, first_line - 1, bytes(32), source),
    )
    if not found[0][0]:
        _to_slot_0(session, counter, amount)
    return True


def finish(session: Session, counter: str) -> bool:
    """Delete the marks of a counter's reconciles; whether nothing else is left. To be run while
    nobody is counting.
    """
    end_runs(session, counter)
    session.execute("DELETE FROM reconciled_bucket WHERE counter = %s", (counter,))
    ((left,),) = session.query(
        "SELECT EXISTS (SELECT 1 FROM backfill_source AS s JOIN backfill_chunk AS c"
        " ON c.source = s.id WHERE s.counter = %s) OR EXISTS (SELECT 1 FROM backfill_run AS r"
        " JOIN backfill_drift AS d ON d.run = r.id WHERE r.counter = %s)",
        (counter, counter),
    )
    return not left


def _to_slot_0(session: Session, counter: str, amount: int) -> None:
    if amount:
        session.execute(
            "INSERT INTO counter_ledger (counter, slot, amount) VALUES (%s, 0, %s), (%s, %s, %s)"
            + session.dialect.upsert_add("counter_ledger", "amount"),
            (counter, amount, counter, FIRST_SLOT, -amount),
        )

"""Lines that could not be counted: kept with their chunk."""

from collections.abc import Iterable, Sequence
from typing import Final

from countersink.backfill.formats.tally import Reject
from countersink.backfill.listing import RejectedLine
from countersink.store.connection import Session

_PER_STATEMENT: Final = 500
_ROW_BYTES: Final = 4096
"""More than a row takes in a statement: text that is escaped, a reason of any script."""
_OVERHEAD: Final = 1024
_ALL: Final = 2**63 - 1


def insert(
    session: Session, source: int, start_at: int, run: int, rejected: Sequence[Reject]
) -> None:
    """Keep the rejected lines of a chunk, in its transaction."""
    size = min(_PER_STATEMENT, (session.max_allowed_packet - _OVERHEAD) // _ROW_BYTES)
    for start in range(0, len(rejected), size):
        args: list[object] = []
        part = rejected[start : start + size]
        for one in part:
            args += source, start_at, one.line, run, one.reason, one.text
        values = ", ".join(["(%s, %s, %s, %s, %s, %s)"] * len(part))
        session.execute(
            "INSERT INTO backfill_reject (source, start_at, line, run, reason, text)"
            f" VALUES {values}",
            args,
        )


def take_back(session: Session, source: int, line: int, begins_at: int, before: int) -> None:
    """Forget that an unfinished record was rejected, or lines of it: more of it has come, and it is
    looked at again.

    Args:
        line: the number of its first line.
        begins_at: where it begins.
        before: where the chunk begins with which it goes on.
    """
    session.execute(
        # By the chunks since the one in which it begins.
        "DELETE FROM backfill_reject WHERE source = %s AND line >= %s AND start_at < %s"
        " AND start_at >= (SELECT MAX(c.start_at) FROM backfill_chunk AS c"
        " WHERE c.source = %s AND c.start_at <= %s)",
        (source, line, before, source, begins_at),
    )


def number(session: Session, run: int, source: int | None = None, *, most: int = _ALL) -> int:
    """How many rejected lines are kept of a run, or of one source by it; counted up to ``most``."""
    where, args = "run = %s", [run]
    if source is not None:
        where, args = f"{where} AND source = %s", [run, source]
    ((found,),) = session.query(
        f"SELECT COUNT(*) FROM (SELECT 1 FROM backfill_reject WHERE {where} LIMIT %s) AS kept",
        (*args, most),
    )
    return int(found)


def named(source: str, rejected: Iterable[Reject]) -> Iterable[RejectedLine]:
    """Rejected lines as they are listed."""
    for one in rejected:
        yield RejectedLine(source=source, line=one.line, reason=one.reason, text=one.text)

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


_OF_PART: Final = (
    "source = %s AND line = %s AND start_at < %s AND start_at >="
    " (SELECT MAX(c.start_at) FROM backfill_chunk AS c WHERE c.source = %s AND c.start_at <= %s)"
)
"""A line that was read in parts: by the chunks since the one in which it begins."""


def was_rejected(session: Session, source: int, line: int, begins_at: int, before: int) -> bool:
    """Whether what was there of a line was rejected.

    Args:
        line: its number.
        begins_at: where it begins.
        before: where the chunk begins with which it goes on.
    """
    args = source, line, before, source, begins_at
    return bool(session.query(f"SELECT 1 FROM backfill_reject WHERE {_OF_PART}", args))


def take_back(session: Session, source: int, line: int, begins_at: int, before: int) -> None:
    """Forget that it was rejected: more of it has come, and it can be counted. Arguments as those
    of :func:`was_rejected`.
    """
    args = source, line, before, source, begins_at
    session.execute(f"DELETE FROM backfill_reject WHERE {_OF_PART}", args)


def named(source: str, rejected: Iterable[Reject]) -> Iterable[RejectedLine]:
    """Rejected lines as they are listed."""
    for one in rejected:
        yield RejectedLine(source=source, line=one.line, reason=one.reason, text=one.text)

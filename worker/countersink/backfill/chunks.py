"""Chunks as the tables have them: which bytes of a source were counted, or are to be."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from countersink.backfill import rejects
from countersink.backfill.runs import Counted, counted_of
from countersink.backfill.spans import Span
from countersink.store.connection import Session

_PAGE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A row of ``backfill_chunk``.

    Attributes:
        source: of which source.
        start_at, end_at: its bytes, uncompressed, half-open.
        reads_from: before ``start_at`` where the line before was counted without its end.
        first_line: number of the line that begins at ``reads_from``.
        digest: SHA-256 of [start_at, end_at).
        state: ``pending``, ``done`` or ``undone``.
        run: that planned it; when done: that counted it.
        open_rejected: when it was counted last, its last line had no newline, and was rejected for
            the total that it would have made.
    """

    source: int
    start_at: int
    end_at: int
    reads_from: int
    first_line: int
    digest: bytes
    state: str
    run: int
    open_rejected: bool


_SELECT: Final = (
    "SELECT source, start_at, end_at, reads_from, first_line, digest, state, run, open_rejected"
    " FROM backfill_chunk"
)

_SHARED: Final = " LOCK IN SHARE MODE"


def of(session: Session, source: int, start_at: int = 0) -> Iterator[Chunk]:
    """A source's chunks in order, from the one on that begins at ``start_at`` or later."""
    while True:
        page = session.query(
            f"{_SELECT} WHERE source = %s AND start_at >= %s ORDER BY start_at LIMIT %s",
            (source, start_at, _PAGE),
        )
        for row in page:
            yield _chunk(row)
        if len(page) < _PAGE:
            return
        start_at = int(page[-1][1]) + 1


def to_be_counted(session: Session, source: int) -> list[Chunk]:
    """Those that were planned and not counted, or taken back, in order."""
    found = session.query(
        f"{_SELECT} WHERE source = %s AND state IN ('pending', 'undone') ORDER BY start_at",
        (source,),
    )
    return [_chunk(row) for row in found]


def all_done(session: Session, source: int, end: int) -> bool:
    """Whether every byte of a source before ``end`` is counted."""
    ((others, reached),) = session.query(
        "SELECT COALESCE(SUM(state <> 'done'), 0), COALESCE(MAX(end_at), 0) FROM backfill_chunk"
        " WHERE source = %s AND start_at < %s",
        (source, end),
    )
    return not others and int(reached) >= end


def claim(session: Session, source: int, start_at: int) -> Chunk | None:
    """A chunk that is to be counted, locked until the transaction ends; None: it was counted, or
    somebody else has it."""
    found = session.query(
        f"{_SELECT} WHERE source = %s AND start_at = %s AND state IN ('pending', 'undone')"
        " FOR UPDATE SKIP LOCKED",
        (source, start_at),
    )
    return _chunk(found[0]) if found else None


def open_rejected(session: Session, source: int, end: int, *, lock: bool = False) -> bool:
    """Whether the last line of the chunk that ends at ``end`` was rejected for its total.

    Args:
        lock: it stays so until the transaction ends.
    """
    found = session.query(
        "SELECT open_rejected FROM backfill_chunk WHERE source = %s AND start_at < %s"
        f" ORDER BY start_at DESC LIMIT 1{_SHARED if lock else ''}",
        (source, end),
    )
    return bool(found and found[0][0])


def followed(session: Session, chunk: Chunk, *, lock: bool = False) -> bool:
    """Whether a chunk was counted that goes on in the last line of this one.

    Args:
        lock: it stays so until the transaction ends.
    """
    after = "FROM backfill_chunk WHERE source = %s AND start_at = %s"
    args = chunk.source, chunk.end_at
    goes_on = session.query(f"SELECT 1 {after} AND reads_from < start_at", args)
    if not goes_on:
        return False  # without waiting for who has it locked
    found = session.query(f"SELECT state = 'done' {after}{_SHARED if lock else ''}", args)
    return bool(found and found[0][0])


def insert_done(
    session: Session,
    source: int,
    run: int,
    span: Span,
    reads_from: int,
    counted: Counted,
    open_rejected: bool,
) -> None:
    """Note that a chunk was counted that nobody had planned."""
    session.execute(
        "INSERT INTO backfill_chunk (source, start_at, end_at, reads_from, first_line, digest,"
        " state, run, open_rejected, lines_read, counted, filtered, rejected, amount)"
        " VALUES (%s, %s, %s, %s, %s, %s, 'done', %s, %s, %s, %s, %s, %s, %s)",
        (
            source,
            span.start,
            span.end,
            reads_from,
            span.first_line,
            span.digest,
            run,
            open_rejected,
            *_sums(counted),
        ),
    )


def update_done(
    session: Session, chunk: Chunk, run: int, counted: Counted, open_rejected: bool
) -> None:
    """Note that a chunk was counted that had been planned, or taken back."""
    session.execute(
        "UPDATE backfill_chunk SET state = 'done', run = %s, open_rejected = %s, lines_read = %s,"
        " counted = %s, filtered = %s, rejected = %s, amount = %s"
        " WHERE source = %s AND start_at = %s",
        (run, open_rejected, *_sums(counted), chunk.source, chunk.start_at),
    )


def figures(session: Session, source: int, run: int) -> tuple[Counted, Counted]:
    """What of a source a run has counted, and what the others have."""
    sums = (
        "SELECT SUM(end_at - start_at), SUM(lines_read), SUM(counted), SUM(filtered),"
        " SUM(rejected), SUM(amount) FROM backfill_chunk"
        " WHERE source = %s AND state = 'done' AND run {} %s"
    )
    (own,) = session.query(sums.format("="), (source, run))
    (others,) = session.query(sums.format("<>"), (source, run))
    kept = rejects.number(session, run, source)
    return replace(counted_of(own), rejects=kept), counted_of(others)


def forget(session: Session, source: int) -> None:
    """Delete a source's chunks, of which nothing was counted."""
    for table in "backfill_chunk", "backfill_reject":
        session.execute(f"DELETE FROM {table} WHERE source = %s", (source,))


def _sums(counted: Counted) -> tuple[int, ...]:
    return counted.lines, counted.counted, counted.filtered, counted.rejected, counted.amount


def _chunk(row: tuple[Any, ...]) -> Chunk:
    return Chunk(
        source=int(row[0]),
        start_at=int(row[1]),
        end_at=int(row[2]),
        reads_from=int(row[3]),
        first_line=int(row[4]),
        digest=bytes(row[5]),
        state=row[6],
        run=int(row[7]),
        open_rejected=bool(row[8]),
    )

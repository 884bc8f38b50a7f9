"""SQL of the tables ``backfill_chunk`` and ``backfill_sample``: which bytes of a source were
counted, and the samples by which lines are known again.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from countersink.backfill.input.spans import Span
from countersink.backfill.run_state import LineCounts, counted_of
from countersink.store.connection import Session

_PAGE: Final = 1000
_SHARED: Final = " LOCK IN SHARE MODE"
COUNTS: Final = "'running', 'done', 'stopped', 'failed'"
"""States of runs whose lines are in the totals."""
_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Chunk:
    """A row of ``backfill_chunk``.

    Attributes:
        source: of which source.
        start_at, end_at: its bytes, uncompressed, half-open.
        first_line: number of its first line, from 1.
        next_line: number of the line behind it.
        digest: SHA-256 of its bytes.
        state: ``done`` or ``undone``.
        run: that counted it.
        open: its last line has no newline.
        torn: and ends within quotes.
    """

    source: int
    start_at: int
    end_at: int
    first_line: int
    next_line: int
    digest: bytes
    state: str
    run: int
    open: bool
    torn: bool

    @staticmethod
    def of(source: int, span: Span, run: int) -> "Chunk":
        """That of a span that a run counts."""
        return Chunk(
            *(source, span.start, span.end, span.first_line, span.next_line),
            *(span.digest, "done", run, span.open, span.torn),
        )


_COLUMNS: Final = "source, start_at, end_at, first_line, next_line, digest, state, run, open, torn"
_SELECT: Final = f"SELECT {_COLUMNS} FROM backfill_chunk WHERE source = %s"


def of(session: Session, source: int, start_at: int = 0) -> Iterator[Chunk]:
    """A source's chunks in order, from the one on that begins at ``start_at`` or later."""
    while True:
        page = session.query(
            f"{_SELECT} AND start_at >= %s ORDER BY start_at LIMIT %s", (source, start_at, _PAGE)
        )
        yield from map(_chunk, page)
        if len(page) < _PAGE:
            return
        start_at = int(page[-1][1]) + 1


def undone(session: Session, source: int) -> list[Chunk]:
    """Those that were taken back, in order."""
    found = session.query(f"{_SELECT} AND state = 'undone' ORDER BY start_at", (source,))
    return [_chunk(row) for row in found]


def last(session: Session, source: int) -> Chunk | None:
    """The last chunk of a source."""
    found = session.query(f"{_SELECT} ORDER BY start_at DESC LIMIT 1", (source,))
    return _chunk(found[0]) if found else None


def is_undone(session: Session, chunk: Chunk) -> bool:
    """Whether a chunk that was taken back still is; it stays so until the transaction ends."""
    return bool(
        session.query(
            "SELECT 1 FROM backfill_chunk WHERE source = %s AND start_at = %s AND end_at = %s"
            " AND digest = %s AND state = 'undone' FOR UPDATE",
            (chunk.source, chunk.start_at, chunk.end_at, chunk.digest),
        )
    )


def write(session: Session, chunk: Chunk, counted: LineCounts) -> None:
    """Note that a chunk is counted, which may have been taken back before."""
    figures = counted.lines, counted.counted, counted.filtered, counted.rejected, counted.amount
    sums = "lines_read", "counted", "filtered", "rejected", "amount"
    again = ", ".join(f"{column} = %s" for column in ("state", "run", *sums))
    session.execute(
        f"INSERT INTO backfill_chunk ({_COLUMNS}, {', '.join(sums)}) VALUES (%s, %s, %s, %s, %s,"
        f" %s, 'done', %s, %s, %s, %s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE {again}",
        (
            *(chunk.source, chunk.start_at, chunk.end_at, chunk.first_line, chunk.next_line),
            *(
                chunk.digest,
                chunk.run,
                chunk.open,
                chunk.torn,
                *figures,
                "done",
                chunk.run,
                *figures,
            ),
        ),
    )


def figures(session: Session, source: int, run: int) -> tuple[LineCounts, LineCounts]:
    """What of a source a run has counted, and what the others have."""
    sums = (
        "SELECT SUM(end_at - start_at), SUM(lines_read), SUM(counted), SUM(filtered),"
        " SUM(rejected), SUM(amount) FROM backfill_chunk"
        " WHERE source = %s AND state = 'done' AND run {} %s"
    )
    (own,) = session.query(sums.format("="), (source, run))
    (others,) = session.query(sums.format("<>"), (source, run))
    return counted_of(own), counted_of(others)


def forget(session: Session, source: int, start_at: int = 0) -> None:
    """Delete a source's chunks from ``start_at`` on, of which nothing is counted."""
    for table in "backfill_chunk", "backfill_sample":
        session.execute(
            f"DELETE FROM {table} WHERE source = %s AND start_at >= %s", (source, start_at)
        )


def _chunk(row: tuple[Any, ...]) -> Chunk:
    return Chunk(*(*row[:8], bool(row[8]), bool(row[9])))


def insert_samples(
    session: Session, source: int, start_at: int, samples: Collection[bytes]
) -> None:
    """Write down samples of a chunk's lines."""
    for some in _some(samples):
        values = ", ".join(f"(X'{one.hex()}', {source:d}, {start_at:d})" for one in some)
        session.execute(
            f"INSERT IGNORE INTO backfill_sample (sample, source, start_at) VALUES {values}"
        )


def others_with(
    session: Session, samples: Collection[bytes], source: int, *, lock: bool = False
) -> dict[bytes, set[int]]:
    """The samples that other sources have, too → these sources; without what is being taken back.

    Args:
        source: the one that is not another; negative: none of them.
        lock: wait for those who have written some of them and not committed yet.
    """
    found: dict[bytes, set[int]] = {}
    for some in _some(samples):
        literals = ", ".join(f"X'{one.hex()}'" for one in some)
        # Of this table alone: a running run changes its row with each chunk.
        if not session.query(
            f"SELECT 1 FROM backfill_sample WHERE sample IN ({literals}) AND source <> %s"
            f"{_SHARED if lock else ' LIMIT 1'}",
            (source,),
        ):
            continue
        for sample, other in session.query(
            "SELECT p.sample, p.source FROM backfill_sample AS p"
            " JOIN backfill_chunk AS c ON c.source = p.source AND c.start_at = p.start_at"
            f" JOIN backfill_run AS r ON r.id = c.run AND r.state IN ({COUNTS})"
            f" WHERE p.sample IN ({literals}) AND p.source <> %s",
            (source,),
        ):
            found.setdefault(bytes(sample), set()).add(int(other))
    return found


def _some(samples: Collection[bytes]) -> Iterator[list[bytes]]:
    """Some of them at a time, in the order of the index."""
    ordered = sorted(samples)
    for at in range(0, len(ordered), _AT_ONCE):
        yield ordered[at : at + _AT_ONCE]

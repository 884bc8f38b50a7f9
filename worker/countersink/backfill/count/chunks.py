"""SQL of the tables ``backfill_chunk`` and ``backfill_sample``: states of chunks, claiming one, and
the samples by which lines are known again.

A row of ``backfill_chunk`` says which bytes of a source were counted, or are to be.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

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
        reads_from: before ``start_at`` where the line before was counted without its end.
        first_line: number of the line that begins at ``reads_from``.
        digest: SHA-256 of [start_at, end_at).
        state: ``pending``, ``done`` or ``undone``.
        run: that planned it; when done: that counted it.
        open_rejected: when it was counted last, its last line had no newline, and was rejected for
            its member.
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


def of(session: Session, source: int, start_at: int = 0) -> Iterator[Chunk]:
    """A source's chunks in order, from the one on that begins at ``start_at`` or later."""
    while True:
        page = session.query(
            f"{_SELECT} WHERE source = %s AND start_at >= %s ORDER BY start_at LIMIT %s",
            (source, start_at, _PAGE),
        )
        for row in page:
            yield Chunk(*row)
        if len(page) < _PAGE:
            return
        start_at = int(page[-1][1]) + 1


def to_be_counted(session: Session, source: int) -> list[Chunk]:
    """Those that were planned and not counted, or taken back, in order."""
    found = session.query(
        f"{_SELECT} WHERE source = %s AND state IN ('pending', 'undone') ORDER BY start_at",
        (source,),
    )
    return [Chunk(*row) for row in found]


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
    return Chunk(*found[0]) if found else None


def open_rejected(session: Session, source: int, end: int, *, lock: bool = False) -> bool:
    """As :attr:`Chunk.open_rejected`, of the chunk that ends at ``end``.

    Args:
        lock: it stays so until the transaction ends.
    """
    found = session.query(
        "SELECT open_rejected FROM backfill_chunk WHERE source = %s AND start_at < %s"
        f" ORDER BY start_at DESC LIMIT 1{_SHARED if lock else ''}",
        (source, end),
    )
    return bool(found and found[0][0])


def counted_by(session: Session, run: int) -> list[tuple[int, int]]:
    """The source and the beginning of each chunk that a run has counted, in order."""
    return session.query(
        "SELECT source, start_at FROM backfill_chunk WHERE run = %s AND state = 'done'"
        " ORDER BY source, start_at",
        (run,),
    )


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


def insert(session: Session, source: int, run: int, span: Span, reads_from: int) -> None:
    """Plan a chunk."""
    session.execute(
        "INSERT INTO backfill_chunk (source, start_at, end_at, reads_from, first_line, digest,"
        " state, run) VALUES (%s, %s, %s, %s, %s, %s, 'pending', %s)",
        (source, span.start, span.end, reads_from, span.first_line, span.digest, run),
    )


def take_over(session: Session, source: int, end: int, run: int) -> None:
    """Make what others have planned and not counted before ``end``, or undone, a run's."""
    found = session.query(
        "SELECT start_at FROM backfill_chunk WHERE source = %s AND end_at <= %s"
        " AND state IN ('pending', 'undone') ORDER BY start_at FOR UPDATE SKIP LOCKED",
        (source, end),
    )
    for (start_at,) in found:
        session.execute(
            "UPDATE backfill_chunk SET run = %s, state = 'pending'"
            " WHERE source = %s AND start_at = %s",
            (run, source, start_at),
        )


def update_done(
    session: Session,
    source: int,
    start_at: int,
    run: int,
    counted: LineCounts,
    open_rejected: bool,
) -> None:
    """Note that a chunk was counted."""
    session.execute(
        "UPDATE backfill_chunk SET state = 'done', run = %s, open_rejected = %s, lines_read = %s,"
        " counted = %s, filtered = %s, rejected = %s, amount = %s, rejects = %s"
        " WHERE source = %s AND start_at = %s",
        (
            *(run, open_rejected, counted.lines, counted.counted, counted.filtered),
            *(counted.rejected, counted.amount, counted.rejects, source, start_at),
        ),
    )


def figures(session: Session, source: int, run: int) -> tuple[LineCounts, LineCounts]:
    """What of a source a run has counted, and what the others have."""
    sums = (
        "SELECT SUM(end_at - start_at), SUM(lines_read), SUM(counted), SUM(filtered),"
        " SUM(rejected), SUM(amount), SUM(rejects) FROM backfill_chunk"
        " WHERE source = %s AND state = 'done' AND run {} %s"
    )
    (own,) = session.query(sums.format("="), (source, run))
    (others,) = session.query(sums.format("<>"), (source, run))
    return counted_of(own), counted_of(others)


def forget(session: Session, source: int) -> None:
    """Delete a source's chunks, of which nothing is counted."""
    for table in "backfill_chunk", "backfill_sample":
        session.execute(f"DELETE FROM {table} WHERE source = %s", (source,))


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

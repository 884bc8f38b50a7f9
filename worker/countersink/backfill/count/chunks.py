"""SQL of the tables ``backfill_chunk``, ``backfill_lines``, ``backfill_sample`` and
``backfill_left_out``: states of chunks, claiming one, and marks by which lines are known again.

A row of ``backfill_chunk`` says which bytes of a source were counted, or are to be. The marks of
its lines are in ``backfill_lines`` and ``backfill_sample``; which lines were not counted, as
another source has them, is in ``backfill_left_out``.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from countersink.backfill import rejects
from countersink.backfill.count.line_marks import SIZE, MarkedLines, MarkedPart
from countersink.backfill.input.spans import Span
from countersink.backfill.run_state import LineCounts, counted_of
from countersink.store.connection import Session
from countersink.store.ledger import seals

_PAGE: Final = 1000
_SHARED: Final = " LOCK IN SHARE MODE"
OPEN_LEFT_OUT: Final = 2
"""What :attr:`Chunk.open_rejected` is where that line is another source's."""
MARK_TABLES: Final = ("backfill_lines", "backfill_sample", "backfill_left_out")
LINE_TABLES: Final = ("backfill_reject", *MARK_TABLES)
"""What is kept of a chunk's lines."""
COUNTS: Final = "'running', 'done', 'stopped', 'failed'"
"""States of runs whose lines are in the totals."""
_AT_ONCE: Final = 1000
HEAD_BYTES: Final = 32 * SIZE
"""What of marks is kept to find where they begin."""
_SMALL: Final = 1024
"""Lines of a row that is put together with those beside it: as of a log read every minute."""
_TOGETHER: Final = 8192
"""Lines that are put together at most."""


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
        open_rejected: when it was counted last, its last line had no newline, and 1: was rejected
            for the total that it would have made; 2: was left out as a line of another source.
    """

    source: int
    start_at: int
    end_at: int
    reads_from: int
    first_line: int
    digest: bytes
    state: str
    run: int
    open_rejected: int


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


def open_rejected(session: Session, source: int, end: int, *, lock: bool = False) -> int:
    """Whether the last line of the chunk that ends at ``end`` was rejected for its total, or left
    out: as :attr:`Chunk.open_rejected`.

    Args:
        lock: it stays so until the transaction ends.
    """
    found = session.query(
        "SELECT open_rejected FROM backfill_chunk WHERE source = %s AND start_at < %s"
        f" ORDER BY start_at DESC LIMIT 1{_SHARED if lock else ''}",
        (source, end),
    )
    return int(found[0][0]) if found else 0


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
        " state, run, seal) VALUES (%s, %s, %s, %s, %s, %s, 'pending', %s,"
        f" {seals.seal('backfill_chunk')})",
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
            seals.update("backfill_chunk", "run = %s, state = 'pending'")
            + " WHERE source = %s AND start_at = %s",
            (run, source, start_at),
        )


def update_done(
    session: Session,
    source: int,
    start_at: int,
    run: int,
    counted: LineCounts,
    open_rejected: int,
) -> None:
    """Note that a chunk was counted."""
    session.execute(
        seals.update(
            "backfill_chunk",
            "state = 'done', run = %s, open_rejected = %s, lines_read = %s, counted = %s,"
            " filtered = %s, rejected = %s, amount = %s",
        )
        + " WHERE source = %s AND start_at = %s",
        (
            *(run, open_rejected, counted.lines, counted.counted, counted.filtered),
            *(counted.rejected, counted.amount, source, start_at),
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
    kept = rejects.number(session, run, source)
    return replace(counted_of(own), rejects=kept), counted_of(others)


def forget(session: Session, source: int) -> None:
    """Delete a source's chunks, of which nothing is counted."""
    delete(session, source, tables=("backfill_chunk", *LINE_TABLES))


def delete(
    session: Session,
    source: int,
    start_at: int | None = None,
    *,
    tables: Sequence[str] = LINE_TABLES,
) -> None:
    """Delete the rows of a source, or of one chunk of it, that some tables have."""
    where, args = "source = %s", [source]
    if start_at is not None:
        where, args = f"{where} AND start_at = %s", [source, start_at]
    for table in tables:
        session.execute(f"DELETE FROM {table} WHERE {where}", args)


@dataclass(frozen=True, slots=True)
class MarkedRow:
    """A row of ``backfill_lines`` without its marks.

    Attributes:
        source, start_at: the chunk.
        piece: number of the row among the chunk's.
        end_at: where the chunk ends; None: its last line is not the last one of the row.
        from_start: its first line is the first one of the row.
        goes_on: that line begins in the chunk before.
        run: that counted it.
        lines: how many there are.
        head: the marks of the first ones.
    """

    source: int
    start_at: int
    piece: int
    end_at: int | None
    from_start: bool
    goes_on: bool
    run: int
    lines: int
    head: bytes


def put_together(rows: Sequence[MarkedRow]) -> list[MarkedLines]:
    """Pieces of rows; small ones beside each other make one."""
    groups: list[list[MarkedRow]] = []
    lines = 0
    for row in rows:
        before = groups[-1][-1] if groups else None
        if (
            before is not None
            and (row.source, row.start_at) == (before.source, before.end_at)
            and row.from_start
            and max(row.lines, before.lines) <= _SMALL
            and lines + row.lines <= _TOGETHER
        ):
            groups[-1].append(row)
            lines += row.lines - row.goes_on
        else:
            groups.append([row])
            lines = row.lines
    return [_marked_lines(group) for group in groups]


def _marked_lines(rows: Sequence[MarkedRow]) -> MarkedLines:
    head = b""
    for row in rows:
        if row.goes_on and head and row is not rows[0]:
            head = head[:-SIZE]
        head += row.head
        if len(row.head) < row.lines * SIZE:
            break
    # The last line of a row is not whole where the next one goes on in it.
    cut = [*(row.goes_on for row in rows[1:]), False]
    return MarkedLines(
        tuple(
            MarkedPart(row.source, row.start_at, row.piece, row.run, row.lines - one)
            for row, one in zip(rows, cut, strict=True)
        ),
        head,
    )


def sample_owners(session: Session, samples: Collection[bytes]) -> dict[bytes, int]:
    """The samples that are there → the source whose line counts, 0 if it is being taken back."""
    found: dict[bytes, int] = {}
    for some in _some(set(samples)):
        literals = ", ".join(f"X'{one.hex()}'" for one in some)
        if not session.query(f"SELECT 1 FROM backfill_sample WHERE sample IN ({literals}) LIMIT 1"):
            continue
        rows = session.query(
            f"SELECT p.sample, IF(r.state IN ({COUNTS}), p.source, 0) FROM backfill_sample AS p"
            " JOIN backfill_chunk AS c ON c.source = p.source AND c.start_at = p.start_at"
            f" JOIN backfill_run AS r ON r.id = c.run WHERE p.sample IN ({literals})"
        )
        found.update((bytes(sample), int(source)) for sample, source in rows)
    return found


def insert_samples(
    session: Session, source: int, start_at: int, samples: Collection[bytes]
) -> bool:
    """Write samples that are not there; False: somebody has written some of them meanwhile."""
    written = 0
    for some in _some(samples):
        values = ", ".join(f"(X'{one.hex()}', {source:d}, {start_at:d})" for one in some)
        written += session.execute(
            f"INSERT IGNORE INTO backfill_sample (sample, source, start_at) VALUES {values}"
        )
    return written == len(samples)


def insert_lines(
    session: Session,
    row: MarkedRow,
    *,
    scope: bytes,
    end_at: int,
    buckets: tuple[int, int],
    marks: bytes,
) -> None:
    """Write a row with its marks."""
    session.execute(
        "INSERT INTO backfill_lines (source, start_at, piece, scope, first_bucket, last_bucket,"
        " end_at, from_start, to_end, goes_on, run, line_count, head, marks, seal)"
        # In hex: the driver takes long to quote so many bytes.
        f" VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, X'{marks.hex()}',"
        f" {seals.seal('backfill_lines')})",
        (
            *(row.source, row.start_at, row.piece, scope, *buckets, end_at, row.from_start),
            *(row.end_at is not None, row.goes_on, row.run, row.lines, row.head),
        ),
    )


def insert_left_out(
    session: Session, source: int, start_at: int, left_out: Mapping[tuple[int, int, int], int]
) -> None:
    """Write down how many lines of a chunk are not counted, by (source, start_at, run) of the
    chunk where they are."""
    for (of_source, of_start_at, of_run), lines in left_out.items():
        session.execute(
            "INSERT INTO backfill_left_out (source, start_at, of_source, of_start_at, of_run,"
            " line_count, seal) VALUES (%s, %s, %s, %s, %s, %s,"
            f" {seals.seal('backfill_left_out')})",
            (source, start_at, of_source, of_start_at, of_run, lines),
        )


def lines_left_out(session: Session, source: int, run: int) -> dict[str, int]:
    """How many lines of a source a run has not counted, by the path of the source that has them."""
    found = session.query(
        "SELECT s.path, SUM(l.line_count) FROM backfill_left_out AS l"
        " JOIN backfill_chunk AS c ON c.source = l.source AND c.start_at = l.start_at"
        " JOIN backfill_source AS s ON s.id = l.of_source"
        " WHERE l.source = %s AND c.run = %s AND c.state = 'done' GROUP BY s.path ORDER BY s.path",
        (source, run),
    )
    return {path: int(lines) for path, lines in found}


def needed_by(session: Session, run: int) -> list[int]:
    """The runs that left lines out as this one had counted them."""
    found = session.query(
        "SELECT DISTINCT c.run FROM backfill_left_out AS l"
        " JOIN backfill_chunk AS c ON c.source = l.source AND c.start_at = l.start_at"
        " WHERE l.of_run = %s AND c.run <> %s AND c.state = 'done' ORDER BY c.run",
        (run, run),
    )
    return [int(number) for (number,) in found]


def _some(samples: Collection[bytes]) -> Iterator[list[bytes]]:
    """Some of them at a time, in the order of the index."""
    ordered = sorted(samples)
    for at in range(0, len(ordered), _AT_ONCE):
        yield ordered[at : at + _AT_ONCE]

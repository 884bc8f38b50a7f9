"""SQL of the tables ``backfill_chunk`` and ``backfill_sample``: which bytes of a source were
counted, and the samples by which lines are known again.
"""

from collections.abc import Collection, Iterator
from dataclasses import astuple, dataclass
from typing import Any, Final

from countersink.backfill.input.spans import Span
from countersink.backfill.run_state import LineCounts
from countersink.database.session import Session

_PAGE: Final = 1000
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
    run: int
    open: bool
    torn: bool

    @staticmethod
    def of(source: int, span: Span, run: int) -> "Chunk":
        """That of a span that a run counts."""
        return Chunk(
            *(source, span.start, span.end, span.first_line, span.next_line),
            *(span.digest, run, span.open, span.torn),
        )


_COLUMNS: Final = "source, start_at, end_at, first_line, next_line, digest, run, open, torn"
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


def last(session: Session, source: int) -> Chunk | None:
    """The last chunk of a source."""
    found = session.query(f"{_SELECT} ORDER BY start_at DESC LIMIT 1", (source,))
    return _chunk(found[0]) if found else None


def is_there(session: Session, chunk: Chunk) -> bool:
    """Whether a run has counted that very chunk."""
    return bool(
        session.query(
            "SELECT 1 FROM backfill_chunk WHERE source = %s AND start_at = %s AND end_at = %s"
            " AND digest = %s AND run = %s",
            (chunk.source, chunk.start_at, chunk.end_at, chunk.digest, chunk.run),
        )
    )


def insert(session: Session, chunk: Chunk, counted: LineCounts) -> None:
    """Note that a chunk is counted."""
    sums = "lines_read", "counted", "filtered", "rejected", "amount"
    marks = ", ".join(["%s"] * (len(sums) + 9))
    session.execute(
        f"INSERT INTO backfill_chunk ({_COLUMNS}, {', '.join(sums)}) VALUES ({marks})",
        (*astuple(chunk), *astuple(counted)[1:]),
    )


def forget(session: Session, source: int) -> None:
    """Delete a source's chunks, of which nothing is counted."""
    for table in "backfill_chunk", "backfill_sample":
        session.execute(f"DELETE FROM {table} WHERE source = %s", (source,))


def _chunk(row: tuple[Any, ...]) -> Chunk:
    return Chunk(*(*row[:7], bool(row[7]), bool(row[8])))


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
    """The samples that other sources have, too → these sources.

    Args:
        source: the one that is not another; negative: none of them.
        lock: wait for those who have written some of them and not committed yet.
    """
    found: dict[bytes, set[int]] = {}
    for some in _some(samples):
        literals = ", ".join(f"X'{one.hex()}'" for one in some)
        for sample, other in session.query(
            f"SELECT sample, source FROM backfill_sample WHERE sample IN ({literals})"
            f" AND source <> %s{' LOCK IN SHARE MODE' if lock else ''}",
            (source,),
        ):
            found.setdefault(bytes(sample), set()).add(int(other))
    return found


def _some(samples: Collection[bytes]) -> Iterator[list[bytes]]:
    """Some of them at a time, in the order of the index."""
    ordered = sorted(samples)
    for at in range(0, len(ordered), _AT_ONCE):
        yield ordered[at : at + _AT_ONCE]

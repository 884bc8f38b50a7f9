"""SQL of the tables ``backfill_chunk`` and ``backfill_sample``: which bytes of a source were
counted, and the samples by which lines are known again. Samples of lines, by which a source is
refused that holds many lines of another one: which lines are samples, and how many known ones are
too many.

A sample is a hash of a line that the recipe counts. Kept are those of one line in :data:`ONE_OF`,
chosen by what it holds, so that the same lines are chosen in whatever source they stand; and those
of all lines of a source that begins with few. Of a chunk with few lines all are compared.
"""

import hashlib
import json
import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import compress
from typing import Any, Final

from countersink.backfill.history import LineCounts
from countersink.backfill.spans import Span
from countersink.database.session import Session
from countersink.logs.formats.reader import LineReader, RecordTally, Window

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


ONE_OF: Final = 32
"""Of so many lines of a source one is a sample."""
FEW: Final = 2048
"""All lines of a chunk that has no more are samples."""
LEAST: Final = 8
"""Different known samples of a chunk that are too many,"""
LEAST_CHOSEN: Final = 3
"""or of those that are samples in any source,"""
PART: Final = 10
"""if they are this part of its samples: a tenth."""
NumberedLine = tuple[int, bytes]
"""A line without its newline, behind its number."""
SAMPLE_BYTES: Final = 8
"""Of a sample."""
_CHOSEN: Final = bytes(byte % ONE_OF == 0 for byte in range(256))
"""For each byte of a checksum 1 if its line is a sample, else 0."""


def scope_of(counter: str, truth_of: int, name: str) -> bytes:
    """The key of the hashes: lines are known again in sources of the same scope only."""
    text = json.dumps([counter, truth_of, name]).encode()
    return hashlib.sha256(text).digest()[:8]


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of the lines of one chunk, records of CSV being lines.

    Attributes:
        chosen: sample → number and line, of those that are samples in any source.
        every: the same of all lines, if the chunk has few; else as ``chosen``.
    """

    chosen: Mapping[bytes, NumberedLine]
    every: Mapping[bytes, NumberedLine]

    def kept(self, start_at: int) -> Collection[bytes]:
        """Those by which the lines of a chunk are known again: those of all lines, if they are few,
        only where their source begins.
        """
        return self.chosen if start_at else self.every


class LineSamples:
    """Takes samples of the lines of one chunk.

    Args:
        scope: from :func:`scope_of`.
        reader: of the source.
        bucket: as of the tally by which the chunk is counted.
    """

    def __init__(self, scope: bytes, reader: LineReader, bucket: Callable[[int], int]) -> None:
        self._scope = scope
        self._reader = reader
        self._bucket = bucket
        self._candidates: list[NumberedLine] = []
        self._first: list[NumberedLine] | None = []

    def add(self, window: Window) -> None:
        """Add the lines of a window."""
        numbers, lines = window.numbers, window.lines
        sums = array("I", map(zlib.adler32, lines))
        if sys.byteorder != "little":
            sums.byteswap()
        # All lines at once: by the low byte of the sum that weighs bytes by their places.
        chosen = sums.tobytes()[2 :: sums.itemsize].translate(_CHOSEN)
        self._candidates += [
            (numbers[place], lines[place]) for place in compress(range(len(lines)), chosen)
        ]
        if self._first is not None:
            self._first += zip(numbers, lines, strict=True)
            if len(self._first) > FEW:
                self._first = None

    def finish(self) -> Samples:
        """The samples of all lines that were added, without what the recipe does not count."""
        chosen = self._counted(self._candidates)
        return Samples(chosen, chosen if self._first is None else self._counted(self._first))

    def _counted(self, lines: list[NumberedLine]) -> dict[bytes, NumberedLine]:
        """Those that the recipe counts, by their samples."""
        if lines and tally_of(lines, self._reader, self._bucket).counted != len(lines):
            lines = [one for one in lines if tally_of([one], self._reader, self._bucket).counted]
        digest, key, day_of = hashlib.blake2b, self._scope, self._reader.day_of
        return {
            digest(one[1] + day_of(one[0]), digest_size=SAMPLE_BYTES, key=key).digest(): one
            for one in lines
        }


def tally_of(
    lines: Sequence[NumberedLine], reader: LineReader, bucket: Callable[[int], int]
) -> RecordTally:
    """What some lines come to."""
    tally = RecordTally(bucket)
    numbers, texts = [number for number, _ in lines], [text for _, text in lines]
    reader.count(Window(numbers, texts, []), tally)
    return tally


def too_many(
    samples: Samples, others: Mapping[bytes, Collection[int]]
) -> tuple[list[bytes], int, list[int]]:
    """The known samples of a chunk, of how many, and the sources that have their lines, that of
    most lines first; nothing where they are few.

    Args:
        others: sample → the other sources that have the line; lines that a source repeats itself
            are other events.
    """
    # Of another source with many lines only those are known that are chosen in this one, too.
    for some, least in (samples.every, LEAST), (samples.chosen, LEAST_CHOSEN):
        found = [sample for sample in some if sample in others]
        if len(found) >= max(least, len(some) / PART):
            lines = Counter(other for sample in found for other in others[sample])
            return found, len(some), [other for other, _ in lines.most_common()]
    return [], 0, []

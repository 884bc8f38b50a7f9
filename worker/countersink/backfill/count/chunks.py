"""SQL of the tables ``backfill_chunk`` (byte ranges of sources that were counted) and
``backfill_sample`` (samples of their lines); ``LineSamples``; ``find_repeats``, which finds
chunks with many lines of another source.

A sample is a hash of a line that the recipe counts. One line in :data:`LINES_PER_SAMPLE` is
sampled, chosen by its bytes, so that every source samples the same lines; if the first chunk of a
source is small, all its lines are sampled. All lines of a small chunk are compared.
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
_SAMPLES_PER_STATEMENT: Final = 1000


@dataclass(frozen=True, slots=True)
class Chunk:
    """A row of ``backfill_chunk``.

    Attributes:
        source: number of its source.
        start_at, end_at: half-open range of uncompressed bytes.
        first_line: number of its first line, from 1.
        next_line: number of the line after it.
        digest: SHA-256 of its bytes.
        run: number of the run that counted it.
        open: its last line has no newline.
        torn: its last line has no newline and ends within quotes.
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
    def of_span(source: int, span: Span, run: int) -> "Chunk":
        """The chunk of a span that a run counts."""
        return Chunk(
            *(source, span.start, span.end, span.first_line, span.next_line),
            *(span.digest, run, span.open, span.torn),
        )


_COLUMNS: Final = "source, start_at, end_at, first_line, next_line, digest, run, open, torn"
_SELECT: Final = f"SELECT {_COLUMNS} FROM backfill_chunk WHERE source = %s"


def read(session: Session, source: int, start_at: int = 0) -> Iterator[Chunk]:
    """The chunks of a source that begin at ``start_at`` or later, in order."""
    while True:
        page = session.query(
            f"{_SELECT} AND start_at >= %s ORDER BY start_at LIMIT %s", (source, start_at, _PAGE)
        )
        yield from map(_chunk, page)
        if len(page) < _PAGE:
            return
        start_at = int(page[-1][1]) + 1


def read_last(session: Session, source: int) -> Chunk | None:
    """The last chunk of a source; None: it has none."""
    found = session.query(f"{_SELECT} ORDER BY start_at DESC LIMIT 1", (source,))
    return _chunk(found[0]) if found else None


def exists(session: Session, chunk: Chunk) -> bool:
    """Whether a chunk with the same bytes, digest and run is in the table."""
    return bool(
        session.query(
            "SELECT 1 FROM backfill_chunk WHERE source = %s AND start_at = %s AND end_at = %s"
            " AND digest = %s AND run = %s",
            (chunk.source, chunk.start_at, chunk.end_at, chunk.digest, chunk.run),
        )
    )


def insert(session: Session, chunk: Chunk, counted: LineCounts) -> None:
    """Insert a chunk with its sums."""
    sums = "lines_read", "counted", "filtered", "rejected", "amount"
    marks = ", ".join(["%s"] * (len(sums) + 9))
    session.execute(
        f"INSERT INTO backfill_chunk ({_COLUMNS}, {', '.join(sums)}) VALUES ({marks})",
        (*astuple(chunk), *astuple(counted)[1:]),
    )


def delete(session: Session, source: int) -> None:
    """Delete the chunks and samples of a source without counted lines."""
    for table in "backfill_chunk", "backfill_sample":
        session.execute(f"DELETE FROM {table} WHERE source = %s", (source,))


def _chunk(row: tuple[Any, ...]) -> Chunk:
    return Chunk(*(*row[:7], bool(row[7]), bool(row[8])))


def insert_samples(
    session: Session, source: int, start_at: int, samples: Collection[bytes]
) -> None:
    """Insert samples of a chunk's lines."""
    for some in _parts(samples):
        values = ", ".join(f"(X'{one.hex()}', {source:d}, {start_at:d})" for one in some)
        session.execute(
            f"INSERT IGNORE INTO backfill_sample (sample, source, start_at) VALUES {values}"
        )


def find_other_sources(
    session: Session, samples: Collection[bytes], source: int, *, lock: bool = False
) -> dict[bytes, set[int]]:
    """Samples that other sources have as well → numbers of these sources.

    Args:
        source: number of the source to leave out; negative: none.
        lock: wait for transactions that have inserted some of the samples.
    """
    found: dict[bytes, set[int]] = {}
    for some in _parts(samples):
        literals = ", ".join(f"X'{one.hex()}'" for one in some)
        for sample, other in session.query(
            f"SELECT sample, source FROM backfill_sample WHERE sample IN ({literals})"
            f" AND source <> %s{' LOCK IN SHARE MODE' if lock else ''}",
            (source,),
        ):
            found.setdefault(bytes(sample), set()).add(int(other))
    return found


def _parts(samples: Collection[bytes]) -> Iterator[list[bytes]]:
    """Samples in the order of the index, in parts of one statement each."""
    ordered = sorted(samples)
    for start in range(0, len(ordered), _SAMPLES_PER_STATEMENT):
        yield ordered[start : start + _SAMPLES_PER_STATEMENT]


LINES_PER_SAMPLE: Final = 32
"""Lines per chosen sample."""
SMALL_CHUNK: Final = 2048
"""Maximum of lines of a small chunk: all its lines are samples."""
MIN_REPEATS: Final = 8
"""Different known samples for which a chunk is refused, if they are 1/``REPEATED_PART`` of all."""
MIN_CHOSEN_REPEATS: Final = 3
"""The same for chosen samples."""
REPEATED_PART: Final = 10
NumberedLine = tuple[int, bytes]
"""(number, line without its newline)."""
SAMPLE_BYTES: Final = 8
"""Bytes of a sample."""
_CHOSEN: Final = bytes(byte % LINES_PER_SAMPLE == 0 for byte in range(256))
"""For each byte of a checksum: 1 if its line is chosen, else 0."""


def scope_of(counter: str, truth_of: int, name: str) -> bytes:
    """The key of sample hashes: only sources of one scope have samples in common."""
    text = json.dumps([counter, truth_of, name]).encode()
    return hashlib.sha256(text).digest()[:8]


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one chunk's lines (with CSV: records).

    Attributes:
        chosen: sample → numbered line, of the lines that every source samples.
        every: sample → numbered line, of all lines if the chunk is small; else ``chosen``.
    """

    chosen: Mapping[bytes, NumberedLine]
    every: Mapping[bytes, NumberedLine]

    def kept(self, start_at: int) -> Collection[bytes]:
        """The samples to store: the chosen ones; of the first chunk of a source, every one."""
        return self.chosen if start_at else self.every


class LineSamples:
    """Takes samples of the lines of one chunk.

    Args:
        scope: from :func:`scope_of`.
        reader: of the source.
        bucket: minutes to labels, as in the chunk's tally.
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
        # All lines at once: by the low byte of Adler-32's second sum, which depends on the order
        # of a line's bytes.
        chosen = sums.tobytes()[2 :: sums.itemsize].translate(_CHOSEN)
        self._candidates += [
            (numbers[place], lines[place]) for place in compress(range(len(lines)), chosen)
        ]
        if self._first is not None:
            self._first += zip(numbers, lines, strict=True)
            if len(self._first) > SMALL_CHUNK:
                self._first = None

    def finish(self) -> Samples:
        """The samples of all added lines that the recipe counts."""
        chosen = self._counted(self._candidates)
        return Samples(chosen, chosen if self._first is None else self._counted(self._first))

    def _counted(self, lines: list[NumberedLine]) -> dict[bytes, NumberedLine]:
        """The lines that the recipe counts, by their samples."""
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
    """The tally of some lines."""
    tally = RecordTally(bucket)
    numbers, texts = [number for number, _ in lines], [text for _, text in lines]
    reader.count(Window(numbers, texts, []), tally)
    return tally


def find_repeats(
    samples: Samples, others: Mapping[bytes, Collection[int]]
) -> tuple[list[bytes], int, list[int]]:
    """(Known samples of a chunk, number of samples compared, sources of the known samples, those
    with most of them first); empty where too few are known to refuse the chunk.

    Args:
        others: sample → the other sources with the line. Lines that a source repeats itself are
            other events.
    """
    # Of a large source only the chosen samples are stored: these are compared by themselves, too.
    for some, least in (samples.every, MIN_REPEATS), (samples.chosen, MIN_CHOSEN_REPEATS):
        found = [sample for sample in some if sample in others]
        if len(found) >= max(least, len(some) / REPEATED_PART):
            lines = Counter(other for sample in found for other in others[sample])
            return found, len(some), [other for other, _ in lines.most_common()]
    return [], 0, []

"""Chunks and samples of lines: SQL of ``backfill_chunk`` (counted ranges of bytes of sources) and
``backfill_sample`` (samples of their lines). ``LineSamples`` takes samples, and ``find_repeats``
finds out whether other sources have many lines of a chunk.

A sample is a hash of a line that the recipe counts. On average, one line in
:data:`LINES_PER_SAMPLE` is sampled. The bytes of a line decide whether it is sampled, so every
source samples the same lines. A chunk is small if it has no more than :data:`SMALL_CHUNK` lines:
then all its counted lines are compared, and if it is the first chunk of a source, all of them are
stored as samples.
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

from countersink.backfill.content import Content
from countersink.backfill.history import LineCounts
from countersink.backfill.spans import BYTES, Span
from countersink.database.session import Session
from countersink.logs.formats.reader import LineReader, RecordBlock, RecordTally
from countersink.logs.lines import BLOCK_BYTES

_PAGE: Final = 1000
_SAMPLES_PER_STATEMENT: Final = 1000


@dataclass(frozen=True, slots=True)
class Chunk:
    """A row of ``backfill_chunk``.

    Attributes:
        source: number of the source.
        start_at, end_at: offsets of its first byte and of the byte after its last, uncompressed.
        first_line: number of its first line in the source, from 1.
        next_line: number of the line after its last line.
        digest: SHA-256 of its bytes.
        run: number of the run that counted it.
        open: True if its last line has no newline.
        torn: True if its last line has no newline and ends within quotes.
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
        """Return the chunk that has the bytes of ``span`` and is counted by ``run``."""
        return Chunk(
            *(source, span.start, span.end, span.first_line, span.next_line),
            *(span.digest, run, span.open, span.torn),
        )


_COLUMNS: Final = "source, start_at, end_at, first_line, next_line, digest, run, open, torn"
_SELECT: Final = f"SELECT {_COLUMNS} FROM backfill_chunk WHERE source = %s"


def read(session: Session, source: int, start_at: int = 0) -> Iterator[Chunk]:
    """Iterate over the chunks of a source that begin at ``start_at`` or later, by offset."""
    while True:
        page = session.query(
            f"{_SELECT} AND start_at >= %s ORDER BY start_at LIMIT %s", (source, start_at, _PAGE)
        )
        yield from map(_chunk, page)
        if len(page) < _PAGE:
            return
        start_at = int(page[-1][1]) + 1


def read_last(session: Session, source: int) -> Chunk | None:
    """Return the last chunk of a source, or None if it has none."""
    found = session.query(f"{_SELECT} ORDER BY start_at DESC LIMIT 1", (source,))
    return _chunk(found[0]) if found else None


def exists(session: Session, chunk: Chunk) -> bool:
    """Return whether the table has a chunk with the same source, offsets, digest and run: then an
    earlier attempt has counted it, although the reply to its COMMIT was lost.
    """
    return bool(
        session.query(
            "SELECT 1 FROM backfill_chunk WHERE source = %s AND start_at = %s AND end_at = %s"
            " AND digest = %s AND run = %s",
            (chunk.source, chunk.start_at, chunk.end_at, chunk.digest, chunk.run),
        )
    )


def insert(session: Session, chunk: Chunk, counted: LineCounts) -> None:
    """Insert a chunk, with the numbers of its lines and the sum of its amounts (``counted``)."""
    sums = "lines_read", "counted", "filtered", "rejected", "amount"
    marks = ", ".join(["%s"] * (len(sums) + 9))
    session.execute(
        f"INSERT INTO backfill_chunk ({_COLUMNS}, {', '.join(sums)}) VALUES ({marks})",
        (*astuple(chunk), *astuple(counted)[1:]),
    )


def delete(session: Session, source: int) -> None:
    """Delete the chunks and samples of a source. Totals and journals are not changed, so the caller
    must have checked that no line of the source was counted."""
    for table in "backfill_chunk", "backfill_sample":
        session.execute(f"DELETE FROM {table} WHERE source = %s", (source,))


def digest(content: Content, start: int, end: int) -> bytes | None:
    """Return the SHA-256 of the bytes [start, end), to compare with that of a counted chunk. Return
    None if the content ends before ``end``.

    Raises:
        Unreadable: some of these bytes cannot be read.
    """
    found = hashlib.sha256()
    content.seek(start)
    while content.offset < end:
        data = content.read(min(BLOCK_BYTES, end - content.offset))
        if not data:
            return None
        found.update(data)
    return found.digest()


def _chunk(row: tuple[Any, ...]) -> Chunk:
    return Chunk(*(*row[:7], bool(row[7]), bool(row[8])))


def insert_samples(
    session: Session, source: int, start_at: int, samples: Collection[bytes]
) -> None:
    """Insert samples of lines of the chunk that begins at ``start_at``. Those that the source has
    already are skipped.
    """
    for some in _parts(samples):
        values = ", ".join(f"(X'{one.hex()}', {source:d}, {start_at:d})" for one in some)
        session.execute(
            f"INSERT IGNORE INTO backfill_sample (sample, source, start_at) VALUES {values}"
        )


def find_other_sources(
    session: Session, samples: Collection[bytes], source: int, *, lock: bool = False
) -> dict[bytes, set[int]]:
    """Return the samples that other sources have as well, each with the numbers of these sources.

    Args:
        session: session, in or outside a transaction.
        samples: the samples to look for.
        source: number of the source to leave out; a negative number leaves out none.
        lock: True to read under a share lock, which waits for open transactions that have inserted
            some of the samples.
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
    """Sort the samples, as the index does, and split them: one list for each SQL statement."""
    ordered = sorted(samples)
    for start in range(0, len(ordered), _SAMPLES_PER_STATEMENT):
        yield ordered[start : start + _SAMPLES_PER_STATEMENT]


LINES_PER_SAMPLE: Final = 64
"""Number of lines of which one is sampled, on average."""
SMALL_CHUNK: Final = 2048
"""Maximum of lines in a small chunk, of which all lines are compared. It has at most 32 MiB."""
MIN_REPEATS: Final = 8
"""Minimum of samples that other sources have, for a chunk to be refused. They must also be at least
one in ``REPEATED_PART`` of all compared samples."""
MIN_CHOSEN_REPEATS: Final = 3
"""The same minimum when only the chosen samples are compared, those of the lines that every source
samples."""
REPEATED_PART: Final = 10
NumberedLine = tuple[int, bytes]
"""(number of a line, the line without its newline)."""
SAMPLE_BYTES: Final = 8
"""Length in bytes of a sample."""
_CHOSEN: Final = bytes(byte % LINES_PER_SAMPLE == 1 for byte in range(256))
"""For each value of a checksum's byte: 1 if the line is sampled, else 0. Blank lines are not."""


def scope_of(counter: str, truth_of: int, name: str) -> bytes:
    """Return the key with which lines of a source are hashed to samples. Equal lines of two sources
    give equal samples only if the sources have the same counter, ``truth_of`` and name.

    Args:
        counter: name of the counter.
        truth_of: number of the reconcile that reads the source; 0 if none does.
        name: the source's name (``--source-name``), which tells sources with equal content apart;
            '' for none.
    """
    text = json.dumps([counter, truth_of, name]).encode()
    return hashlib.sha256(text).digest()[:8]


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of the counted lines (with CSV: records) of one chunk.

    Attributes:
        chosen: sample → numbered line, for the counted lines that are sampled because of their
            bytes, in every source.
        every: sample → numbered line, for all counted lines if the chunk is small; else the same as
            ``chosen``.
    """

    chosen: Mapping[bytes, NumberedLine]
    every: Mapping[bytes, NumberedLine]

    def kept(self, start_at: int) -> Collection[bytes]:
        """Return the samples to store of the chunk that begins at ``start_at``: :attr:`every` for
        the first chunk of a source, which begins at 0, and :attr:`chosen` for other chunks.
        """
        return self.chosen if start_at else self.every


class LineSamples:
    """Collector of samples (hashes) of the lines of one chunk.

    Args:
        scope: key of the hashes, from :func:`scope_of`.
        reader: reader of the source.
        bucket: the function from minutes to labels with which the chunk is counted.

    Attributes:
        candidates: the lines added so far that every source samples if it counts them.
    """

    def __init__(self, scope: bytes, reader: LineReader, bucket: Callable[[int], int]) -> None:
        self._scope = scope
        self._reader = reader
        self._bucket = bucket
        self.candidates: list[NumberedLine] = []
        self._first: list[NumberedLine] | None = []
        self._size = 0

    def add(self, block: RecordBlock) -> None:
        """Keep those lines of one piece that are sampled because of their bytes. As long as the
        chunk is small, keep all its lines, too. :meth:`finish` hashes those that are counted.
        """
        numbers, lines = block.numbers, block.lines
        sums = array("I", map(zlib.adler32, lines))
        if sys.byteorder != "little":
            sums.byteswap()
        # All lines at once: by the low byte of Adler-32's second sum, which depends on the order
        # of a line's bytes.
        chosen = sums.tobytes()[2 :: sums.itemsize].translate(_CHOSEN)
        self.candidates += [
            (numbers[place], lines[place]) for place in compress(range(len(lines)), chosen)
        ]
        if self._first is not None:
            self._first += zip(numbers, lines, strict=True)
            self._size += sum(map(len, lines))
            if len(self._first) > SMALL_CHUNK or self._size > 2 * BYTES:
                self._first = None

    def finish(self, tally: RecordTally) -> Samples:
        """Return the samples of the kept lines that are counted. ``tally`` is the tally of all
        lines of the chunk."""
        chosen = self._counted(self.candidates, tally)
        every = chosen if self._first is None else self._counted(self._first, tally)
        return Samples(chosen, every)

    def _counted(self, lines: list[NumberedLine], tally: RecordTally) -> dict[bytes, NumberedLine]:
        """Return a dict, sample → line, of those of the ``lines`` that are counted."""
        rejected = {each.line for each in tally.rejected}
        lines = [one for one in lines if one[0] not in rejected]
        if tally.counted + len(rejected) < tally.lines:  # some are blank, or left out
            lines = [one for one in lines if tally_of([one], self._reader, self._bucket).counted]
        hashed, key, day_of = hashlib.blake2b, self._scope, self._reader.day_of
        return {
            hashed(one[1] + day_of(one[0]), digest_size=SAMPLE_BYTES, key=key).digest(): one
            for one in lines
        }


def tally_of(
    lines: Sequence[NumberedLine], reader: LineReader, bucket: Callable[[int], int]
) -> RecordTally:
    """Read some lines of a source once more, and return their tally: the sums of their amounts, and
    how many lines were counted, left out and rejected. So callers find out whether the recipe
    counts a line, and in which buckets. Nothing is written.
    """
    tally = RecordTally(bucket)
    numbers, texts = [number for number, _ in lines], [text for _, text in lines]
    reader.count(RecordBlock(numbers, texts, []), tally)
    return tally


def find_repeats(
    samples: Samples, others: Mapping[bytes, Collection[int]]
) -> tuple[list[bytes], int, list[int]]:
    """Find out whether a chunk must be refused, because other sources have many of its lines. First
    ``samples.every`` is compared with ``others``: other sources have many if they have at least
    :data:`MIN_REPEATS` of these samples, and at least one in :data:`REPEATED_PART` of them. Then
    ``samples.chosen`` is compared in the same way, with :data:`MIN_CHOSEN_REPEATS` as the minimum.
    One of the two comparisons suffices.

    Args:
        samples: samples of the chunk.
        others: sample → numbers of the other sources that have the line. Equal lines within one
            source are different events, and no repeats.

    Returns:
        ``([], 0, [])`` if the chunk need not be refused. Otherwise the samples of the chunk that
            other sources have, the number of samples in this comparison, and the numbers of the
            other sources: the source that has most of the samples comes first.
    """
    # Of a large source only the chosen samples are stored: these are compared by themselves, too.
    for some, least in (samples.every, MIN_REPEATS), (samples.chosen, MIN_CHOSEN_REPEATS):
        found = [sample for sample in some if sample in others]
        if len(found) >= max(least, len(some) / REPEATED_PART):
            lines = Counter(other for sample in found for other in others[sample])
            return found, len(some), [other for other, _ in lines.most_common()]
    return [], 0, []

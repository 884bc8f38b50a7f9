"""Samples of lines, by which a source is refused that holds many lines of another one: which lines
are samples, and how many known ones are too many.

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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

from countersink.logs.formats.reader import LineReader, RecordTally, Window

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

"""Checksums of lines by which lines counted before are found: bytes per line, which lines are
samples (``ONE_OF``), and matching them; what is then left out is decided in ``overlap.py``.

Of every line two bytes are kept, in order: by them a run of lines is found and measured. Of one
line in :data:`ONE_OF`, chosen by what it holds, eight bytes are kept that are in an index: by them
lines are found that stand among others. Sources with few lines have all of theirs in it.
"""

import hashlib
import json
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from countersink.producers.access_log.formats.reader import Window

SIZE: Final = 2
"""Bytes of a line's mark."""
SAMPLE: Final = 8
"""Bytes of a sample."""
ONE_OF: Final = 256
"""Of so many lines one is a sample."""
FEW: Final = 1024
"""All lines of a source that has no more are samples."""
_CHOSEN: Final = tuple(
    bytes(digest < 256 // part for digest in hashlib.shake_128(bytes([part])).digest(256))
    for part in (8, 8, 4)
)
"""What says of each of three bytes of a CRC whether a line is chosen: it is if all three do. CRCs
are linear, so that those of lines that differ in a few digits may agree in some bits."""
LEAST: Final = 4
"""Lines that match; fewer may be equal by chance."""
_PLACES: Final = 16
"""Places at which one piece may begin to match, as in a log of identical lines."""


def scope_of(counter: str, truth_of: int, name: str) -> bytes:
    """Within what lines are known again: sources of other scopes have nothing to do with these."""
    text = json.dumps([counter, truth_of, name]).encode()
    return hashlib.sha256(text).digest()[:8]


class LineMarks:
    """The marks of the lines of one chunk, records of CSV being lines.

    Attributes:
        sums: 32 bits of each line, its newline being there or not.
        samples: the index of a line → what of it is in the index.
    """

    def __init__(self, scope: bytes) -> None:
        self.sums = array("I")
        self.samples: dict[int, bytes] = {}
        self._scope = scope
        self._few: list[bytes] | None = []

    def add(self, window: Window) -> None:
        """Add the lines of a window."""
        lines = window.ended
        before = len(self.sums)
        own = array("I", map(zlib.crc32, lines))
        self.sums += own
        chosen = _chosen(own)
        at = chosen.find(1)
        while at >= 0:
            self.samples[before + at] = self._sample(lines[at])
            at = chosen.find(1, at + 1)
        if self._few is not None:
            self._few = [*self._few, *lines] if len(self.sums) <= FEW else None

    def all_samples(self) -> None:
        """Make each line a sample, if there are few."""
        for at, line in enumerate(self._few or ()):
            self.samples[at] = self._sample(line)

    def packed(self, start: int = 0, end: int | None = None) -> bytes:
        """The marks of the lines [start, end), two bytes each."""
        own = self.sums[start:end]
        if sys.byteorder != "little":
            own.byteswap()
        halves = memoryview(own.tobytes()).cast("H")
        return halves[1::2].tobytes()

    def distinct(self, ranges: Sequence[tuple[int, int]]) -> int:
        """How many different lines the ranges hold."""
        found = set[int]()
        for start, end in ranges:
            found.update(self.sums[start:end])
        return len(found)

    def chosen(self, at: int) -> bool:
        """Whether a sample would be one in a source of many lines, too."""
        return _chosen(self.sums[at : at + 1]) == b"\x01"

    def _sample(self, line: bytes) -> bytes:
        return hashlib.blake2b(line, digest_size=SAMPLE, key=self._scope).digest()


def _chosen(sums: "array[int]") -> bytes:
    """For each line 1 if it is a sample, else 0."""
    data = sums.tobytes()
    if sys.byteorder != "little":
        data = data[::-1]
    found = -1
    for place, table in enumerate(_CHOSEN):
        # As one number: all lines at once.
        found &= int.from_bytes(data[place :: sums.itemsize].translate(table), "little")
    chosen = found.to_bytes(len(sums), "little")
    return chosen if sys.byteorder == "little" else chosen[::-1]


class MarkedPart(NamedTuple):
    """Where lines of a piece are kept: a row, or what of it is in the piece."""

    source: int
    start_at: int
    number: int
    run: int
    lines: int


@dataclass(frozen=True, slots=True)
class MarkedLines:
    """Lines of a source that were counted, beside each other.

    Attributes:
        parts: they, in order.
        head: the marks of the first lines, :data:`LEAST` or more if there are as many.
    """

    parts: tuple[MarkedPart, ...]
    head: bytes

    @property
    def source(self) -> int:
        """Whose lines they are."""
        return self.parts[0].source

    @property
    def lines(self) -> int:
        """How many there are."""
        return sum(part.lines for part in self.parts)


@dataclass(frozen=True, slots=True)
class Match:
    """Lines [start, end) of a chunk that are those of a piece from its line ``at`` on."""

    start: int
    end: int
    piece: MarkedLines
    at: int

    @property
    def to_the_end(self) -> bool:
        """Whether it goes on to the piece's end."""
        return self.at + self.end - self.start == self.piece.lines

    def parts(self, end: int) -> dict[tuple[int, int, int], int]:
        """How many of its lines before ``end`` are in which chunk, of which run."""
        found: dict[tuple[int, int, int], int] = {}
        first, behind = self.at, self.at + min(self.end, end) - self.start
        for part in self.piece.parts:
            lines = min(behind, part.lines) - max(first, 0)
            if lines > 0:
                found[part.source, part.start_at, part.run] = lines
            first, behind = first - part.lines, behind - part.lines
        return found


@dataclass(frozen=True, slots=True)
class MatchedBlock:
    """Matches beside each other.

    Attributes:
        matches: they, in order.
        explained: it begins where the chunk or a piece does and ends where one does: as when files
            were put together or cut, rather than when two servers wrote the same lines.
    """

    matches: tuple[Match, ...]
    explained: bool

    @property
    def start(self) -> int:
        """The first line of the chunk that is in it."""
        return self.matches[0].start

    @property
    def end(self) -> int:
        """The first line behind it."""
        return self.matches[-1].end


def common(one: bytes, at: int, other: bytes, place: int) -> int:
    """How many lines are the same in ``one`` from ``at`` on and in ``other`` from ``place`` on."""
    one_view, other_view = memoryview(one)[at * SIZE :], memoryview(other)[place * SIZE :]
    most = min(len(one_view), len(other_view))
    least = 0
    if one_view[:most] == other_view[:most]:
        return most // SIZE
    while most - least > SIZE:
        middle = (least + most) // 2 // SIZE * SIZE
        if one_view[least:middle] == other_view[least:middle]:
            least = middle
        else:
            most = middle
    return least // SIZE


def matches_of(
    marks: bytes,
    pieces: Iterable[MarkedLines],
    load: Callable[[MarkedLines], bytes],
    *,
    within: bool,
    header: bool,
) -> list[Match]:
    """The matches of a chunk's marks with pieces.

    Args:
        load: the marks of a piece.
        within: the chunk may begin in the midst of a piece.
        header: the first line may be the header that each file has.
    """
    found: list[Match] = []
    for piece in pieces:
        if piece.lines < LEAST:
            continue
        first = int(header and piece.lines > LEAST)
        places = {(place, 0) for place in _places(marks, piece.head[: LEAST * SIZE])}
        if first:
            head = piece.head[SIZE : (LEAST + 1) * SIZE]
            places |= {(place, 1) for place in _places(marks, head)}
        if within:
            own = load(piece)
            for line in range(1 + int(header)):
                head = marks[line * SIZE : (line + LEAST) * SIZE]
                if len(head) >= LEAST * SIZE:
                    places |= {(line, place) for place in _places(own, head)}
        for start, at in sorted(places):
            size = common(marks, start, load(piece), at)
            if size >= LEAST:
                found.append(Match(start, start + size, piece, at))
    return found


def small_matches(
    marks: bytes,
    pieces: Iterable[MarkedLines],
    load: Callable[[MarkedLines], bytes],
    is_of: Callable[[int, MarkedLines], bool],
    *,
    header: bool,
) -> list[Match]:
    """The matches of very few lines: with pieces that have no more, and of the chunk's beginning
    with a piece's end.

    Args:
        load, header: as of :func:`matches_of`.
        is_of: whether a line of the chunk is surely one of a piece's source.
    """
    found: list[Match] = []
    for piece in pieces:
        if piece.lines < LEAST:
            size = max(1, piece.lines)
            found += [Match(at, at + size, piece, 0) for at in _places(marks, piece.head)]
            continue
        for line in range(1 + int(header)):
            if is_of(line, piece):
                own, mark = load(piece), marks[line * SIZE : (line + 1) * SIZE]
                for size in range(1, LEAST):
                    last = own[-size * SIZE :]
                    if last[:SIZE] == mark and marks[line * SIZE :][: size * SIZE] == last:
                        found.append(Match(line, line + size, piece, piece.lines - size))
    return [one for one in found if all(is_of(at, one.piece) for at in range(one.start, one.end))]


def repeats(marks: bytes, piece: MarkedLines) -> list[Match]:
    """The matches of a chunk's marks with its own beginning."""
    found = []
    for place in _places(marks, piece.head[: LEAST * SIZE]):
        size = min(common(marks, place, marks, 0), place)
        if place and size >= LEAST:
            begun = replace(piece, parts=(piece.parts[0]._replace(lines=place),))
            found.append(Match(place, place + size, begun, 0))
    return found


def blocks_of(matches: Sequence[Match], lines: int, *, header: bool) -> list[MatchedBlock]:
    """Matches put beside each other, each line of the chunk in one of them at most.

    Args:
        lines: of the chunk.
        header: as of :func:`matches_of`.
    """
    groups: list[list[Match]] = []
    at = 0
    for match in sorted(matches, key=lambda one: (one.start, one.start - one.end)):
        if match.end <= at:
            continue
        if match.start < at:
            match = replace(match, start=at, at=match.at + at - match.start)
        if groups and match.start == at:
            groups[-1].append(match)
        else:
            groups.append([match])
        at = match.end
    first = int(header)
    return [
        MatchedBlock(
            tuple(group),
            explained=(group[0].start <= first or group[0].at <= first)
            and (group[-1].end == lines or group[-1].to_the_end),
        )
        for group in groups
    ]


def _places(marks: bytes, head: bytes) -> list[int]:
    """The lines at which ``head`` begins in ``marks``."""
    found: list[int] = []
    at = marks.find(head)
    while at >= 0 and len(found) < _PLACES:
        if at % SIZE == 0:
            found.append(at // SIZE)
        at = marks.find(head, at + 1)
    return found

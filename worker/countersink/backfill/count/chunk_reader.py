"""``read_chunk``: the lines of a chunk become amounts per bucket and key, hashes of visitors,
rejected lines and samples. No counter is changed.

Lines are read piece by piece, while ``spans.py`` cuts the chunk into pieces.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from types import MappingProxyType
from typing import Final

from countersink.backfill.count.chunks import LineSamples, Samples
from countersink.backfill.formats import Reader
from countersink.backfill.history import LineCounts
from countersink.backfill.spans import Span, SpanPiece, SpanReader, window_of
from countersink.counting.counters.buckets import date_at
from countersink.counting.counters.catalog import Scheme
from countersink.logs.formats.reader import (
    RecordTally,
    Rejected,
    Window,
    without_visitor,
)
from countersink.runtime.dead_letter import RowRefusal
from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import Salt, member_hash

LabelKey = tuple[int, RowKey]
"""(label of a bucket, key or dimensions): lines are counted under it."""
Refused = Mapping[LabelKey, RowRefusal]
"""Cells whose members cannot be united, with the reason."""
NO_REFUSALS: Final[Refused] = MappingProxyType({})
Members = Mapping[LabelKey, bytes]
"""Hashes of the visitors of each cell, 8 bytes each."""

_SALT_BITS: Final = 32
_UNSALTED: Final = (
    "the salt of its time was forgotten, a day after its end: its visitor cannot be hashed",
    "the salt of its time does not exist yet: a worker creates the salt of a day on the day before",
)
"""Reasons why the visitor of a line cannot be hashed, by the number that replaces its salt's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The beginning of a chunk.

    Attributes:
        offset: of the first byte that is in no other chunk.
        line: number of the line there.
        newline: bytes of the newline there: it ends the line before, which was counted
            without it; 0: a line begins there.
    """

    offset: int = 0
    line: int = 1
    newline: int = 0

    @staticmethod
    def after(span: Span) -> "Start":
        """The beginning of the chunk after ``span``."""
        return Start(offset=span.end, line=span.next_line)


def pieces_from(spans: SpanReader, start: Start) -> Iterator[SpanPiece]:
    """The pieces of the chunk that begins at ``start``, without the newline of the line before."""
    skipped = start.newline
    for piece in spans.pieces():
        if skipped:
            data, stop, lines = piece.data[skipped:], piece.stop - skipped, piece.lines - 1
            piece = replace(piece, line=piece.line + 1, data=data, stop=stop, lines=lines)
            skipped = 0
        yield piece


@dataclass(frozen=True, slots=True)
class MinuteLabels:
    """Function from a Unix minute to the label of its bucket and, with ``salts``, the salt of its
    visitors. Two with the same scheme and salts are equal.
    """

    scheme: Scheme
    salts: tuple[Salt, ...] | None = field(default=None, repr=False)

    def __call__(self, minute: int) -> int:
        """The label; with salts a number of label and salt, which :meth:`decode` decodes.

        Raises:
            UnknownZone: the time zone is unknown on this machine. The catalog is not outdated by
                that: readers also ask for minutes without lines to count.
        """
        label = self.scheme.label(minute)
        return label if self.salts is None else label << _SALT_BITS | self._salt(minute)

    def _salt(self, minute: int) -> int:
        """The number of a minute's salt; the first numbers are the reasons of :data:`_UNSALTED`."""
        salts = self.salts or ()
        for place, salt in enumerate(salts):
            if minute < salt.begins:
                return 0
            if salt.ends is None or minute < salt.ends:
                return len(_UNSALTED) + place
        return 1 if salts else 0

    def decode(self, number: int) -> tuple[int, Salt | None, str]:
        """Label, salt, and reason for no salt, of a number that a call returned."""
        if self.salts is None:
            return number, None, ""
        label, place = number >> _SALT_BITS, number & ((1 << _SALT_BITS) - 1)
        if place < len(_UNSALTED):
            return label, None, _UNSALTED[place]
        return label, self.salts[place - len(_UNSALTED)], ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChunk:
    """The amounts and lines of a chunk.

    Attributes:
        start: its beginning.
        span: its bytes.
        amounts: label → key → amount.
        counts: sums of its lines and amounts.
        rejects: its rejected lines.
        samples: samples of its lines.
        members: hashes of its visitors.
    """

    start: Start
    span: Span
    amounts: Mapping[int, Counter[RowKey]]
    counts: LineCounts
    rejects: list[Rejected]
    samples: Samples
    members: Members = field(default_factory=dict)

    def days(self, scheme: Scheme) -> set[date]:
        """The days of its amounts; both days of an hour that lies in two."""
        labels = [label for label, keys in self.amounts.items() if any(keys.values())]
        days, zone = set(map(scheme.local_day, labels)), scheme.time_zone
        return days | {date_at(zone, scheme.ends_at(label) - 60) for label in labels}


def read_chunk(
    pieces: Iterable[SpanPiece],
    span_of: Callable[[], Span | None],
    start: Start,
    reader: Reader,
    bucket: MinuteLabels,
    *,
    scope: bytes,
    refused: Refused = NO_REFUSALS,
) -> ReadChunk | None:
    """Read a chunk; None: the content ends at its beginning.

    Args:
        pieces: of the chunk, cut at the ends of lines.
        span_of: returns its span once all pieces are consumed.
        start: its beginning.
        reader: of the source; has seen all directives before the chunk.
        bucket: minutes to labels; has salts where the reader finds visitors: lines of a time
            without a salt are rejected.
        scope: of the samples, from :func:`countersink.backfill.count.chunks.scope_of`.
        refused: lines of these cells are rejected.

    Raises:
        Unreadable: it cannot be read.
        UnknownZone: a time zone is unknown on this machine.
    """
    lines = _LineCounter(reader, bucket, refused)
    samples = LineSamples(scope, reader, bucket)
    for piece in pieces:
        window = window_of(piece, reader.quoted)
        samples.add(window)
        lines.count(window)
    tally, span = lines.tally, span_of()
    if span is None:
        return None
    amounts, members = _hash_members(tally.amounts, bucket)
    return ReadChunk(
        start=start,
        span=span,
        amounts=amounts,
        counts=LineCounts(
            size_bytes=span.end - span.start,
            lines=tally.lines,
            counted=tally.counted,
            filtered=tally.filtered,
            rejected=len(tally.rejected),
            amount=sum(keys.total() for keys in amounts.values()),
        ),
        rejects=tally.rejected,
        samples=samples.finish(),
        members=members,
    )


class _LineCounter:
    """Counts the lines of a chunk into a tally.

    Args:
        refused: see :func:`read_chunk`.

    Attributes:
        tally: of the lines counted so far.
    """

    def __init__(self, reader: Reader, bucket: MinuteLabels, refused: Refused) -> None:
        self.tally = RecordTally(bucket)
        self._reader = reader
        self._bucket = bucket
        self._refused = refused

    def count(self, window: Window) -> None:
        """Count the lines of a window."""
        if self._refused or not self._count_all(window):
            self._count_each(window)

    def _count_all(self, window: Window) -> bool:
        """Count all lines of a window at once; False: nothing was done: some must be rejected."""
        if self._bucket.salts is None:
            self._reader.count(window, self.tally)
            return True
        tally = RecordTally(self._bucket)
        self._reader.count(window, tally)
        if any(self._bucket.decode(label)[2] for label in tally.amounts):
            return False
        self.tally.add(tally)
        return True

    def _count_each(self, window: Window) -> None:
        """Count line by line, and reject lines whose visitors cannot be counted; slow."""
        tally = self.tally
        if window.rejected:
            self._reader.count(window, tally)
        for number, line in zip(window.numbers, window.lines, strict=True):
            one = RecordTally(tally.bucket)
            self._reader.count(Window([number], [line], []), one)
            if reason := next(filter(None, map(self._reject_reason, one.counts)), ""):
                tally.lines += one.lines
                tally.reject(number, reason, line)
            else:
                tally.add(one)

    def _reject_reason(self, cell: tuple[RowKey, int]) -> str:
        """The reason to reject the lines of a cell; '': they are counted."""
        label, _, unsalted = self._bucket.decode(cell[1])
        refusal = self._refused.get((label, without_visitor(cell[0])[0]))
        return unsalted or (refusal.detail if refusal else "")


def _hash_members(
    amounts: Mapping[int, Counter[RowKey]], bucket: MinuteLabels
) -> tuple[Mapping[int, Counter[RowKey]], Members]:
    """Amounts by label and key without visitor, and the hashes of the visitors."""
    if bucket.salts is None:
        return amounts, {}
    plain: defaultdict[int, Counter[RowKey]] = defaultdict(Counter)
    members: defaultdict[LabelKey, bytearray] = defaultdict(bytearray)
    for number, keys in amounts.items():
        label, salt, _ = bucket.decode(number)
        for counted, amount in keys.items():
            key, visitor = without_visitor(counted)
            plain[label][key] += amount
            if salt is not None and visitor is not None:
                members[label, key] += member_hash(visitor.encode(), salt.salt)
    return plain, {place: bytes(hashes) for place, hashes in members.items()}

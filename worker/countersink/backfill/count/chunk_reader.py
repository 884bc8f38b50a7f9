"""Reads a chunk of a content: lines to amounts per bucket and key, hashes of visitors, rejected
lines (also those whose visitors have no salt any more, or not yet), samples; changes no counter.

Cutting looks for the ends of lines alone; lines are read piece by piece as they are cut.
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
"""(bucket's label, key or dimensions) that lines are counted under."""
Refused = Mapping[LabelKey, RowRefusal]
"""Of what members cannot be united, and why not."""
NONE_REFUSED: Final[Refused] = MappingProxyType({})
Members = Mapping[LabelKey, bytes]
"""Hashes of 8 bytes of those who were seen."""

_SALT_BITS: Final = 32
_UNSALTED: Final = (
    "the salt of its time was forgotten, a day after its end: its visitor cannot be hashed",
    "the salt of its time is not made yet: a worker makes that of a day on the day before",
)
"""Why the visitor of a line cannot be hashed, by what stands in the place of its salt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a chunk begins.

    Attributes:
        at: the first byte that is in no other chunk.
        line: number of the line there.
        newline: bytes of the newline that stands here, of the line before, which was counted
            without it.
    """

    at: int = 0
    line: int = 1
    newline: int = 0

    @staticmethod
    def behind(span: Span) -> "Start":
        """That of the chunk behind one of these bytes."""
        return Start(at=span.end, line=span.next_line)


def pieces_from(spans: SpanReader, start: Start) -> Iterator[SpanPiece]:
    """The pieces of the chunk that begins at ``start``, without the newline that stands there."""
    skipped = start.newline
    for piece in spans.pieces():
        if skipped:
            data, stop, lines = piece.data[skipped:], piece.stop - skipped, piece.lines - 1
            piece = replace(piece, line=piece.line + 1, data=data, stop=stop, lines=lines)
            skipped = 0
        yield piece


@dataclass(frozen=True, slots=True)
class MinuteLabels:
    """The label of the bucket that a Unix minute is in, and, where there are ``salts``, which of
    them is that of its visitors; the same ones are equal.
    """

    scheme: Scheme
    salts: tuple[Salt, ...] | None = field(default=None, repr=False)

    def __call__(self, minute: int) -> int:
        """The label; with salts a number that :meth:`divided` reads.

        Raises:
            UnknownZone: the time zone is unknown on this machine. The catalog does not become
                outdated by that: readers ask for minutes, too, in which there is nothing to be
                counted.
        """
        label = self.scheme.label(minute)
        return label if self.salts is None else label << _SALT_BITS | self._salt(minute)

    def _salt(self, minute: int) -> int:
        """The place of a minute's salt, behind those of the reasons why there is none."""
        salts = self.salts or ()
        for place, salt in enumerate(salts):
            if minute < salt.begins:
                return 0
            if salt.ends is None or minute < salt.ends:
                return len(_UNSALTED) + place
        return 1 if salts else 0

    def divided(self, number: int) -> tuple[int, Salt | None, str]:
        """The label of what this was called for, its salt, and why there is none."""
        if self.salts is None:
            return number, None, ""
        label, place = number >> _SALT_BITS, number & ((1 << _SALT_BITS) - 1)
        if place < len(_UNSALTED):
            return label, None, _UNSALTED[place]
        return label, self.salts[place - len(_UNSALTED)], ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChunk:
    """What a chunk holds.

    Attributes:
        start: where it begins.
        span: its bytes.
        amounts: label → key → amount.
        counts: what it comes to.
        rejects: the rejected lines.
        samples: those of its lines.
        members: who was seen; hashed.
    """

    start: Start
    span: Span
    amounts: Mapping[int, Counter[RowKey]]
    counts: LineCounts
    rejects: list[Rejected]
    samples: Samples
    members: Members = field(default_factory=dict)

    def days(self, scheme: Scheme) -> set[date]:
        """The days that it adds to: of an hour that is in two of them, both."""
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
    refused: Refused = NONE_REFUSED,
) -> ReadChunk | None:
    """Read a chunk; None: the content has nothing for it.

    Args:
        pieces: it, cut where lines end.
        span_of: its bytes, once all pieces were looked at.
        start: where it begins.
        reader: of the source, which has seen what stands before.
        bucket: says to which buckets of the counter it adds; with salts where the reader tells
            visitors: lines of a time that has none of them are rejected.
        scope: of the samples, from :func:`countersink.backfill.count.chunks.scope_of`.
        refused: lines that are counted under these are rejected.

    Raises:
        Unreadable: it cannot be read.
        UnknownZone: a time zone is unknown on this machine.
    """
    lines = _Lines(reader, bucket, refused)
    samples = LineSamples(scope, reader, bucket)
    for piece in pieces:
        window = window_of(piece, reader.quoted)
        samples.add(window)
        lines.count(window)
    tally, span = lines.tally, span_of()
    if span is None:
        return None
    amounts, members = _hashed(tally.amounts, bucket)
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


class _Lines:
    """What the lines of a chunk come to.

    Args:
        refused: as of :func:`read_chunk`.

    Attributes:
        tally: it.
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
        """Count all lines of a window; False: nothing was done, as some are to be rejected."""
        if self._bucket.salts is None:
            self._reader.count(window, self.tally)
            return True
        tally = RecordTally(self._bucket)
        self._reader.count(window, tally)
        if any(self._bucket.divided(label)[2] for label in tally.amounts):
            return False
        self.tally.add(tally)
        return True

    def _count_each(self, window: Window) -> None:
        """Count line by line, and reject those whose members cannot be counted; slow."""
        tally = self.tally
        if window.rejected:
            self._reader.count(window, tally)
        for number, line in zip(window.numbers, window.lines, strict=True):
            one = RecordTally(tally.bucket)
            self._reader.count(Window([number], [line], []), one)
            if reason := next(filter(None, map(self._why_not, one.counts)), ""):
                tally.lines += one.lines
                tally.reject(number, reason, line)
            else:
                tally.add(one)

    def _why_not(self, cell: tuple[RowKey, int]) -> str:
        """Why the lines of a cell are rejected; '': they are not."""
        label, _, unsalted = self._bucket.divided(cell[1])
        refusal = self._refused.get((label, without_visitor(cell[0])[0]))
        return unsalted or (refusal.detail if refusal else "")


def _hashed(
    amounts: Mapping[int, Counter[RowKey]], bucket: MinuteLabels
) -> tuple[Mapping[int, Counter[RowKey]], Members]:
    """Amounts by buckets and by keys without their visitors, and these, hashed."""
    if bucket.salts is None:
        return amounts, {}
    plain: defaultdict[int, Counter[RowKey]] = defaultdict(Counter)
    members: defaultdict[LabelKey, bytearray] = defaultdict(bytearray)
    for number, keys in amounts.items():
        label, salt, _ = bucket.divided(number)
        for counted, amount in keys.items():
            key, visitor = without_visitor(counted)
            plain[label][key] += amount
            if salt is not None and visitor is not None:
                members[label, key] += member_hash(visitor.encode(), salt.salt)
    return plain, {place: bytes(hashes) for place, hashes in members.items()}

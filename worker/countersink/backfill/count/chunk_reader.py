"""``read_chunk`` turns the lines of a chunk into amounts by bucket and key, hashes of visitors,
rejected lines and samples (hashes of lines). It changes no counter.

Lines are read piece by piece, while a ``SpanReader`` cuts the chunk into pieces.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from types import MappingProxyType
from typing import Final

from countersink.backfill.count.chunks import LineSamples, Samples
from countersink.backfill.errors import WrongCut
from countersink.backfill.formats import Reader
from countersink.backfill.history import LineCounts
from countersink.backfill.spans import Span, SpanPiece, SpanReader, block_of
from countersink.counting.counters.buckets import date_at
from countersink.counting.counters.catalog import Scheme
from countersink.logs.formats.reader import (
    RecordBlock,
    RecordTally,
    Rejected,
    without_visitor,
)
from countersink.runtime.dead_letter import RowRefusal
from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import Salt, member_hash

LabelKey = tuple[int, RowKey]
"""(label of a bucket, key or dimensions): what a line is counted under."""
Refused = Mapping[LabelKey, RowRefusal]
"""Cells whose visitors cannot be counted, each with the reason."""
NO_REFUSALS: Final[Refused] = MappingProxyType({})
Members = Mapping[LabelKey, bytes]
"""Hashes of the visitors of each cell, 8 bytes for each visitor."""

_SALT_BITS: Final = 32
_UNSALTED: Final = (
    "the salt of its time was forgotten, a day after its end: its visitor cannot be hashed",
    "the salt of its time does not exist yet: a worker creates the salt of a day on the day before",
)
"""Reasons why the visitor of a line cannot be hashed. A line that has no salt has the index of its
reason instead of the number of its salt.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The beginning of a chunk.

    Attributes:
        offset: offset of the first byte that is in no earlier chunk.
        line: number of the line that has this byte.
        newline: 0 if a line begins at ``offset``. Otherwise the length in bytes of the newline at
            ``offset``: it ends a line that the earlier chunk has counted, when the file did not
            have this newline yet.
    """

    offset: int = 0
    line: int = 1
    newline: int = 0

    @staticmethod
    def after(span: Span) -> "Start":
        """Return the beginning of the chunk after ``span``."""
        return Start(offset=span.end, line=span.next_line)


def pieces_from(spans: SpanReader, start: Start) -> Iterator[SpanPiece]:
    """Iterate over the pieces that ``spans`` cuts from the chunk that begins at ``start``. If
    ``start.newline`` is not 0, the first piece lacks this newline: it belongs to a line that is
    counted already. The chunk's span includes the newline.
    """
    skipped = start.newline
    for piece in spans.pieces():
        if skipped:
            data, stop, lines = piece.data[skipped:], piece.stop - skipped, piece.lines - 1
            piece = SpanPiece(piece.line + 1, data, stop, lines, open=piece.open, torn=piece.torn)
            skipped = 0
        yield piece


@dataclass(frozen=True, slots=True)
class MinuteLabels:
    """Function from a Unix minute to the label of its bucket: a number for the bucket's beginning
    and width. If ``salts`` is not None, the result also says which salt hashes the visitors of that
    minute. Two instances are equal if their schemes and salts are equal.

    Attributes:
        scheme: the scheme by which lines are counted.
        salts: the counter's salts, by time; None if the recipe has no visitors.
    """

    scheme: Scheme
    salts: tuple[Salt, ...] | None = field(default=None, repr=False)

    def __call__(self, minute: int) -> int:
        """Return the label of the bucket of a Unix minute. With salts, return a number made of
        label and salt, which :meth:`decode` takes apart.

        Raises:
            UnknownZone: this machine does not know the counter's time zone. Readers ignore this
                error for a line that the recipe leaves out.
        """
        label = self.scheme.label(minute)
        return label if self.salts is None else label << _SALT_BITS | self._salt(minute)

    def _salt(self, minute: int) -> int:
        """Return the number of a minute's salt. If the minute has none, return the index of the
        reason in :data:`_UNSALTED`; numbers of salts are greater than these indexes.
        """
        salts = self.salts or ()
        for place, salt in enumerate(salts):
            if minute < salt.begins:
                return 0
            if salt.ends is None or minute < salt.ends:
                return len(_UNSALTED) + place
        return 1 if salts else 0

    def decode(self, number: int) -> tuple[int, Salt | None, str]:
        """Take apart a number that a call of this object has returned. Return the label, the salt
        and a reason. If the minute has no salt, the salt is None, and the reason says why.
        Otherwise the reason is ''. If ``salts`` is None, the salt is None and the reason is ''.
        """
        if self.salts is None:
            return number, None, ""
        label, place = number >> _SALT_BITS, number & ((1 << _SALT_BITS) - 1)
        if place < len(_UNSALTED):
            return label, None, _UNSALTED[place]
        return label, self.salts[place - len(_UNSALTED)], ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChunk:
    """The results of the lines of a chunk.

    Attributes:
        start: beginning of the chunk.
        span: the range of its bytes.
        amounts: label of a bucket → key or dimensions → amount.
        counts: numbers of its bytes and lines, and the sum of its amounts.
        rejects: its rejected lines.
        samples: hashes of its counted lines, by which other sources with these lines are found.
        members: (label, key or dimensions) → hashes of its visitors, joined; empty if the run
            counts no visitors.
    """

    start: Start
    span: Span
    amounts: Mapping[int, Counter[RowKey]]
    counts: LineCounts
    rejects: list[Rejected]
    samples: Samples
    members: Members = field(default_factory=dict)

    def at_line(self, line: int) -> "ReadChunk":
        """Return the chunk with ``line`` as the number of its first line, and with the numbers of
        its rejected lines changed accordingly. The lines in ``samples`` keep their numbers, which
        matter only in logs with directives (see :func:`read_chunk`).
        """
        by = line - self.start.line
        rejects = [replace(one, line=one.line + by) for one in self.rejects]
        start, span = replace(self.start, line=line), replace(self.span, first_line=line)
        return replace(self, start=start, span=span, rejects=rejects) if by else self

    def days(self, scheme: Scheme) -> set[date]:
        """Return the days, in the time zone of ``scheme``, to which amounts are added. A bucket
        with minutes of two days gives both days. A bucket whose amounts are all 0 gives no day.
        """
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
    most_held: int | None = None,
) -> ReadChunk | None:
    """Read a chunk, and return the results of its lines. Return None if ``span_of`` returns None:
    then the source has no more lines to read now.

    Args:
        pieces: pieces of the chunk, cut at the ends of lines.
        span_of: called after all pieces are read; returns the chunk's span, or None if there were
            no pieces.
        start: beginning of the chunk.
        reader: reader of the source. It has read all directives before the chunk: lines of a W3C
            log, such as ``#Fields:``, that say how later lines are read.
        bucket: function from minutes to labels. It has salts if lines have visitors; a line whose
            minute has no salt is rejected.
        scope: key for hashing lines to samples, from
            :func:`countersink.backfill.count.chunks.scope_of`.
        refused: cells whose lines are rejected, because their visitors cannot be counted, each with
            the reason.
        most_held: maximum of cells, rejected lines and half of the sampled lines together; None
            for no maximum.

    Raises:
        WrongCut: the chunk has more than ``most_held``.
        Unreadable: bytes of the chunk cannot be read.
        UnknownZone: a time zone is unknown on this machine.
        Exception: any other error that iterating over ``pieces`` raises.
    """
    lines, samples = _LineCounter(reader, bucket, refused), LineSamples(scope, reader, bucket)
    tally = lines.tally
    for piece in pieces:
        block = block_of(piece, reader.quoted)
        samples.add(block)
        lines.count(block)
        held = len(tally.rejected) + len(samples.candidates) // 2
        if most_held is not None and held + sum(map(len, tally.amounts.values())) > most_held:
            raise WrongCut
    if (span := span_of()) is None:
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
        samples=samples.finish(tally),
        members=members,
    )


class _LineCounter:
    """Counts the lines of a chunk, or rejects them, piece by piece.

    Args:
        reader, bucket, refused: see :func:`read_chunk`.

    Attributes:
        tally: sums of the lines counted so far.
    """

    def __init__(self, reader: Reader, bucket: MinuteLabels, refused: Refused) -> None:
        self.tally = RecordTally(bucket)
        self._reader = reader
        self._bucket = bucket
        self._refused = refused

    def count(self, block: RecordBlock) -> None:
        """Add the counts and rejected lines of one piece to :attr:`tally`."""
        if self._refused or not self._count_all(block):
            self._count_each(block)

    def _count_all(self, block: RecordBlock) -> bool:
        """Count all lines of a piece together, and return True. If one of the lines must be
        rejected, because its minute has no salt for its visitor, count nothing and return False.
        Call it only if no cells are refused.
        """
        if self._bucket.salts is None:
            self._reader.count(block, self.tally)
            return True
        tally = RecordTally(self._bucket)
        self._reader.count(block, tally)
        if any(self._bucket.decode(label)[2] for label in tally.amounts):
            return False
        self.tally.add(tally)
        return True

    def _count_each(self, block: RecordBlock) -> None:
        """Count the lines one by one, which is slow, and reject those whose visitors cannot be
        counted.
        """
        tally = self.tally
        if block.rejected:
            self._reader.count(block, tally)
        for number, line in zip(block.numbers, block.lines, strict=True):
            one = RecordTally(tally.bucket)
            self._reader.count(RecordBlock([number], [line], []), one)
            if reason := next(filter(None, map(self._reject_reason, one.counts)), ""):
                tally.lines += one.lines
                tally.reject(number, reason, line)
            else:
                tally.add(one)

    def _reject_reason(self, cell: tuple[RowKey, int]) -> str:
        """Return the reason to reject the lines of a cell, or '' if they are counted. A reason is
        that the minute has no salt, or that the cell is in ``refused``. ``cell`` is (key with its
        visitor, number that the function ``bucket`` has returned).
        """
        label, _, unsalted = self._bucket.decode(cell[1])
        refusal = self._refused.get((label, without_visitor(cell[0])[0]))
        return unsalted or (refusal.detail if refusal else "")


def _hash_members(
    amounts: Mapping[int, Counter[RowKey]], bucket: MinuteLabels
) -> tuple[Mapping[int, Counter[RowKey]], Members]:
    """Separate amounts and visitors, and hash the visitors. Return the amounts by label and key,
    and the concatenated hashes of the visitors of each (label, key) pair. If ``bucket.salts`` is
    None, return ``amounts`` unchanged, and no hashes.

    Args:
        amounts: number that ``bucket`` has returned → key with its visitor → amount.
        bucket: the function from minutes to labels and salts.
    """
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

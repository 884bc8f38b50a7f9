"""Reads one chunk: lines to amounts per bucket and key, hashes of visitors, rejected lines (also
those whose visitors have no salt any more, or not yet), samples; changes no counter."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType
from typing import Final

from countersink.backfill.count.samples import LineSamples
from countersink.backfill.errors import Unreadable
from countersink.backfill.formats import Reader
from countersink.backfill.input.content import Content
from countersink.backfill.input.spans import LINES, Span, SpanReader
from countersink.backfill.run_state import LineCounts
from countersink.producers.access_log.formats.reader import (
    RecordTally,
    Rejected,
    Window,
    without_visitor,
)
from countersink.runtime.dead_letter import RowRefusal
from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import Salt, member_hash
from countersink.store.counters.buckets import date_at
from countersink.store.counters.catalog import Catalog, Scheme
from countersink.store.errors import StoreError

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
        reads_from: where its first line begins: before ``at`` where a part of that line, without
            its newline, was counted as if it were all.
        first_line: number of that line.
        part_rejected: that part was not counted, whatever stands in it: its member could not be.
        open_was: where a later chunk was counted that goes on in its last line: whether that line,
            as far as it stands here, is taken to have been rejected for its member; else None.
    """

    at: int
    reads_from: int
    first_line: int
    part_rejected: bool = False
    open_was: bool | None = None

    @property
    def goes_on(self) -> bool:
        """Whether it begins in the midst of a line."""
        return self.reads_from < self.at


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
        start: where it was begun to be read.
        span: its bytes.
        catalog: by which it was read: under another it is to be read again.
        scheme: how its lines go into buckets.
        amounts: label → key → amount. Where it begins in the midst of a line these, and the
            numbers, are the difference to what was counted of that line before.
        counts: what it comes to.
        rejects: the rejected lines, but for the last one if a later chunk has kept it.
        open_rejected: its last line has no newline, and was rejected for its member.
        samples: those of its lines.
        salts: those by which visitors were hashed; None: the recipe has none.
        members: who was seen; hashed.
    """

    start: Start
    span: Span
    catalog: Catalog
    scheme: Scheme
    amounts: Mapping[int, Counter[RowKey]]
    counts: LineCounts
    rejects: list[Rejected]
    samples: LineSamples
    open_rejected: bool = False
    salts: tuple[Salt, ...] | None = field(default=None, repr=False)
    members: Members = field(default_factory=dict)

    def kept_samples(self) -> Collection[bytes]:
        """The samples by which its lines are known again: those of all lines, if they are few, only
        where their source begins.
        """
        return self.samples.chosen if self.start.at else self.samples.every

    def days(self) -> set[date]:
        """The days that it adds to: of an hour that is in two of them, both."""
        labels = [label for label, keys in self.amounts.items() if any(keys.values())]
        days, zone = set(map(self.scheme.local_day, labels)), self.scheme.time_zone
        return days | {date_at(zone, self.scheme.ends_at(label) - 60) for label in labels}


def read_chunk(
    content: Content,
    reader: Reader,
    start: Start,
    catalog: Catalog,
    scheme: Scheme,
    *,
    scope: bytes,
    end: int | None = None,
    max_lines: int = LINES,
    refused: Refused = NONE_REFUSED,
    salts: tuple[Salt, ...] | None = None,
) -> ReadChunk | None:
    """Read the chunk that begins at ``start``; None: the content has nothing after it.

    Args:
        catalog: what is known of counters.
        scheme: says to which buckets of the counter it adds.
        scope: of the samples, from :func:`countersink.backfill.count.samples.scope_of`.
        end: where it was planned to end; None: by the limits, or with the content.
        refused: lines that are counted under these are rejected.
        salts: of the counter, if the reader tells visitors: lines of a time that has none of them
            are rejected.

    Raises:
        Unreadable: it cannot be read.
        UnknownZone: a time zone is unknown on this machine.
    """
    bucket = MinuteLabels(scheme, salts)
    spans = SpanReader(
        content,
        start.at,
        start.first_line,
        quoted=reader.quoted,
        end=end,
        reads_from=start.reads_from,
        max_lines=max_lines,
    )
    reader.look_back(content.read_at, start.reads_from)
    lines = _Lines(reader, bucket, refused, apart=start.open_was is not None)
    samples = LineSamples(scope, reader, bucket)
    for window in spans:
        samples.add(window)
        lines.count(window)
    span = spans.span
    if span is None:
        return None
    samples.finish()
    if lines.ended:
        reader.passed(span.start, span.end, span.next_line)
    whole, last, open_rejected = lines.whole, lines.last, lines.open_rejected
    if start.open_was:
        open_rejected = start.open_was
        _reject(last, span.next_line)
    part = RecordTally(bucket, StoreError)
    _read_part(content, reader, start, part)
    amounts, members = _hashed(_difference(whole, last, part), bucket)
    counts = LineCounts(
        size_bytes=span.end - span.start,
        lines=whole.lines + last.lines - part.lines,
        counted=whole.counted + last.counted - part.counted,
        filtered=whole.filtered + last.filtered - part.filtered,
        rejected=len(whole.rejected) + len(last.rejected) - len(part.rejected),
        amount=sum(keys.total() for keys in amounts.values()),
        rejects=len(whole.rejected),
    )
    return ReadChunk(
        start=start,
        span=span,
        catalog=catalog,
        scheme=scheme,
        amounts=amounts,
        counts=counts,
        rejects=whole.rejected,
        open_rejected=open_rejected,
        samples=samples,
        salts=salts,
        members=members,
    )


class _Lines:
    """What the lines of a chunk come to.

    Attributes:
        whole: they, but for those in ``last``.
        last: the last line, where it has no newline and is read as it stands.
        open_rejected: as of :class:`ReadChunk`.
        ended: the last line has its newline.

    Args:
        refused: as of :func:`read_chunk`.
        apart: the last line, if it has no newline, is counted apart from the others.
    """

    def __init__(
        self, reader: Reader, bucket: MinuteLabels, refused: Refused, *, apart: bool
    ) -> None:
        self.whole, self.last = RecordTally(bucket, StoreError), RecordTally(bucket, StoreError)
        self.open_rejected = False
        self.ended = True
        self._reader = reader
        self._bucket = bucket
        self._refused = refused
        self._apart = apart

    def count(self, window: Window) -> None:
        """Count the lines of a window."""
        self.ended = not window.open
        if window.open and self._apart:
            self._reader.count(window, self.last)
        elif self._refused or not self._count_all(window):
            self._count_each(window)

    def _count_all(self, window: Window) -> bool:
        """Count all lines of a window; False: nothing was done, as some are to be rejected."""
        if self._bucket.salts is None:
            self._reader.count(window, self.whole)
            return True
        tally = RecordTally(self._bucket, StoreError)
        self._reader.count(window, tally)
        if any(self._bucket.divided(label)[2] for label in tally.amounts):
            return False
        self.whole.add(tally)
        return True

    def _count_each(self, window: Window) -> None:
        """Count line by line, and reject those whose members cannot be counted; slow."""
        tally = self.whole
        if window.rejected:
            self._reader.count(window, tally)
        for number, line in zip(window.numbers, window.lines, strict=True):
            one = RecordTally(tally.bucket, tally.untold)
            self._reader.count(Window([number], [line], [], window.open), one)
            if reason := next(filter(None, map(self._why_not, one.counts)), ""):
                tally.lines += one.lines
                tally.reject(number, reason, line)
                self.open_rejected = window.open
            else:
                tally.add(one)

    def _why_not(self, cell: tuple[RowKey, int]) -> str:
        """Why the lines of a cell are rejected; '': they are not."""
        label, _, unsalted = self._bucket.divided(cell[1])
        refusal = self._refused.get((label, without_visitor(cell[0])[0]))
        return unsalted or (refusal.detail if refusal else "")


def _difference(
    whole: RecordTally, last: RecordTally, part: RecordTally
) -> Mapping[int, Counter[RowKey]]:
    """What ``whole`` and ``last`` add beyond what ``part`` has added."""
    for label, keys in last.amounts.items():
        whole.amounts[label].update(keys)
    for (key, label), amount in part.counts.items():
        keys = whole.amounts[label]
        keys[key] -= amount
        # Not a cell of 0: nothing is changed.
        if not keys[key]:
            del keys[key]
    return whole.amounts


def _hashed(
    amounts: Mapping[int, Counter[RowKey]], bucket: MinuteLabels
) -> tuple[Mapping[int, Counter[RowKey]], Members]:
    """Amounts by buckets and by keys without their visitors, and these, hashed.

    Those of which a line is taken away are none; nor those of a line that has no salt any more, and
    was counted, with its visitor, when it had one.
    """
    if bucket.salts is None:
        return amounts, {}
    plain: defaultdict[int, Counter[RowKey]] = defaultdict(Counter)
    members: defaultdict[LabelKey, bytearray] = defaultdict(bytearray)
    for number, keys in amounts.items():
        label, salt, _ = bucket.divided(number)
        for counted, amount in keys.items():
            key, visitor = without_visitor(counted)
            plain[label][key] += amount
            if salt is not None and visitor is not None and amount > 0:
                members[label, key] += member_hash(visitor.encode(), salt.salt)
    # Not a cell of 0: nothing is changed. But that of a visitor is, whose key had another one.
    kept = {
        label: Counter({key: sum for key, sum in keys.items() if sum or (label, key) in members})
        for label, keys in plain.items()
    }
    return kept, {place: bytes(hashes) for place, hashes in members.items()}


def newlines(content: Content, start: int, end: int) -> int:
    """How many newlines the bytes [start, end) hold.

    Raises:
        Unreadable: they cannot be read.
    """
    found = 0
    content.seek(start)
    while content.offset < end:
        data = content.read(end - content.offset)
        if not data:
            raise Unreadable(f"{content.name} became shorter while it was read")
        found += data.count(b"\n")
    return found


def _read_part(content: Content, reader: Reader, start: Start, part: RecordTally) -> None:
    """Add what the first line came to when only [reads_from, at) of it was there."""
    if not start.goes_on:
        return
    spans = SpanReader(
        content,
        start.reads_from,
        start.first_line,
        quoted=reader.quoted,
        end=start.at,
    )
    for window in spans:
        reader.count(window, part)
    if start.part_rejected:
        _reject(part, start.first_line)


def _reject(line: RecordTally, number: int) -> None:
    """Let a line have been rejected not for what stands in it, but since its member could not be
    counted.
    """
    line.amounts.clear()
    line.rejected.clear()
    line.counted = line.filtered = 0
    line.reject(number, "")

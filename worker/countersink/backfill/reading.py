"""Reading a chunk: from bytes to what is to be added, without touching a counter."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from countersink.backfill.contents import Content
from countersink.backfill.formats import Reader
from countersink.backfill.formats.tally import Reject, Tally
from countersink.backfill.isolating import IsolatingReader
from countersink.backfill.options import Unreadable
from countersink.backfill.spans import BYTES, LINES, Span, SpanReader
from countersink.store.policies import Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a chunk begins.

    Attributes:
        at: the first byte that is in no other chunk.
        reads_from: where its first line begins: before ``at`` where a part of that line, without
            its newline, was counted as if it were all.
        first_line: number of that line.
        part_rejected: that part was not counted, whatever stands in it: a total could not take it.
        open_was: where a later chunk was counted that goes on in its last line: whether that line,
            as far as it stands here, is taken to have been rejected in the same way; else None.
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
class Buckets:
    """The label of the bucket of a Unix minute; the same ones are equal."""

    counter: str
    in_force: Policies

    def __call__(self, minute: int) -> int:
        """The label.

        Raises:
            Refused: the time zone is unknown on this machine. The policies do not become outdated
                by that: readers ask for minutes, too, in which there is nothing to be counted.
        """
        return self.in_force.at(self.counter, minute).label(minute)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChunk:
    """What a chunk holds.

    Attributes:
        start: where it was begun to be read.
        span: its bytes.
        in_force: the policies by which it was read: under others it is to be read again.
        amounts: label of the bucket → key → amount. Where it begins in the midst of a line these,
            and the numbers, are the difference to what was counted of that line before.
        lines, counted, filtered, rejected: lines.
        rejects: the rejected lines, but for the last one if a later chunk has kept it.
        open_rejected: its last line has no newline, and was rejected since a total could not take
            it.
    """

    start: Start
    span: Span
    in_force: Policies
    amounts: Mapping[int, Counter[str]]
    lines: int
    counted: int
    filtered: int
    rejected: int
    rejects: list[Reject]
    open_rejected: bool = False


def read_chunk(
    content: Content,
    reader: Reader,
    start: Start,
    counter: str,
    in_force: Policies,
    *,
    end: int | None = None,
    max_lines: int = LINES,
    max_bytes: int = BYTES,
) -> ReadChunk | None:
    """Read the chunk that begins at ``start``; None: the content has nothing after it.

    Args:
        in_force: the policies that say to which buckets of ``counter`` it adds.
        end: where it was planned to end; None: by the limits, or with the content.

    Raises:
        Unreadable: it cannot be read.
        Refused: a time zone is unknown on this machine.
    """
    plain = reader.plain if isinstance(reader, IsolatingReader) else reader
    bucket = Buckets(counter, in_force)
    whole, last = Tally(bucket), Tally(bucket)
    spans = SpanReader(
        content,
        start.at,
        start.first_line,
        quoted=reader.quoted,
        end=end,
        reads_from=start.reads_from,
        max_lines=max_lines,
        max_bytes=max_bytes,
    )
    for window in spans:
        if window.open and start.open_was is not None:
            plain.count(window, last)
        else:
            reader.count(window, whole)
    span = spans.span
    if span is None:
        return None
    open_rejected = isinstance(reader, IsolatingReader) and reader.open_rejected
    if start.open_was:
        open_rejected = True
        _reject(last, span.next_line)
    for label, keys in last.amounts.items():
        whole.amounts[label].update(keys)
    part = Tally(bucket)
    _read_part(content, plain, start, part)
    for (key, label), amount in part.counts.items():
        keys = whole.amounts[label]
        keys[key] -= amount
        # Not a cell of 0: nothing is changed.
        if not keys[key]:
            del keys[key]
    return ReadChunk(
        start=start,
        span=span,
        in_force=in_force,
        amounts=whole.amounts,
        lines=whole.lines + last.lines - part.lines,
        counted=whole.counted + last.counted - part.counted,
        filtered=whole.filtered + last.filtered - part.filtered,
        rejected=len(whole.rejected) + len(last.rejected) - len(part.rejected),
        rejects=whole.rejected,
        open_rejected=open_rejected,
    )


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


def _read_part(content: Content, reader: Reader, start: Start, part: Tally) -> None:
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


def _reject(line: Tally, number: int) -> None:
    """Let a line have been rejected not for what stands in it, but for the total that it would have
    made: as :class:`IsolatingReader` does.
    """
    line.amounts.clear()
    line.rejected.clear()
    line.counted = line.filtered = 0
    line.reject(number, "")

"""Cutting into spans, against a reader that has all bytes before it and takes its time."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from countersink.backfill import spans
from countersink.backfill.content import Content
from countersink.backfill.count.chunks import digest
from countersink.backfill.errors import Unreadable
from countersink.backfill.spans import (
    Quoting,
    Span,
    SpanReader,
    block_of,
    last_end,
    split,
)
from countersink.logs.formats.reader import RecordBlock
from countersink.logs.lines import LONGEST
from tests.support.examples import examples

SMALL_BLOCK, SMALL_LONGEST = 8, 20
CSV, COMMENTED = Quoting(","), Quoting(",", "#")

BYTES = st.lists(
    st.sampled_from(
        [b"\n", b"\n", b'"', b',"', b'"', b",", b"#", b"a", b"\0", b"\r", b"abcdefgh", b"\0" * 9]
    ),
    max_size=60,
).map(b"".join)
SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=5)
QUOTED = st.sampled_from([None, CSV, COMMENTED])
LIMITS = st.tuples(st.integers(1, 6), st.integers(1, 60))


class Bytes(Content):
    """A content whose reads are as short as it is told; ``broken``: what follows is damaged."""

    def __init__(self, data: bytes, sizes: list[int], *, broken: bool = False) -> None:
        super().__init__("bytes", -1, len(data))
        self._data = data
        self._sizes = cycle(sizes)
        self._broken = broken

    def _read(self, size: int, offset: int) -> bytes:
        found = self._data[offset : offset + min(size, next(self._sizes))]
        if not found and self._broken:
            raise Unreadable("damaged")
        return found


@dataclass(frozen=True)
class Record:
    start: int
    end: int
    line: int
    text: bytes | None  # None: too long
    open: bool
    shown_at: int = 0  # too long: where the bytes end that show it


def records(data: bytes, longest: int, *, quoted: Quoting | None) -> Iterator[Record]:
    """The definition, byte by byte."""
    start, line = 0, 1
    while start < len(data):
        begin = start
        while data[begin : begin + 1] == b"\0":
            begin += 1
        newline = record_end(data, begin, quoted)
        stop = len(data) if newline is None else newline
        end = len(data) if newline is None else newline + 1
        if stop - begin > longest:
            newline = None if (found := data.find(b"\n", begin)) < 0 else found
            end = len(data) if newline is None else newline + 1
            yield Record(start, end, line, None, newline is None, begin + longest + 1)
        else:
            yield Record(start, end, line, data[begin:stop], newline is None)
        line += data.count(b"\n", start, end)
        start = end


def record_end(data: bytes, begin: int, quoted: Quoting | None) -> int | None:
    """Where the newline of the record stands that begins there."""
    comment = quoted is COMMENTED and data[begin : begin + 1] == b"#"
    state = "start"  # of a field; else it is "plain", "quoted", or "closed" by a quote
    for at in range(begin, len(data)):
        byte = data[at : at + 1]
        if byte == b"\n" and state != "quoted":
            return at
        if quoted is None or comment:
            continue
        if state == "quoted":
            state = "closed" if byte == b'"' else state
        elif byte == b'"' and state in ("start", "closed"):
            state = "quoted"
        else:
            state = "start" if byte == b"," else "plain"
    return None


def expected(
    data: bytes, longest: int, limits: tuple[int, int], *, quoted: Quoting | None
) -> list[Span]:
    """Which spans ``data`` is cut into."""
    spans: list[Span] = []
    held: list[Record] = []
    everything = list(records(data, longest, quoted=quoted))
    for record in everything:
        held.append(record)
        start, end = held[0].start, record.end
        newlines = data.count(b"\n", start, end)
        full = newlines >= limits[0] or end - start >= limits[1]
        full = full and all(end >= one.shown_at for one in held)
        if full or record is everything[-1]:
            first = held[0].line
            digest = hashlib.sha256(data[start:end]).digest()
            lines = newlines + record.open
            torn = record.open and record.text is not None and is_torn(record.text, quoted)
            spans.append(Span(start, end, first, lines, digest, record.open, torn))
            held = []
    return spans


def is_torn(text: bytes, quoted: Quoting | None) -> bool:
    """Whether an open record ends within quotes: a newline does not end it."""
    return record_end(text + b"\n", 0, quoted) is None


def blocks_of(reader: SpanReader) -> list[RecordBlock]:
    """The lines of a span, which is read by that."""
    return [block_of(piece, reader.quoted) for piece in reader.pieces()]


def measure(reader: SpanReader) -> Span | None:
    """The span that is read."""
    blocks_of(reader)
    return reader.span


@contextmanager
def small() -> Iterator[None]:
    """Blocks and lines at a size that examples reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "BLOCK_BYTES", SMALL_BLOCK)
        patch.setattr(spans, "LONGEST", SMALL_LONGEST)
        yield


def cut(
    content: Content, limits: tuple[int, int], at: int = 0, line: int = 1, **given: Any
) -> Iterator[tuple[SpanReader, list[RecordBlock]]]:
    """Readers of all spans of a content, with what they have read; the last one has no span, unless
    the one before was open.
    """
    while True:
        reader = SpanReader(content, at, line, max_lines=limits[0], max_bytes=limits[1], **given)
        blocks = blocks_of(reader)
        yield reader, blocks
        if reader.span is None or reader.span.open:
            return
        at, line = reader.span.end, reader.span.next_line


def read(
    content: Content, limits: tuple[int, int], *, quoted: Quoting | None
) -> tuple[list[Span], list[list[RecordBlock]]]:
    """All spans of a content with their blocks."""
    spans: list[Span] = []
    blocks: list[list[RecordBlock]] = []
    for reader, found in cut(content, limits, quoted=quoted):
        if reader.span is None:
            assert not found
        else:
            spans.append(reader.span)
            blocks.append(found)
    return spans, blocks


def texts(blocks: list[RecordBlock]) -> list[tuple[int, bytes | None]]:
    """(line, text) of each record; None: too long."""
    found: list[tuple[int, bytes | None]] = []
    for block in blocks:
        assert len(block.numbers) == len(block.lines)
        assert not (block.rejected and block.lines)
        found += zip(block.numbers, block.lines, strict=True)
        found += [(rejected.line, None) for rejected in block.rejected]
    return found


@given(data=BYTES, sizes=SIZES, others=SIZES, limits=LIMITS, quoted=QUOTED)
@example(data=b'a,"b\nc\n' + b"d\n" * 12, sizes=[30], others=[3], limits=(6, 60), quoted=CSV)
@example(data=b"a" * 30 + b"\nb\n" + b"c" * 40, sizes=[3], others=[30], limits=(6, 60), quoted=None)
@example(
    data=b"a\n" + b"\0" * 50 + b"b\n" + b"\0" * 9,
    sizes=[30],
    others=[3],
    limits=(6, 60),
    quoted=CSV,
)
@examples(few=50, many=300)
def test_found_spansand_their_lines_are_those_of_the_definition(
    data: bytes,
    sizes: list[int],
    others: list[int],
    limits: tuple[int, int],
    quoted: Quoting | None,
) -> None:
    with small():
        spans, blocks = read(Bytes(data, sizes), limits, quoted=quoted)
    assert spans == expected(data, SMALL_LONGEST, limits, quoted=quoted)
    assert [texts(one) for one in blocks] == [
        [
            (record.line, record.text)
            for record in records(data, SMALL_LONGEST, quoted=quoted)
            if span.start <= record.start < span.end
        ]
        for span in spans
    ]
    # Every byte once:
    assert [span.start for span in spans] == [0, *(span.end for span in spans)][: len(spans)]
    assert sum(span.end - span.start for span in spans) == len(data)
    # As a job reads one that is known: the file may have grown since.
    content = Bytes(data + b"more\n", others)
    for span, lines in zip(spans, blocks, strict=True):
        with small():
            again = SpanReader(content, span.start, span.first_line, quoted=quoted, end=span.end)
            assert texts(blocks_of(again)) == texts(lines)
        assert again.span == span
        assert digest(content, span.start, span.end) == span.digest


ESCAPES = st.sampled_from([b"\n", b'"', b',"', b'",', b'\\"', b"\\", b",", b"a"])


@given(data=st.lists(ESCAPES, max_size=40), sizes=SIZES, limits=LIMITS)
@examples(few=50, many=1000)
def test_a_backslash_before_a_quote_is_read_alike_wherever_blocks_and_spans_end(
    data: list[bytes], sizes: list[int], limits: tuple[int, int]
) -> None:
    whole = b"".join(data)
    ends = last_end(whole, quoted=CSV, ended=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "BLOCK_BYTES", SMALL_BLOCK)
        found_spans, blocks = read(Bytes(whole, sizes), limits, quoted=CSV)
        for span, lines in zip(found_spans, blocks, strict=True):
            again = SpanReader(
                Bytes(whole, sizes), span.start, span.first_line, quoted=CSV, end=span.end
            )
            assert texts(blocks_of(again)) == texts(lines)
            assert again.span == span
    found = [text for block in blocks for _, text in texts(block)]
    assert found[: len(split(whole[:ends], quoted=CSV))] == split(whole[:ends], quoted=CSV)


@given(data=BYTES, at=st.integers(0, 200), sizes=SIZES, limits=LIMITS)
@examples(few=50, many=300)
def test_a_line_that_is_left_is_read_once_it_is_whole(
    data: bytes, at: int, sizes: list[int], limits: tuple[int, int]
) -> None:
    at = min(at, len(data))
    found: list[tuple[int, bytes | None]] = []
    end, line = 0, 1
    with small():
        for content, leave in (Bytes(data[:at], sizes), True), (Bytes(data, sizes), False):
            for reader, blocks in cut(content, limits, end, line, leave_open=leave):
                found += texts(blocks)
                if reader.span is not None:
                    assert not (leave and reader.span.open)
                    end, line = reader.span.end, reader.span.next_line
            if leave:
                assert reader.left_open == (end < at)
                whole = list(records(data[:at], SMALL_LONGEST, quoted=None))
                assert end == max((one.end for one in whole if not one.open), default=0)
    assert end == len(data)
    assert found == [
        (record.line, record.text) for record in records(data, SMALL_LONGEST, quoted=None)
    ]


@given(data=BYTES, sizes=SIZES, limits=LIMITS, quoted=QUOTED)
@examples(few=20, many=100)
def test_lines_before_damage_are_read_and_then_it_is_told(
    data: bytes, sizes: list[int], limits: tuple[int, int], quoted: Quoting | None
) -> None:
    content = Bytes(data, sizes, broken=True)
    whole = [record for record in records(data, SMALL_LONGEST, quoted=quoted) if not record.open]
    found: list[tuple[int, bytes | None]] = []
    at, line = 0, 1
    with small():
        with suppress(Unreadable):
            for reader, blocks in cut(content, limits, quoted=quoted):
                assert reader.span is not None
                assert not reader.span.open
                assert reader.span.end > at
                found += texts(blocks)
                at, line = reader.span.end, reader.span.next_line
        with pytest.raises(Unreadable, match="damaged"):
            measure(SpanReader(content, at, line, quoted=quoted))
    told = [(record.line, record.text) for record in whole]
    if quoted and any(text is None for _, text in told):
        # A span does not end among the bytes that show a record to be too long.
        assert found == told[: len(found)]
    else:
        assert found == told
        assert at == (whole[-1].end if whole else 0)


@pytest.mark.parametrize("quoted", [None, CSV])
@pytest.mark.parametrize("beyond", [0, 1])
def test_the_longest_line_is_read_and_a_longer_one_is_not(
    quoted: Quoting | None, beyond: int
) -> None:
    data = b"a\n" + b"x" * (LONGEST + beyond) + b"\r\n"[1:] + b"b\n"
    reader = SpanReader(Bytes(data, [100_000]), 0, 1, quoted=quoted)
    blocks = blocks_of(reader)
    found = dict(texts(blocks))
    assert found[1] == b"a"
    assert found[3] == b"b"
    assert (found[2] is None) == bool(beyond)
    reasons = [one.reason for block in blocks for one in block.rejected]
    quote = " (a quote that is never closed?)"
    said = "the record is longer than 1 MiB" + quote if quoted else "the line is longer than 1 MiB"
    assert reasons == [said] * beyond
    assert reader.span == measure(SpanReader(Bytes(data, [1 << 20]), 0, 1, quoted=quoted))


def test_a_quote_that_is_never_closed_costs_its_line_and_no_other() -> None:
    lines = [b"%d,ok\n" % number for number in range(300_000)]
    lines[10] = b'10,"bad\n'
    data = b"".join(lines)
    spans, blocks = read(Bytes(data, [1 << 20]), (65_536, 1 << 24), quoted=CSV)
    found = [one for some in blocks for one in texts(some)]
    assert found == [
        (number + 1, None if number == 10 else line[:-1]) for number, line in enumerate(lines)
    ]
    reasons = [one.reason for some in blocks for block in some for one in block.rejected]
    assert reasons == ["the record is longer than 1 MiB (a quote that is never closed?)"]
    assert spans[-1].next_line == 300_001


def test_a_span_that_is_no_longer_there_is_refused() -> None:
    with pytest.raises(Unreadable, match="ends at byte 4, but had been read to byte 9"):
        measure(SpanReader(Bytes(b"a\nb\n", [9]), 0, 1, end=9))
    with pytest.raises(Unreadable, match="ends at byte 4, but had been read to byte 9"):
        measure(SpanReader(Bytes(b"a\nb\n", [9]), 7, 1, end=9))
    assert digest(Bytes(b"a\nb\n", [9]), 0, 9) is None
    assert digest(Bytes(b"a\nb\n", [9]), 5, 9) is None
    assert digest(Bytes(b"a\nb\n", [9]), 4, 4) == hashlib.sha256().digest()


@pytest.mark.parametrize("quoted", [None, CSV])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_byte_order_mark_is_not_of_the_first_line(
    quoted: Quoting | None, whole: bool, known: bool
) -> None:
    data = b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n" if whole else b"\xef\xbb\xbfa"
    end = len(data) if known else None
    reader = SpanReader(Bytes(data, [100]), 0, 1, quoted=quoted, end=end)
    lines = [block.lines for block in blocks_of(reader)]
    assert lines == [[b"a", b"\xef\xbb\xbfb"]] if whole else [[b"a"]]
    assert reader.span is not None
    assert reader.span.digest == hashlib.sha256(data).digest()

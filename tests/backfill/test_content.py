"""Opening sources: plain, compressed, pipes; what is damaged, and what changes while it is read."""

import bz2
import gzip
import lzma
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from countersink.backfill.content import GROWS_S, Content, Input, head_of, open_content
from countersink.backfill.errors import Unreadable
from countersink.backfill.spans import Quoting, SpanReader
from countersink.logs.file import PACKINGS, Unpacker
from tests.support.examples import examples
from tests.support.processes import child_environment

MIB = 1024 * 1024


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def sample(size: int, seed: int = 1) -> bytes:
    """Bytes that compress, but not to nothing."""
    some = random.Random(seed)
    words = [some.randbytes(some.randrange(3, 12)).hex().encode() for _ in range(500)]
    parts: list[bytes] = []
    while size > 0:
        parts.append(some.choice(words) + b"\n")
        size -= len(parts[-1])
    return b"".join(parts)


SAMPLE = sample(700_000)
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, 1),
    "bzip2": lambda data: bz2.compress(data, 1),
    "zstd": zstd,
    "xz": lambda data: lzma.compress(data, preset=1),
}


def at(path: Path) -> Input:
    return Input(str(path), path, None)


@dataclass(frozen=True)
class Source:
    """A file of which is read."""

    path: Path

    def of(self, data: bytes) -> Content:
        """Opened, with this in it."""
        self.path.write_bytes(data)
        return open_content(at(self.path))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "source")


def rest(content: Content, size: int = 100_000) -> bytes:
    """All from where it stands."""
    parts: list[bytes] = []
    while part := content.read(size):
        assert len(part) <= size
        parts.append(part)
    return b"".join(parts)


def until_damage(content: Content) -> tuple[bytes, str]:
    """What can be read, and what is said then."""
    parts: list[bytes] = []
    try:
        while part := content.read(100_000):
            parts.append(part)
    except Unreadable:
        pass  # and again:
    with pytest.raises(Unreadable) as told:
        content.read(1)
    assert content.offset == sum(map(len, parts))
    return b"".join(parts), str(told.value)


@contextmanager
def fed(folder: Path, pieces: list[bytes]) -> Iterator[Input]:
    """A FIFO into which another thread writes."""
    path = folder / "fifo"
    os.mkfifo(path)

    def feed() -> None:
        with path.open("wb", buffering=0) as pipe:
            try:
                for piece in pieces:
                    while piece:  # a raw write may take a part
                        piece = piece[pipe.write(piece) or 0 :]
            except BrokenPipeError:
                pass  # the test has read enough

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield at(path)
    finally:
        feeder.join(20)
        path.unlink()


@contextmanager
def filled(folder: Path, data: bytes) -> Iterator[Input]:
    """A FIFO that holds so much and has no end: whoever opened it for both may write to it."""
    path = folder / "filled"
    os.mkfifo(path)
    with path.open("r+b", buffering=0) as pipe:
        pipe.write(data)
        yield at(path)
    path.unlink()


def test_a_plain_file_may_grow_for_an_hour_after_it_was_written_to(source: Source) -> None:
    for age, data, grows in (
        (GROWS_S - 60, b"a\n", True),
        (GROWS_S - 60, b"", True),
        (GROWS_S + 60, b"a\n", False),
        (-60, b"a\n", True),  # the clocks of two machines
        (0, gzip.compress(b"a\n"), False),
    ):
        source.path.write_bytes(data)
        os.utime(source.path, times=(time.time() - age,) * 2)
        with open_content(at(source.path)) as content:
            assert content.may_grow is grows
            assert content.read(2) in (b"a\n", b"")


@pytest.mark.parametrize("pack", [bytes, *PACKERS.values()])
def test_files_are_read_from_anywhere_and_known_by_their_content(
    source: Source, pack: Callable[[bytes], bytes]
) -> None:
    streams = pack(SAMPLE[:300_000]) + pack(b"") + pack(SAMPLE[300_000:])
    for packed, whole in (pack(SAMPLE), SAMPLE), (streams, SAMPLE), (pack(b""), b""):
        with source.of(packed) as content:
            assert rest(content, 77_777) == whole
            assert (content.offset, content.position) == (len(whole), len(packed))
            content.seek(3)
            assert content.read(4) == whole[3:7]


@pytest.mark.parametrize("kind", PACKERS)
@given(
    data=st.binary(max_size=900),
    streams=st.integers(1, 3),
    looks=st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 90)), max_size=8),
)
@examples(few=20, many=100)
def test_a_compressed_file_is_read_from_anywhere(
    kind: str, data: bytes, streams: int, looks: list[tuple[int, int]]
) -> None:
    packed, whole = PACKERS[kind](data) * streams, data * streams
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("countersink.logs.file._KEPT", 50)
        patch.setattr("countersink.logs.file.BLOCK", 40)
        kinds = [one for one in PACKINGS if one.name == kind]
        unpacker = Unpacker(kinds[0], lambda size, offset: packed[offset : offset + size])
        for offset, size in looks:
            found = unpacker.read(size, offset)
            assert whole[offset:].startswith(found)
            assert len(found) <= size
            assert found or offset >= len(whole)


@pytest.mark.parametrize("kind", PACKERS)
def test_a_compressed_file_is_not_begun_again_while_its_lines_are_read(
    source: Source, kind: str
) -> None:
    data = SAMPLE + b"x" * MIB + b"\n" + SAMPLE + b'"never closed\n' + SAMPLE * 9
    with source.of(PACKERS[kind](data)) as content:
        head_of(content)
        with source.path.open("r+b") as file:
            file.write(b"begun again")
        at_byte, number = 0, 1
        while at_byte < len(data):
            reader = SpanReader(content, at_byte, number, quoted=Quoting(","), max_lines=5_000)
            assert list(reader.pieces())
            assert reader.span is not None
            at_byte, number = reader.span.end, reader.span.next_line
        assert at_byte == len(data)
        with pytest.raises(Unreadable, match="other data follows"):
            content.read_at(1, 0)


def test_gzip_may_be_padded_with_zeros(source: Source) -> None:
    one = gzip.compress(b"a\n")
    packed = one + b"\0" * 600_000 + one + b"\0" * 5
    with source.of(packed) as content:
        assert rest(content) == b"a\na\n"


def test_frames_of_zstd_that_hold_no_data_are_skipped(source: Source) -> None:
    skipped = b"\x53\x2a\x4d\x18" + (300_000).to_bytes(4, "little") + b"x" * 300_000
    with source.of(skipped + zstd(SAMPLE) + skipped) as content:
        assert rest(content) == SAMPLE


@pytest.mark.parametrize("kind", PACKERS)
def test_what_stands_before_the_cut_of_a_compressed_file_is_read(source: Source, kind: str) -> None:
    packed = PACKERS[kind](SAMPLE)
    found = 0
    for cut in (SNIFFED, len(packed) // 2, len(packed) - 9, len(packed) - 1):
        with source.of(packed[:cut]) as content:
            data, told = until_damage(content)
            assert SAMPLE.startswith(data)
            assert len(data) >= found
            found = len(data)
            assert f"its {kind} data is cut off" in told
            assert "give an undamaged copy" in told
            content.seek(0)
            assert until_damage(content)[0] == data
    assert found > len(SAMPLE) // 2


SNIFFED = 16


@pytest.mark.parametrize("kind", PACKERS)
def test_damage_is_told_behind_what_can_be_read(source: Source, kind: str) -> None:
    corrupt = bytearray(PACKERS[kind](SAMPLE * 3))
    for at_byte in range(len(corrupt) * 2 // 3, len(corrupt) * 2 // 3 + 40):
        corrupt[at_byte] ^= 0x55
    with source.of(bytes(corrupt)) as content:
        data, told = until_damage(content)
    assert f"its {kind} data is corrupt" in told
    assert len(data) >= 256 * 1024
    with source.of(PACKERS[kind](SAMPLE) + b"a line\n") as content:
        data, told = until_damage(content)
    assert f"other data follows its {kind} data" in told
    assert data == SAMPLE


@pytest.mark.parametrize(
    ("first", "advice"),
    [(b"\x1f\x9d\0", "zcat"), (b"PK\x03\x04", "unzip -p"), (b"\x04\x22\x4d\x18", "lz4cat")],
)
def test_other_compression_is_refused_with_the_way_round(
    source: Source, first: bytes, advice: str
) -> None:
    with pytest.raises(Unreadable, match=rf"{advice} \S+ \| countersink backfill -"):
        source.of(first + b"\0" * 50)


def test_lines_that_begin_like_an_archive_are_lines(source: Source) -> None:
    for data in (b"BZh1 is my name\n", b"(\xb5/ \n", b"\x1f\x8b", b"P", b"7z"):
        with source.of(data) as content:
            assert rest(content) == data


def test_a_file_that_changes_is_read_as_far_as_it_went_and_goes(source: Source) -> None:
    with source.of(b"a\nb\nc\n") as content:
        assert content.read(2) == b"a\n"
        with source.path.open("ab") as log:
            log.write(b"d\n")
        assert rest(content) == b"b\nc\n"
        content.seek(8)
        assert content.offset == 6
        content.seek(2)
        os.truncate(source.path, 4)
        assert content.read(100) == b"b\n"
        with pytest.raises(Unreadable, match="became shorter while it was read"):
            content.read(100)


def test_a_file_that_is_renamed_and_replaced_is_read_on(source: Source) -> None:
    for data in (SAMPLE, gzip.compress(SAMPLE)):
        with source.of(data) as content:
            content.read(10)
            source.path.rename(f"{source.path}.1")
            source.path.write_bytes(b"new")
            content.seek(0)
            assert rest(content) == SAMPLE


@pytest.mark.parametrize("pack", [bytes, *PACKERS.values()])
def test_a_fifo_is_read_as_a_file_with_what_came(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    data = pack(SAMPLE)
    pieces = [data[:1], data[1:2], data[2:15], data[15:100_000], data[100_000:]]
    with fed(tmp_path, pieces) as source, open_content(source) as content:
        assert not content.may_grow
        assert rest(content) == SAMPLE
        assert (content.offset, content.position) == (len(SAMPLE), len(data))
        content.seek(5)
        assert content.read(5) == SAMPLE[5:10]


def test_the_copy_of_a_pipe_has_no_name_and_leaves_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with fed(tmp_path, [SAMPLE]) as source, open_content(source) as content:
        assert list(folder.iterdir()) == []
        assert rest(content) == SAMPLE
    monkeypatch.setattr("countersink.backfill.content.RESERVE", 2**62)
    with filled(tmp_path, b"a\n") as source, pytest.raises(Unreadable) as told:
        open_content(source)
    assert f"cannot be copied to {folder}: less than" in str(told.value)
    assert "TMPDIR to a directory with more free space" in str(told.value)
    assert list(folder.iterdir()) == []
    folder.rmdir()
    with filled(tmp_path, b"a\n") as source, pytest.raises(Unreadable) as told:
        open_content(source)
    assert "kept: No such file" in str(told.value)
    assert "TMPDIR to a directory" in str(told.value)


@pytest.mark.parametrize("said", [b"", b"a\nb\n" * 10, zstd(b"a\n")])
def test_a_pipe_can_be_stopped(tmp_path: Path, said: bytes) -> None:
    """What came of it is not read: its last line may be half of one."""
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(len(asked) >= 2)  # after what was said, when it is silent
        return asked[-1]

    with filled(tmp_path, said) as source:
        with pytest.raises(Unreadable, match="was not read: the backfill was stopped"):
            open_content(source, stop)
        assert asked == [False, False, True]


def test_a_fifo_that_nobody_writes_to_can_be_stopped(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    answers = iter([False])
    with pytest.raises(Unreadable, match="was not read: the backfill was stopped"):
        open_content(at(path), lambda: next(answers, True))


READER = """
import sys
from pathlib import Path
from typing import Any
from countersink.backfill.content import open_content
from countersink.backfill.content import Input
from countersink.backfill.spans import Quoting
from countersink.backfill.spans import SpanReader, block_of
name, quoted = sys.argv[1], Quoting(",") if sys.argv[2] == "quoted" else None
at, line, lines, rejected = 0, 1, [], []
with open_content(Input(name, None if name == "-" else Path(name), None)) as content:
    while True:
        reader = SpanReader(content, at, line, quoted=quoted)
        for piece in reader.pieces():
            block = block_of(piece, quoted)
            lines += block.lines
            rejected += block.rejected
        if reader.span is None:
            break
        at, line = reader.span.end, reader.span.next_line
print(at, line, b",".join(lines).decode(), [one.line for one in rejected])
status = dict(one.split(":", 1) for one in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) // 1024)  # ru_maxrss would be at least the parent's
"""

HUGE = 120 * MIB
BIG = pytest.mark.long("big inputs")


def read_by_another(name: str, quoted: str, pieces: list[bytes]) -> tuple[str, int]:
    """What a process of its own reads, and its peak in MiB."""
    with subprocess.Popen(
        [sys.executable, "-c", READER, name, quoted],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for piece in pieces:
            reader.stdin.write(piece)
        reader.stdin.close()
        said, peak = reader.stdout.read().decode().splitlines()
    return said, int(peak)


@pytest.mark.parametrize("quoted", [pytest.param("lines", marks=BIG), "quoted"])
def test_memory_is_flat_over_a_huge_line_from_a_pipe(quoted: str) -> None:
    pieces = [b"a\n", *[b'"' + b"x" * (MIB - 1)] * (HUGE // MIB), b"\nb\n"]
    said, peak = read_by_another("-", quoted, pieces)
    assert said == f"{HUGE + 5} 4 a,b [2]"
    assert peak < 110


@pytest.mark.parametrize(
    "kind", ["nul", "gzip", *(pytest.param(kind, marks=BIG) for kind in ("bzip2", "zstd", "xz"))]
)
def test_memory_is_flat_over_what_unpacks_to_a_huge_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "huge"
    if kind == "nul":
        path.write_bytes(b"a\n")
        os.truncate(path, HUGE + 2)
        with path.open("ab") as log:
            log.write(b"b\n")
    else:
        with path.open("wb") as file:
            for text in b"a\n", b"x" * HUGE + b"\n", b"b\n":
                file.write(PACKERS[kind](text))
    said, peak = read_by_another(str(path), "lines", [])
    if kind == "nul":
        assert said == f"{HUGE + 4} 3 a,b []"
    else:
        assert said == f"{HUGE + 5} 4 a,b [2]"
    assert peak < 110

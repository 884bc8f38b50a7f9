"""Segments on disk: torn at every byte, corrupt in the middle, stamped, locked, full."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from countersink.producers.outbox import Parcel
from countersink.producers.spool import SpoolError, list_segments
from countersink.producers.spool.replay import Backlog, new_segment_path, segment_paths
from countersink.producers.spool.segment import (
    FILE_HEADER_SIZE,
    RECORD_HEADER_SIZE,
    Segment,
    file_header,
    pack_checked,
    unpack_checked,
)
from countersink.producers.spool.writer import Spool
from countersink.runtime.log import Log
from countersink.stream.entry import encode_rows, new_entry_id
from tests.producers.helpers import files_up_to, new_log
from tests.support.examples import MANY
from tests.support.waiting import eventually

NOW = 1_795_000_000_000


def parcel(number: int, *, at: int | None = None) -> Parcel:
    rows = encode_rows([("hits", f"key-{number}", 1, number)])
    return Parcel(new_entry_id(NOW + number), rows, 1, number, at=at)


def written(directory: Path, parcels: list[Parcel]) -> Path:
    """A segment whose writer is gone."""
    segment = Segment.create(new_segment_path(directory))
    for each in parcels:
        segment.append([each])
    segment.close()
    return segment.path


def adopt(path: Path) -> Segment:
    segment = Segment.adopt(path)
    assert segment is not None
    return segment


def replayed(path: Path, *, log: Log | None = None) -> tuple[list[Parcel], Backlog]:
    """Replay one segment to its end."""
    backlog = Backlog(log or new_log())
    backlog.add(adopt(path))
    sent: list[Parcel] = []
    while parcels := backlog.next(3, lambda: NOW):
        sent += parcels
        backlog.delivered(parcels)
    return sent, backlog


def first_replayed(path: Path) -> list[Parcel]:
    """Replay the first entry of a segment, then break off."""
    backlog = Backlog(new_log())
    backlog.add(adopt(path))
    first = backlog.next(1, lambda: NOW)
    backlog.delivered(first)
    backlog.close()
    return first


def facts(parcels: list[Parcel]) -> list[tuple[str, bytes, int, int]]:
    return [(each.id, each.rows, each.row_count, each.increments) for each in parcels]


def some(begin: int, end: int) -> list[int]:
    """Offsets in a record: each one in `make test-long`, else those of its header and some more."""
    step = 1 if MANY else 9
    return sorted({*range(begin, begin + RECORD_HEADER_SIZE), *range(begin, end, step), end - 1})


@pytest.fixture
def held() -> Iterator[list[Segment]]:
    """Segments to be let go of at the end."""
    segments: list[Segment] = []
    yield segments
    for segment in segments:
        segment.close()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    parcels = [parcel(number) for number in range(1, 20)]
    parcels[4].at = NOW - 5
    path = written(tmp_path, parcels)
    sent, _ = replayed(path)
    assert facts(sent) == facts(parcels)
    assert [each.at for each in sent[:6]] == [NOW, NOW, NOW, NOW, NOW - 5, NOW]
    assert not path.exists(), "a finished segment is deleted"


@pytest.mark.random
def test_a_torn_tail_is_cut_at_every_byte(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parcels = [parcel(number) for number in range(1, 4)]
    whole = written(tmp_path, parcels)
    content = whole.read_bytes()
    segment = adopt(whole)
    first = segment.records.at_or_after(FILE_HEADER_SIZE, segment.end)
    assert first is not None
    second = segment.records.at_or_after(first.end, segment.end)
    assert second is not None
    segment.close()
    edges = (FILE_HEADER_SIZE, first.end, second.end)
    sizes = {*some(0, len(content)), *(end + more for end in edges for more in (-1, 0, 1))}
    for size in sorted(sizes):
        torn = tmp_path / "torn.spool"
        torn.write_bytes(content[:size])
        caplog.clear()
        sent, backlog = replayed(torn)
        ends = [end for end in (first.end, second.end) if end <= size]
        assert facts(sent) == facts(parcels[: len(ends)]), size
        assert not torn.exists()
        clean = size <= FILE_HEADER_SIZE or size in ends
        said = any("not written to its end" in record.message for record in caplog.records)
        assert said is not clean, size
        assert backlog.done.damaged_bytes == 0


@pytest.mark.random
def test_a_corrupt_record_in_the_middle_is_passed_over_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parcels = [parcel(number) for number in range(1, 6)]
    original = written(tmp_path, parcels)
    content = original.read_bytes()
    size = (len(content) - FILE_HEADER_SIZE) // 5
    begin = FILE_HEADER_SIZE + 2 * size
    number = range(begin + 12, begin + 24)  # a damaged number reads as not set: the record is whole
    for offset in some(begin, begin + size):
        if offset in number:
            continue
        caplog.clear()
        path = tmp_path / "bad.spool"
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 0x5A]) + content[offset + 1 :])
        sent, backlog = replayed(path)
        found = offset >= begin + 8  # by the length, which the next one is found by
        assert facts(sent) == facts(parcels[:2] + (parcels[3:] if found else [])), offset
        assert backlog.done.damaged_bytes == (size if found else 3 * size)
        assert f"{backlog.done.damaged_bytes} bytes are corrupt" in caplog.text
        kept = path.with_name("bad.spool.damaged")
        assert kept.exists(), "not deleted: somebody may want to look at it"
        assert not path.exists()
        kept.unlink()


@pytest.mark.random
def test_the_last_record_is_damaged_and_not_torn_whichever_byte_is_flipped(tmp_path: Path) -> None:
    parcels = [parcel(number) for number in range(1, 4)]
    content = written(tmp_path, parcels).read_bytes()
    size = (len(content) - FILE_HEADER_SIZE) // 3
    begin = len(content) - size
    number = range(begin + 12, begin + 24)
    for offset in some(begin, len(content)):
        if offset in number:
            continue
        path = tmp_path / "bad.spool"
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 0x5A]) + content[offset + 1 :])
        (info,) = [each for each in list_segments(tmp_path) if each.path == path]
        assert (info.entries, info.damaged_bytes) == (2, size), offset
        sent, backlog = replayed(path)
        assert facts(sent) == facts(parcels[:2]), offset
        assert backlog.done.damaged_bytes == size, offset
        kept = path.with_name("bad.spool.damaged")
        assert backlog.done.kept == [kept]
        assert kept.stat().st_size == len(content), "nothing of it was cut"
        kept.unlink()


@pytest.mark.parametrize("size", [0, 1, FILE_HEADER_SIZE - 1, FILE_HEADER_SIZE])
@pytest.mark.parametrize("start", [file_header(), bytes(FILE_HEADER_SIZE)], ids=["begun", "zeros"])
def test_a_segment_whose_header_was_never_whole_is_empty(
    tmp_path: Path, size: int, start: bytes
) -> None:
    path = tmp_path / "x.spool"
    path.write_bytes(start[:size])
    sent, backlog = replayed(path)
    assert (sent, backlog.done.damaged_bytes, path.exists()) == ([], 0, False)


@pytest.mark.parametrize("start", [bytes(2), b"csspool2", b"something else entirely, and long"])
def test_a_file_whose_header_is_damaged_or_newer_or_anothers_is_unreadable_and_kept(
    tmp_path: Path, start: bytes
) -> None:
    path = written(tmp_path, [parcel(1)])
    path.write_bytes(start + path.read_bytes()[len(start) :])
    (info,) = list_segments(tmp_path)
    assert info.unreadable == "it is not a spool segment"
    with pytest.raises(SpoolError, match="not a spool segment"):
        Segment.adopt(path)
    assert path.exists(), "kept"


def test_damage_is_seen_again_after_a_replay_that_was_interrupted(tmp_path: Path) -> None:
    parcels = [parcel(number) for number in range(1, 6)]
    path = written(tmp_path, parcels)
    content = bytearray(path.read_bytes())
    content[FILE_HEADER_SIZE + 30] ^= 0xFF  # in the first record
    path.write_bytes(content)
    (first,) = first_replayed(path)
    sent, _ = replayed(path)  # what comes after the damage once more
    assert facts(sent) == facts(parcels[1:])
    assert sent[0].sealed().fields() == first.sealed().fields()
    assert path.with_name(path.name + ".damaged").exists()


def test_at_is_stamped_on_disk_before_the_first_send_and_kept(tmp_path: Path) -> None:
    path = written(tmp_path, [parcel(1), parcel(2, at=NOW - 60_000), parcel(3)])
    backlog = Backlog(new_log())
    backlog.add(adopt(path))
    sent = backlog.next(3, lambda: NOW)
    assert [each.at for each in sent] == [NOW, NOW - 60_000, NOW]
    backlog.close()  # as if killed in mid-send: the answer never came
    again, _ = replayed(path)
    assert [each.sealed().fields() for each in again] == [each.sealed().fields() for each in sent]


def test_a_replay_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    parcels = [parcel(number) for number in range(1, 8)]
    path = written(tmp_path, parcels)
    backlog = Backlog(new_log())
    backlog.add(adopt(path))
    sent = backlog.next(3, lambda: NOW)
    backlog.delivered(sent[:2])  # Redis refused the third
    assert facts(backlog.next(3, lambda: NOW + 9)) == facts(parcels[2:3]), "the same one again"
    backlog.close()
    rest, _ = replayed(path)
    assert facts(rest) == facts(parcels[2:])
    assert rest[0].at == NOW


def test_a_torn_number_is_not_set() -> None:
    number = pack_checked(NOW)
    assert unpack_checked(number) == NOW
    assert unpack_checked(bytes(12)) is None
    for size in range(12):
        assert unpack_checked(number[:size] + bytes(12 - size)) is None or size > 8


def test_a_live_writers_segment_is_left_alone(tmp_path: Path, held: list[Segment]) -> None:
    segment = Segment.create(new_segment_path(tmp_path))
    held.append(segment)
    segment.append([parcel(1)])
    assert Segment.adopt(segment.path) is None
    (info,) = list_segments(tmp_path)
    assert (info.held, info.damaged, info.bytes) == (True, False, segment.end)
    segment.append([parcel(2)])
    segment.close()
    (info,) = list_segments(tmp_path)
    assert not info.held
    sent, _ = replayed(segment.path)
    assert [each.increments for each in sent] == [1, 2]


@pytest.mark.parametrize("other", [False, True], ids=["gone", "another"])
def test_a_deleted_segment_that_another_had_open_is_not_replayed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    path, newer = written(tmp_path, [parcel(1)]), written(tmp_path, [parcel(2)])
    original_open = os.open

    def slow_open(name: str | Path, flags: int, mode: int = 0o777, **more: int) -> int:
        """As when a second replayer opened the file before the first had deleted it."""
        fd = original_open(name, flags, mode, **more)
        if Path(name) == path:
            path.unlink()
            if other:
                newer.rename(path)
        return fd

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", slow_open)
        assert Segment.adopt(path) is None
    assert first_replayed(path if other else newer)[0].increments == 2


def test_a_failed_write_leaves_what_was_stored(tmp_path: Path, held: list[Segment]) -> None:
    segment = Segment.create(new_segment_path(tmp_path))
    held.append(segment)
    segment.append([parcel(1)])
    size = segment.path.stat().st_size
    with files_up_to(size + 40), pytest.raises(SpoolError, match="File too large"):
        segment.append([parcel(2)])
    assert segment.path.stat().st_size == size
    segment.append([parcel(3)])
    segment.close()
    sent, _ = replayed(segment.path)
    assert [each.increments for each in sent] == [1, 3]


def test_a_full_disk_does_not_keep_a_replay_from_stamping(tmp_path: Path) -> None:
    path = written(tmp_path, [parcel(1), parcel(2)])
    with files_up_to(path.stat().st_size):
        sent, _ = replayed(path)
    assert len(sent) == 2


def test_segments_are_replayed_in_the_order_in_which_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("countersink.producers.spool.writer.SEGMENT_BYTES", 300)
    spool = Spool(tmp_path, 1 << 20, new_log())
    parcels = [parcel(number) for number in range(1, 30)]
    for each in parcels:
        spool.append([each])
    assert len(segment_paths(tmp_path)) > 5
    spool.roll()
    sent: list[Parcel] = []
    while got := spool.backlog.next(3, lambda: NOW):
        sent += got
        spool.backlog.delivered(got)
    assert facts(sent) == facts(parcels)
    assert segment_paths(tmp_path) == []
    assert not spool.waiting


def test_a_forked_child_gives_up_the_lock(tmp_path: Path) -> None:
    segment = Segment.create(new_segment_path(tmp_path))
    segment.append([parcel(1)])
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        segment.close()  # does nothing here: the fork has closed it
        os.read(reading, 1)  # until the parent is done
        os._exit(0)
    os.close(reading)
    try:
        assert Segment.adopt(segment.path) is None, "the parent still has it"
        segment.close()
        # As soon as the child has run at all, and though it lives.
        adopted = eventually(lambda: Segment.adopt(segment.path))
        assert adopted is not None
        adopted.close()
    finally:
        os.close(writing)
        assert os.waitpid(pid, 0)[1] == 0


def test_a_segment_that_cannot_be_deleted_releases_no_other(tmp_path: Path) -> None:
    parcels = parcel(1), parcel(2)
    first, _ = (written(tmp_path, [each]) for each in parcels)
    spool = Spool(tmp_path, 1 << 20, new_log())
    try:
        assert spool.adopt_one()
        assert spool.adopt_one()
        backlog = spool.backlog
        backlog.delivered(backlog.next(1, lambda: NOW))
        first.rename(tmp_path / "away")
        first.mkdir()
        with pytest.raises(SpoolError, match="cannot delete"):
            backlog.next(1, lambda: NOW)
        backlog.release_first()
        assert [each.id for each in backlog.next(1, lambda: NOW)] == [parcels[1].id]
    finally:
        spool.close()


def test_a_segment_that_was_released_is_waited_for_until_it_is_found_or_gone(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, [parcel(1)])
    spool = Spool(tmp_path, 1 << 20, new_log())
    try:
        assert spool.adopt_one()
        spool.backlog.release_first()
        assert spool.waiting
        assert spool.adopt_one()
        spool.backlog.delivered(spool.backlog.next(1, lambda: NOW))
        assert spool.backlog.next(1, lambda: NOW) == []
        assert not path.exists()
        assert spool.waiting
        assert not spool.adopt_one()
        assert not spool.waiting
    finally:
        spool.close()


def test_a_listing_tells_records_that_are_not_done_and_leaves_the_lock(tmp_path: Path) -> None:
    path = written(tmp_path, [parcel(number) for number in range(1, 6)])
    content = bytearray(path.read_bytes())
    size = (len(content) - FILE_HEADER_SIZE) // 5
    content[FILE_HEADER_SIZE + 3 * size + 30] ^= 0xFF  # in the fourth record
    path.write_bytes(content + bytes(100))  # and a torn tail
    backlog = Backlog(new_log())
    backlog.add(adopt(path))
    backlog.delivered(backlog.next(2, lambda: NOW))
    (info,) = list_segments(tmp_path)
    assert (info.state, info.entries, info.increments) == ("held", 2, 3 + 5)
    assert (info.damaged_bytes, info.unreadable) == (size, None)
    assert info.made_ms is not None
    backlog.close()
    assert [one.state for one in list_segments(tmp_path)] == ["waiting"]
    sent, done = replayed(path)
    assert [each.increments for each in sent] == [3, 5]
    assert done.done.kept == [path.with_name(path.name + ".damaged")]
    (info,) = list_segments(tmp_path)
    assert (info.state, info.entries) == ("damaged", 0)

"""Counting a log across its rotation, while a run goes on and while none does."""

import bz2
import gzip
import lzma
import os
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from threading import Thread

import pytest
import redis
import zstandard
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from countersink.logs.errors import LogError, TailError
from countersink.logs.position import LogBatch, LogMark, Outcome
from countersink.stream.names import stream_key
from tests.logs.tailing import Tailing, append, counted, entries, line, snapshot, write
from tests.support.examples import MANY
from tests.support.waiting import eventually

LONG = tuple(f"/{'long' * 20}/{number}" for number in range(20))
"""More than the 1,024 bytes by which a file is known."""


@pytest.fixture(params=["short", "long"])
def begun(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """What is in the log before it is rotated: less and more than what a file is known by."""
    return LONG if request.param == "long" else ("/first",)


def rotate(
    log: Path, *paths: str, copy: bool = False, packed: bool = False, suffixes: int = 9
) -> Path:
    """As logrotate does it, after a line for each path: .1 becomes .2 and so on, then the log
    becomes .1, whose name is returned."""
    write(log, *paths)
    for number in range(suffixes, 0, -1):
        for extension in ("", *(f".{each}" for each in PACKERS)):
            old = log.with_name(f"{log.name}.{number}{extension}")
            if old.exists():
                old.rename(log.with_name(f"{log.name}.{number + 1}{extension}"))
    first = log.with_name(f"{log.name}.1")
    if copy:
        shutil.copyfile(log, first)
        os.truncate(log, 0)
    else:
        log.rename(first)
        log.touch()
    if packed:
        compress(first)
    return first


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def compress(path: Path, extension: str = "gz") -> None:
    """Replace a file by its .gz, as a new inode."""
    packed = path.with_name(f"{path.name}.{extension}")
    packed.write_bytes(PACKERS[extension](path.read_bytes()))
    path.unlink()


class TestWhileNothingRan:
    """What was rotated meanwhile is finished first."""

    @pytest.mark.parametrize("copy", [False, True])
    def test_files_in_between_are_read_too(
        self, tailing: Tailing, begun: tuple[str, ...], copy: bool
    ) -> None:
        tailing.count(*begun)
        for number in range(12):
            rotate(tailing.log, f"/{number}", copy=copy, suffixes=20)
            if number == 4:
                compress(tailing.log.with_name("access.log.1"))
        tailing.run()
        assert counted(tailing.client) == dict.fromkeys([*begun, *(f"/{n}" for n in range(12))], 1)

    def test_names_with_dates_are_read_in_their_order(self, tailing: Tailing) -> None:
        tailing.count("/a")
        for day in ("20261109", "20261110", "20261111"):
            write(tailing.log, f"/{day}")
            tailing.log.rename(tailing.log.with_name(f"access.log-{day}"))
        tailing.count("/new")
        assert counted(tailing.client).total() == 5
        tailing.log.with_name("access.log-20261108").write_bytes(line("/older") + b"\n")
        assert tailing.run().counted == 0

    def test_a_name_nobody_could_guess_is_found_by_its_inode(self, tailing: Tailing) -> None:
        tailing.count("/a")
        write(tailing.log, "/b")
        tailing.log.rename(tailing.log.with_name("old"))
        tailing.count("/c")
        assert counted(tailing.client) == {"/a": 1, "/b": 1, "/c": 1}

    def test_a_last_line_without_newline_is_final_there(self, tailing: Tailing) -> None:
        tailing.count("/a")
        append(tailing.log, line("/whole"))
        rotate(tailing.log)
        append(tailing.log, line("/half")[:50])
        rotate(tailing.log)
        assert tailing.count("/b").rejected == 1
        assert tailing.told.lines == [("access.log.1", 1)]
        assert counted(tailing.client) == {"/a": 1, "/whole": 1, "/b": 1}

    def test_a_file_that_is_gone_is_said_to_be(self, tailing: Tailing) -> None:
        tailing.count("/a")
        tailing.log.unlink()
        write(tailing.log, "/b")
        found = tailing.run()
        assert (found.counted, found.lost) == (1, 1)
        assert any("was not found" in notice for notice in tailing.told.notices)

    def test_a_log_written_anew_in_place_is_another_file(
        self, tailing: Tailing, begun: tuple[str, ...]
    ) -> None:
        tailing.count(*begun)
        inode = tailing.log.stat().st_ino
        tailing.log.write_bytes(b"".join(line(f"/new{n}") + b"\n" for n in range(40)))
        assert tailing.log.stat().st_ino == inode
        assert tailing.run().counted == 40

    def test_a_log_moved_to_another_place_of_the_disk_is_the_same(
        self, tailing: Tailing, begun: tuple[str, ...]
    ) -> None:
        tailing.count(*begun)
        copy = tailing.log.with_name("copy")
        shutil.copyfile(tailing.log, copy)
        copy.rename(tailing.log)
        assert tailing.count("/more").counted == 1

    def test_a_log_that_lost_its_end_is_not_guessed_at(self, tailing: Tailing) -> None:
        tailing.count(*LONG)
        os.truncate(tailing.log, 1500)
        with pytest.raises(TailError, match="shorter"):
            tailing.run()

    def test_a_renamed_file_is_not_left_while_a_server_may_still_write_to_it(
        self, redis_client: redis.Redis, log: Path
    ) -> None:
        tailing = Tailing(redis_client, log, rotate_wait=3600)
        tailing.count("/a")
        old = rotate(log)
        write(log, "/new")
        for late in ("/late", "/later"):
            write(old, late)
            assert tailing.run().counted == 1
            assert counted(redis_client)[late] == 1
        assert all("may still be written to" in n for n in tailing.told.notices[1::2])
        write(old, "/last")
        os.utime(old, (0, 0))
        assert tailing.run().counted == 2
        assert counted(redis_client) == dict.fromkeys(["/a", "/late", "/later", "/last", "/new"], 1)


class TestBegunWithNothingToCount:
    """The place in a log that held no whole line yet is a place, too."""

    @pytest.fixture(params=["empty", "half a line", "absent", "emptied"])
    def begun(self, request: pytest.FixtureRequest, tailing: Tailing) -> str:
        """The log's state when it was first looked at; older files lie beside it."""
        old = tailing.log.with_name("access.log.1")
        write(old, *LONG, "/old")
        os.utime(old, (1_000_000_000, 1_000_000_000))
        if request.param == "absent":
            with pytest.raises(LogError, match="No such file"):
                tailing.run()
            return "absent"
        if request.param == "emptied":
            tailing.count("/old")
            os.truncate(tailing.log, 0)
            tailing.client.delete(stream_key(0))
        tailing.log.touch()
        if request.param == "half a line":
            append(tailing.log, line("/0")[:30])
        tailing.run()
        return str(request.param)

    @pytest.mark.parametrize(
        ("copy", "packed", "times"),
        [
            *((False, False, 2), (False, True, 1), (True, False, 1), (True, True, 2)),
            *(
                pytest.param(*others, marks=pytest.mark.long("the other combinations"))
                for others in product((False, True), (False, True), (1, 2))
                if sum(others) % 2 == 1
            ),
        ],
    )
    def test_what_was_rotated_since_is_counted_once(
        self, tailing: Tailing, begun: str, copy: bool, packed: bool, times: int
    ) -> None:
        rest = b""
        if begun == "half a line":
            rest = line("/0")[30:] + b"\n"
        elif begun == "absent":
            tailing.log.touch()
        for number in range(times):
            append(tailing.log, rest or line(f"/{number}") + b"\n")
            rest = b""
            rotate(tailing.log, copy=copy, packed=packed)
        tailing.count(f"/{times}")
        assert tailing.run().counted == 0
        assert counted(tailing.client) == dict.fromkeys([f"/{n}" for n in range(times + 1)], 1)

    def test_an_older_file_that_is_written_to_or_packed_late_is_not_a_new_one(
        self, tailing: Tailing, begun: str
    ) -> None:
        older = tailing.log.with_name("access.log.1")
        write(older, "/late")
        compress(older)
        if begun == "half a line":
            append(tailing.log, line("/0")[30:] + b"\n")
        else:
            write(tailing.log, "/0")
        tailing.run()
        assert counted(tailing.client) == {"/0": 1}

    def test_a_copy_for_safe_keeping_is_not_counted(self, tailing: Tailing) -> None:
        tailing.log.touch()
        tailing.run()
        write(tailing.log, "/0", "/1")
        shutil.copyfile(tailing.log, tailing.log.with_name("access.log.1"))
        tailing.run()
        assert counted(tailing.client) == {"/0": 1, "/1": 1}


@pytest.mark.parametrize("extension", sorted(PACKERS))
@pytest.mark.parametrize("olddir", [False, True])
def test_rotated_files_are_found_however_they_are_packed_and_wherever_they_lie(
    redis_client: redis.Redis, log: Path, extension: str, olddir: bool
) -> None:
    old = log.parent / "old"
    old.mkdir()
    tailing = Tailing(redis_client, log, rotated_in=old if olddir else None)
    tailing.count("/a")
    for other in ("access.log.bak", "access.log.1.offset", "other_access.log", "access.logs.1"):
        write((old if olddir else log.parent) / other, "/wrong")
    rotate(log, "/b")
    rotate(log, "/c")
    for number in (1, 2):
        first = log.with_name(f"access.log.{number}")
        if olddir:
            first = first.rename(old / first.name)
        compress(first, extension)
    assert tailing.count("/d").counted == 3
    assert tailing.run().lost == 0
    assert counted(redis_client) == dict.fromkeys(["/a", "/b", "/c", "/d"], 1)


def _shift(link: Path, target: Path) -> None:
    """Let a link point to another file at once, as rotatelogs does."""
    new = link.with_name("new")
    new.symlink_to(target)
    new.rename(link)


class TestLinks:
    """The log is a link; its position is that of the link's name."""

    @pytest.fixture
    def pods(self, tmp_path: Path) -> Path:
        pods = tmp_path / "pods"
        pods.mkdir()
        return pods

    def test_the_file_behind_a_link_is_rotated_where_it_lies(
        self, tailing: Tailing, pods: Path
    ) -> None:
        real = pods / "0.log"
        tailing.log.symlink_to(real)
        write(real, "/0")
        tailing.run()
        for number in (1, 2):
            write(real, f"/late{number}")
            real.rename(pods / f"0.log.2026112{number}-130501")
            write(real, f"/{number}")
        compress(pods / "0.log.20261121-130501")
        assert tailing.run().counted == 4
        assert counted(tailing.client) == dict.fromkeys(["/0", "/late1", "/1", "/late2", "/2"], 1)

    @pytest.mark.parametrize("beside", [False, True])
    def test_a_link_that_points_to_another_file_each_day(
        self, tailing: Tailing, pods: Path, beside: bool
    ) -> None:
        days = [
            tailing.log.with_name(f"access.log.2026-11-2{n}")
            if beside
            else pods / f"2026-11-2{n}.log"
            for n in range(4)
        ]
        write(days[0], "/0")
        tailing.log.symlink_to(days[0])
        tailing.run()
        write(days[0], "/late")
        for number in (1, 2, 3):
            write(days[number], f"/{number}")
            _shift(tailing.log, days[number])
        assert tailing.run().counted == 4
        assert counted(tailing.client) == dict.fromkeys(["/0", "/late", "/1", "/2", "/3"], 1)

    def test_files_with_other_numbers_in_their_names_are_other_logs(
        self, tailing: Tailing, pods: Path
    ) -> None:
        for name in ("web1.log", "web2.log", "192.0.2.1.log", "192.0.2.2.log"):
            write(pods / name, f"/{name}")
        tailing.log.symlink_to(pods / "web1.log")
        tailing.run()
        _shift(tailing.log, pods / "192.0.2.1.log")
        tailing.run()
        assert counted(tailing.client) == {"/web1.log": 1, "/192.0.2.1.log": 1}


HEADER = b"#Version: 1.0\n#Fields: date time cs-uri-stem " + b" ".join(
    b"x-field-%d" % number for number in range(120)
)
"""More than the 1,024 bytes by which a file is known, and nothing of a time."""


def _w3c(*paths: str) -> bytes:
    values = " -" * 120
    return b"".join(f"2026-11-20 22:00:00 {path}{values}\n".encode() for path in paths)


class TestDirectives:
    """Other files begin with the same directives."""

    @pytest.mark.parametrize("before", [0, 1, 40])
    @pytest.mark.parametrize("copy", [False, True])
    @pytest.mark.parametrize("packed", [False, True])
    def test_a_file_is_known_by_what_stands_behind_them(
        self, tailing: Tailing, before: int, copy: bool, packed: bool
    ) -> None:
        assert len(HEADER) > 1024
        begun = [f"/old/{number}" for number in range(before)]
        append(tailing.log, HEADER + b"\n" + _w3c(*begun))
        tailing.run()
        append(tailing.log, _w3c("/late"))
        rotate(tailing.log, copy=copy, packed=packed)
        new = [f"/new/{number}" for number in range(60)]
        append(tailing.log, HEADER + b"\n" + _w3c(*new))
        assert tailing.run().counted == 61
        assert counted(tailing.client) == dict.fromkeys([*begun, "/late", *new], 1)

    def test_a_log_that_has_nothing_else_yet_is_no_copy_of_an_older_one(
        self, tailing: Tailing
    ) -> None:
        append(tailing.log, HEADER + b"\n")
        tailing.run()
        append(tailing.log, _w3c("/a"))
        rotate(tailing.log, copy=True)
        append(tailing.log, HEADER + b"\n")
        assert tailing.run().counted == 1
        append(tailing.log, _w3c("/b"))
        tailing.run()
        assert counted(tailing.client) == {"/a": 1, "/b": 1}

    @pytest.mark.parametrize("begun", [False, True])
    def test_a_rotated_file_of_directives_alone_is_an_empty_one(
        self, tailing: Tailing, begun: bool
    ) -> None:
        append(tailing.log, HEADER + b"\n")
        if begun:
            tailing.run()
        rotate(tailing.log)
        append(tailing.log, HEADER + b"\n" + _w3c("/a"))
        for expected in (1, 0):
            assert tailing.run().counted == expected
        assert counted(tailing.client) == {"/a": 1}


class TestWhatCannotBeRead:
    """It is named, and nothing is passed over."""

    @pytest.mark.parametrize("packed", [gzip.compress, lzma.compress])
    def test_an_archive_cut_within_the_bytes_by_which_it_is_known(
        self, tailing: Tailing, packed: Callable[[bytes], bytes]
    ) -> None:
        first = [f"/{number}/{os.urandom(120).hex()}" for number in range(3)]
        tailing.count(*first)
        write(tailing.log, "/late")
        whole = packed(tailing.log.read_bytes())
        tailing.log.unlink()
        archive = tailing.log.with_name("access.log.1.gz")
        write(tailing.log, "/new")
        for size in (0, *range(60, len(whole) - 8, 12)):
            archive.write_bytes(whole[:size])
            with pytest.raises(LogError, match=r"access\.log\.1\.gz is damaged or not complete"):
                tailing.run()
            found = counted(tailing.client)  # what stands before the cut is counted
            assert found in (dict.fromkeys(first, 1), dict.fromkeys([*first, "/late"], 1))
        archive.write_bytes(whole)
        tailing.run()
        assert counted(tailing.client) == dict.fromkeys([*first, "/late", "/new"], 1)

    @pytest.mark.parametrize("name", ["access.log.1.lz4", "access.log.1"])
    @pytest.mark.parametrize("between", [False, True], ids=["the first", "in between"])
    def test_a_rotated_file_that_cannot_be_read_is_not_passed_over(
        self, tailing: Tailing, name: str, between: bool
    ) -> None:
        tailing.count("/a")
        if between:
            rotate(tailing.log)
        first = rotate(tailing.log, "/b")
        whole = first.read_bytes()
        packed = first.with_name(name)
        if packed != first:
            first.unlink()
        packed.write_bytes(b"\x04\x22\x4d\x18" + whole)
        write(tailing.log, "/c")
        for _ in range(2):
            with pytest.raises(LogError, match=rf"{name} is compressed by lz4"):
                tailing.run()
        packed.unlink()
        first.write_bytes(whole)
        tailing.run()
        assert counted(tailing.client) == {"/a": 1, "/b": 1, "/c": 1}

    def test_files_in_a_directory_below_are_found(self, tailing: Tailing) -> None:
        tailing.count("/a")
        write(tailing.log, "/b")
        old = tailing.log.with_name("old")
        old.mkdir()
        tailing.log.rename(old / "access.log.2")
        write(tailing.log, "/c")
        tailing.log.rename(old / "access.log.1")
        assert tailing.count("/d").lost == 0
        assert counted(tailing.client) == {"/a": 1, "/b": 1, "/c": 1, "/d": 1}

    def test_an_older_file_that_cannot_be_read_is_of_no_matter(self, tailing: Tailing) -> None:
        old = tailing.log.with_name("access.log.1.lz4")
        old.write_bytes(b"\x04\x22\x4d\x18 old")
        os.utime(old, (1_000_000_000, 1_000_000_000))
        tailing.log.touch()
        tailing.run()
        tailing.count("/a")
        tailing.log.unlink()
        assert tailing.count("/b").lost == 1
        assert counted(tailing.client) == {"/a": 1, "/b": 1}

    @pytest.mark.parametrize("extension", sorted(PACKERS))
    @pytest.mark.parametrize("damage", ["garbage", "cut"])
    def test_what_stands_before_damage_is_counted(
        self, tailing: Tailing, extension: str, damage: str
    ) -> None:
        tailing.count("/a")
        late = [f"/{number}" for number in range(900)]
        first = rotate(tailing.log, *late)
        compress(first, extension)
        packed = first.with_name(f"access.log.1.{extension}")
        data = packed.read_bytes()
        packed.write_bytes(data + b"garbage" if damage == "garbage" else data[:-12])
        write(tailing.log, "/new")
        for _ in range(2):
            with pytest.raises(LogError, match=packed.name):
                tailing.run()
        if damage == "garbage":
            assert counted(tailing.client) == dict.fromkeys(["/a", *late], 1)
        packed.write_bytes(data)
        tailing.run()
        assert counted(tailing.client) == dict.fromkeys(["/a", *late, "/new"], 1)


def test_the_files_after_one_that_is_gone_are_counted(tailing: Tailing) -> None:
    tailing.count("/a")
    for number in range(3):
        rotate(tailing.log, suffixes=2)
        write(tailing.log, f"/{number}")
    tailing.log.with_name("access.log.3").unlink()
    tailing.run()
    assert any("was not found" in notice for notice in tailing.told.notices)
    assert counted(tailing.client) == {"/a": 1, "/0": 1, "/1": 1, "/2": 1}


class TestWhileFollowing:
    """Rotation under a run."""

    @pytest.mark.parametrize(
        ("begun", "fate"),
        [
            *(("short", "packed"), ("long", "deleted")),
            pytest.param("short", "deleted", marks=pytest.mark.long("the other combinations")),
            pytest.param("long", "packed", marks=pytest.mark.long("the other combinations")),
        ],
        indirect=["begun"],
    )
    def test_rotated_again_while_the_first_rotated_file_was_being_left(
        self, tailing: Tailing, begun: tuple[str, ...], fate: str
    ) -> None:
        tailing.rotate_wait = 0.2
        write(tailing.log, *begun)
        with tailing.following():
            eventually(lambda: counted(tailing.client).total() == len(begun))
            rotate(tailing.log)
            write(tailing.log, "/between")
            first = tailing.log.with_name("access.log.1")
            if fate == "packed":
                compress(first)
            else:
                first.unlink()
            rotate(tailing.log)
            write(tailing.log, "/new")
            _wait_for(tailing, "/new")
        assert counted(tailing.client) == dict.fromkeys([*begun, "/between", "/new"], 1)

    @pytest.mark.parametrize("copy", [False, True], ids=["renaming", "copying and truncating"])
    def test_a_rotation(self, tailing: Tailing, begun: tuple[str, ...], copy: bool) -> None:
        write(tailing.log, *begun)
        with tailing.following():
            eventually(lambda: counted(tailing.client).total() == len(begun))
            for number in range(2):
                rotate(tailing.log, f"/before{number}", copy=copy)
                write(tailing.log, f"/after{number}")
                _wait_for(tailing, f"/after{number}")
        assert set(counted(tailing.client).values()) == {1}
        assert counted(tailing.client).total() == len(begun) + 4

    def test_truncating_under_a_writer_that_does_not_append(self, tailing: Tailing) -> None:
        with tailing.log.open("wb", buffering=0) as writer, tailing.following():
            writer.write(b"".join(line(path) + b"\n" for path in LONG))
            eventually(lambda: counted(tailing.client).total() == len(LONG))
            rotate(tailing.log, copy=True)
            writer.write(line("/behind the hole") + b"\n")
            eventually(lambda: counted(tailing.client)["/behind the hole"] == 1)
        assert tailing.told.lines == []
        assert set(counted(tailing.client).values()) == {1}

    @pytest.mark.parametrize("there", [False, True])
    def test_a_log_that_filled_and_was_copied_away_between_two_looks(
        self, redis_client: redis.Redis, log: Path, there: bool
    ) -> None:
        tailing = Tailing(redis_client, log)
        if there:
            log.touch()

        def pause(seconds: float) -> bool:
            if not filled:
                filled.append(True)
                rotate(log, "/a", copy=True)
                write(log, "/b")
            return wait(0.01) or counted(redis_client).total() > 1

        filled: list[bool] = []
        wait = tailing.stop.wait
        tailing.stop.wait = pause  # type: ignore[method-assign]
        thread = Thread(target=partial(tailing.run, follow=True))
        thread.start()
        eventually(lambda: counted(redis_client) == {"/a": 1, "/b": 1} or not thread.is_alive())
        tailing.stop.request()
        thread.join(20)
        assert counted(redis_client) == {"/a": 1, "/b": 1}

    def test_a_server_that_still_writes_to_the_old_file(
        self, redis_client: redis.Redis, log: Path
    ) -> None:
        tailing = Tailing(redis_client, log, rotate_wait=1.0)
        write(log, "/a")
        with tailing.following():
            eventually(lambda: counted(redis_client)["/a"] == 1)
            rotate(log)
            write(log.with_name("access.log.1"), "/late")
            write(log, "/new")
            eventually(lambda: counted(redis_client) == {"/a": 1, "/late": 1, "/new": 1})

    def test_the_log_is_away_for_a_while(self, tailing: Tailing) -> None:
        write(tailing.log, "/a")
        with tailing.following():
            eventually(lambda: counted(tailing.client)["/a"] == 1)
            tailing.log.unlink()
            write(tailing.log, "/b")
            eventually(lambda: counted(tailing.client) == {"/a": 1, "/b": 1})


def _wait_for(tailing: Tailing, key: str) -> None:
    eventually(lambda: counted(tailing.client)[key] == 1)


class Killed(BaseException):
    """As SIGKILL: nothing that comes after happens."""


class DyingMark(LogMark):
    """Dies before or after its step in Redis when told to."""

    die: str | None = None

    def store(self, batch: LogBatch, full: int) -> Outcome:
        if self.die == "before":
            raise Killed
        outcome = super().store(batch, full)
        if self.die == "after":
            raise Killed
        return outcome


class LogMachine(RuleBasedStateMachine):
    """A server that writes and rotates, runs of tail that are killed, and a Redis that is emptied
    or put back, at times before and at times after workers have applied what it held.
    """

    directory: Path
    client: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        self.client.flushdb()
        self.log = self.directory / "access.log"
        self.written: list[str] = []
        self.half = b""
        self.applied: dict[str, Counter[str]] = {}
        self.kept = snapshot(self.client)
        self.log.touch()
        self.count(None)

    def _write(self, length: int) -> bytes:
        path = f"/{len(self.written)}/{'x' * length}"
        self.written.append(path)
        return line(path) + b"\n"

    def _complete(self) -> None:
        append(self.log, self.half)
        self.half = b""

    @rule(lengths=st.lists(st.integers(0, 120), max_size=20))
    def write(self, lengths: list[int]) -> None:
        self._complete()
        append(self.log, b"".join(self._write(length) for length in lengths))

    @rule(cut=st.integers(1, 90))
    def write_half(self, cut: int) -> None:
        self._complete()
        whole = self._write(10)
        append(self.log, whole[:cut])
        self.half = whole[cut:]

    @rule(copy=st.booleans())
    def rotate(self, copy: bool) -> None:
        self._complete()
        rotate(self.log, copy=copy, suffixes=60)

    @rule(extension=st.sampled_from(sorted(PACKERS)))
    def compress(self, extension: str) -> None:
        newest = self.log.with_name("access.log.1")
        if newest.exists():
            compress(newest, extension)

    @rule(die=st.sampled_from([None, "before", "after"]))
    def count(self, die: str | None) -> None:
        tailing = Tailing(self.client, self.log)
        with tailing.made() as run:
            mark = DyingMark(self.client, tailing.source)
            mark.die = die
            run.mark = mark
            try:
                run.run()
            except Killed:
                pass
        assert not tailing.told.reasons
        assert not any("not found" in notice for notice in tailing.told.notices)

    @rule()
    def apply(self) -> None:
        self.applied |= entries(self.client)

    @rule()
    def keep(self) -> None:
        self.kept = snapshot(self.client)

    @rule(empty=st.booleans())
    def lose(self, empty: bool) -> None:
        if empty:
            self.client.flushdb()
        else:
            self.kept()

    def teardown(self) -> None:
        self._complete()
        Tailing(self.client, self.log).run()
        self.apply()
        total = sum(self.applied.values(), Counter[str]())
        assert total == dict.fromkeys(self.written, 1)


@pytest.mark.random
def test_whatever_the_server_does_and_however_runs_die_each_line_counts_once(
    redis_client: redis.Redis, tmp_path: Path
) -> None:
    class Machine(LogMachine):
        directory = tmp_path / "logs"
        client = redis_client

    several = settings(max_examples=600 if MANY else 10, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(Machine, settings=several)

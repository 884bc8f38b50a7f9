"""The position file, and a Redis that is emptied, put back, or of somebody else."""

import os
from collections import Counter
from pathlib import Path

import pytest
import redis

from countersink.logs import position, sender
from countersink.logs.errors import PositionError
from countersink.logs.position import LogBatch, LogMark, Outcome, Position, PositionFile
from countersink.stream.decode import decode
from countersink.stream.entry import pages
from countersink.stream.names import stream_key, stream_keys
from tests.logs.tailing import Tailing, append, counted, line, snapshot, write
from tests.logs.test_rotation import LONG, rotate
from tests.support.waiting import eventually


def sent(client: redis.Redis) -> dict[str, tuple[tuple[bytes, bytes], ...]]:
    """The entries in the streams, byte by byte, by their ids."""
    return {
        decode(delivery).id: tuple(delivery.fields)
        for stream in stream_keys(client)
        for page in pages(client, stream)
        for delivery in page
    }


def grow(tailing: Tailing) -> None:
    """Six runs over a log that grows, is left with half a line, and is rotated twice."""
    tailing.count(*LONG)
    tailing.count("/a", "/b")
    append(tailing.log, line("/c"))
    tailing.run()
    append(tailing.log, b' "more"\n')
    rotate(tailing.log, "/d")
    tailing.count("/e")
    rotate(tailing.log, "/f", packed=True)
    tailing.count("/g")
    tailing.count("/h")


ALL = Counter([*LONG, *(f"/{letter}" for letter in "abcdefgh")])


def test_an_emptied_redis_gets_nothing_that_workers_may_have_forgotten(
    tailing: Tailing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards of entries are kept for some days only."""
    tailing.count("/a")
    tailing.client.flushall()
    monkeypatch.setattr(sender, "RESEND_MS", -60_000)  # whatever clocks differ by
    assert tailing.count("/b").counted == 1
    assert counted(tailing.client) == {"/b": 1}


@pytest.mark.parametrize("runs", range(7))
def test_an_older_redis_gets_what_it_lacks_as_it_was(
    tailing: Tailing, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is restored to, and however the log has grown or was rotated since."""
    restores = [snapshot(tailing.client)]
    run = tailing.run

    def noting() -> None:
        run()
        restores.append(snapshot(tailing.client))

    monkeypatch.setattr(tailing, "run", noting)
    grow(tailing)
    monkeypatch.undo()
    before = sent(tailing.client)
    write(tailing.log, "/i")
    restores[runs]()
    tailing.log.with_name("access.log.2").unlink()  # it is not read again
    assert tailing.run().counted == 1
    assert before.items() <= sent(tailing.client).items()
    assert counted(tailing.client) == ALL + Counter(["/i"])


class Killed(BaseException):
    """As SIGKILL."""


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("begun_anew", [False, True])
def test_killed_between_the_disk_and_the_reply_of_redis(
    tailing: Tailing, monkeypatch: pytest.MonkeyPatch, stored: bool, begun_anew: bool
) -> None:
    tailing.count("/a")
    write(tailing.log, "/b")
    store = LogMark.store

    def killed(mark: LogMark, batch: LogBatch, full: int) -> Outcome:
        if stored:
            store(mark, batch, full)
        raise Killed

    monkeypatch.setattr(LogMark, "store", killed)
    with pytest.raises(Killed):
        tailing.run(begin="start" if begun_anew else None)
    monkeypatch.undo()
    before = sent(tailing.client)
    rotate(tailing.log, "/c")
    assert tailing.run().counted == 1
    assert before.items() <= sent(tailing.client).items()
    assert counted(tailing.client) == {"/a": 1 + begun_anew, "/b": 1, "/c": 1}


def test_a_run_that_is_killed_before_it_has_begun_at_the_end_has_not_begun_anew(
    tailing: Tailing, monkeypatch: pytest.MonkeyPatch
) -> None:
    tailing.count("/a")
    write(tailing.log, "/b")

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(PositionFile, "append", killed)
    with pytest.raises(Killed):
        tailing.run(begin="end")
    monkeypatch.undo()
    assert tailing.run().counted == 1
    assert counted(tailing.client) == {"/a": 1, "/b": 1}


def test_a_torn_last_line_of_the_file_is_one_that_was_not_sent(tailing: Tailing) -> None:
    tailing.count("/a")
    restore = snapshot(tailing.client)
    tailing.count("/b")
    restore()
    os.truncate(tailing.file, tailing.file.stat().st_size - 5)
    assert tailing.run().counted == 1
    assert counted(tailing.client) == {"/a": 1, "/b": 1}


@pytest.mark.parametrize("lost", ["file", "newest batch"])
def test_a_file_that_is_missing_or_older_beside_a_newer_mark_is_refused(
    tailing: Tailing, lost: str
) -> None:
    """A new pod, another user; a host that was put back."""
    tailing.count("/a")
    old = tailing.file.read_bytes()
    tailing.count("/b")
    if lost == "file":
        tailing.file.unlink()
    else:
        tailing.file.write_bytes(old)
    write(tailing.log, "/c")
    for _ in range(2):
        with pytest.raises(PositionError, match=r"position file .* --begin start .* --begin end"):
            tailing.run()
    assert counted(tailing.client) == {"/a": 1, "/b": 1}
    assert tailing.run(begin="end").counted == 0
    assert tailing.count("/d").counted == 1
    assert counted(tailing.client) == {"/a": 1, "/b": 1, "/d": 1}


@pytest.mark.parametrize("emptied", [False, True])
def test_redis_is_put_back_under_a_run_that_follows(tailing: Tailing, emptied: bool) -> None:
    restore = snapshot(tailing.client)
    write(tailing.log, "/a")
    with tailing.following():
        eventually(lambda: counted(tailing.client) == {"/a": 1})
        if not emptied:
            restore = snapshot(tailing.client)
        write(tailing.log, "/b")
        eventually(lambda: counted(tailing.client) == {"/a": 1, "/b": 1})
        restore()
        write(tailing.log, "/c")
        eventually(lambda: counted(tailing.client) == {"/a": 1, "/b": 1, "/c": 1})


def test_nothing_counted_is_nothing_lost(tailing: Tailing) -> None:
    tailing.log.touch()
    tailing.run()
    tailing.client.flushall()
    rotate(tailing.log, "/a", copy=True)
    tailing.run()
    assert counted(tailing.client) == {"/a": 1}


def test_the_file_is_of_one_tail_of_one_log_and_counter(tailing: Tailing) -> None:
    tailing.count("/a")
    with pytest.raises(PositionError, match="not the position file of this log"):
        Tailing(tailing.client, tailing.log, kind="status", file=tailing.file).run()
    mine = PositionFile(str(tailing.file), tailing.source)
    with pytest.raises(PositionError, match="another countersink tail uses"):
        tailing.run()
    mine.close()
    good = tailing.file.read_bytes()
    for bad in (b"{}\n", b"7\n", b"x\n", good.replace(b'"v": 1', b'"v": 2')):
        tailing.file.write_bytes(bad)
        with pytest.raises(PositionError, match="not the position file of this log"):
            tailing.run()
    for bad in (good.replace(b'"offset"', b'"upset"'), good + b"[]\n", good + b"\0\0\0\n"):
        tailing.file.write_bytes(bad)
        with pytest.raises(PositionError, match="damaged"):
            tailing.run()
    assert counted(tailing.client) == {"/a": 1}


@pytest.mark.parametrize("kind", ["fifo", "directory", "key"])
def test_what_is_no_position_file_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_text("secret-key")
    before = path.lstat()
    with pytest.raises(PositionError, match=r"regular file|not the position"):
        PositionFile(str(path), "a source")
    assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert list(tmp_path.glob("*.lock")) in ([], [tmp_path / "key.lock"])
    assert kind != "key" or path.read_text() == "secret-key"


def test_a_link_stays_and_nothing_is_written_through_another(tmp_path: Path) -> None:
    target, link, victim = tmp_path / "target", tmp_path / "link", tmp_path / "victim"
    link.symlink_to(target)
    victim.write_text("precious")
    (tmp_path / "target.new").symlink_to(victim)
    opened = PositionFile(str(link), "a source")
    opened.append(LogBatch(Position.first(), 1, []), "")
    opened.close()
    assert link.is_symlink()
    assert victim.read_text() == "precious"
    again = PositionFile(str(target), "a source")
    assert again.position is not None
    again.close()


def test_a_long_file_is_replaced_by_its_end(
    tailing: Tailing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(position, "FILE_BYTES", 2048)
    for number in range(9):
        tailing.count(f"/{number}")
        assert tailing.file.stat().st_size <= 2048 + 200
    before = sent(tailing.client)
    tailing.client.flushall()
    tailing.run()
    assert sent(tailing.client).items() <= before.items()
    assert 2 <= len(counted(tailing.client)) <= 4
    assert [name for name in os.listdir(tailing.log.parent) if name.endswith(".new")] == []


def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_sent(
    tailing: Tailing, monkeypatch: pytest.MonkeyPatch
) -> None:
    tailing.count("/a")
    write(tailing.log, "/b")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(PositionError, match="No space left"):
        tailing.run()
    assert tailing.client.xlen(stream_key(0)) == 1
    monkeypatch.undo()
    tailing.run()
    assert counted(tailing.client) == {"/a": 1, "/b": 1}


def test_the_end_of_a_log_that_says_its_fields_first(tailing: Tailing) -> None:
    """Whoever begins at the end still knows what the head of the file says."""
    head = b"#Version: 1.0\n#Fields: date time cs-method cs-uri-stem c-ip sc-status\n"
    row = b"2026-11-20 22:00:00 GET %s 10.0.0.1 200\n"
    append(tailing.log, head + row % b"/old")
    with tailing.following("end"):
        eventually(lambda: tailing.mark.read() != "")
        append(tailing.log, row % b"/new")
        eventually(lambda: counted(tailing.client) == {"/new": 1})

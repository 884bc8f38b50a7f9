"""A Redis that has lost the position of a log, or stands at an older one: the file tells."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from countersink.logs import position_file
from countersink.logs.errors import PositionError, TailError
from countersink.logs.position_file import PositionFile
from countersink.stream.decode import decode
from countersink.stream.entry import pages
from countersink.stream.names import stream_key, stream_keys
from tests.logs.tailing import Tailing, append, counted, line, write
from tests.logs.test_rotation import LONG, compress, rotate
from tests.support.waiting import eventually


@pytest.fixture
def tailing(redis_client: redis.Redis, log: Path) -> Tailing:
    return Tailing(redis_client, log, file=log.with_name("position"))


def sent(client: redis.Redis) -> dict[str, tuple[tuple[bytes, bytes], ...]]:
    """The entries in the streams, byte by byte, by their ids."""
    return {
        decode(delivery).id: tuple(delivery.fields)
        for stream in stream_keys(client)
        for page in pages(client, stream)
        for delivery in page
    }


def snapshot(client: redis.Redis) -> Callable[[], None]:
    """What puts Redis back to what it is now."""
    kept = {key: client.dump(key) or b"" for key in client.scan_iter()}

    def restore() -> None:
        client.flushall()
        for key, value in kept.items():
            client.restore(key, 0, value)

    return restore


def grow(tailing: Tailing) -> None:
    """Six runs over a log that grows, is left with half a line, and is rotated twice."""
    write(tailing.log, *LONG)
    tailing.run()
    write(tailing.log, "/a", "/b")
    tailing.run()
    append(tailing.log, line("/c"))
    tailing.run()
    append(tailing.log, b' "more"\n')
    write(tailing.log, "/d")
    rotate(tailing.log)
    write(tailing.log, "/e")
    tailing.run()
    write(tailing.log, "/f")
    rotate(tailing.log)
    compress(tailing.log.with_name("access.log.1"))
    write(tailing.log, "/g")
    tailing.run()
    append(tailing.log, line("/h"))
    tailing.run()


ALL = Counter([*LONG, *(f"/{letter}" for letter in "abcdefgh")])


def test_an_emptied_redis_is_noticed_and_nothing_counted(tailing: Tailing) -> None:
    write(tailing.log, "/a", "/b")
    tailing.run()
    write(tailing.log, "/c")
    tailing.client.flushall()
    for _ in range(2):
        with pytest.raises(PositionError, match=r"up to line 2.*it was emptied.*--begin file"):
            tailing.run()
        assert tailing.client.xlen(stream_key(0)) == 0
    with pytest.raises(PositionError):
        tailing.run(begin="redis")
    assert tailing.run(begin="end").counted == 0
    write(tailing.log, "/d")
    assert tailing.run().counted == 1
    assert counted(tailing.client) == {"/d": 1}


def test_from_its_start(tailing: Tailing) -> None:
    write(tailing.log, "/a")
    tailing.run()
    tailing.client.flushall()
    assert tailing.run(begin="start").counted == 1
    assert tailing.run().counted == 0


def test_going_on_from_the_file_sends_the_same_entries_again(tailing: Tailing) -> None:
    grow(tailing)
    before = sent(tailing.client)
    assert counted(tailing.client) == ALL
    tailing.client.flushall()
    assert tailing.run(begin="file").counted == 0
    assert sent(tailing.client) == before
    append(tailing.log, b"\n")
    write(tailing.log, "/i")
    assert tailing.run().counted == 1


EACH_RUN = pytest.mark.long("each run of seven")


@pytest.mark.parametrize(
    "runs", [0, 3, 6, *(pytest.param(runs, marks=EACH_RUN) for runs in (1, 2, 4, 5))]
)
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
    append(tailing.log, b"\n")
    write(tailing.log, "/i")
    restores[runs]()
    if runs == 0:
        with pytest.raises(PositionError):
            tailing.run()
    assert tailing.run(begin=None if runs else "file").counted == 1
    assert before.items() <= sent(tailing.client).items()
    assert counted(tailing.client) == ALL + Counter(["/i"])


def test_what_cannot_be_sent_again_is_refused(tailing: Tailing) -> None:
    write(tailing.log, *LONG)
    tailing.run()
    restore = snapshot(tailing.client)
    write(tailing.log, "/a")
    tailing.run()
    rotate(tailing.log)
    write(tailing.log, "/b")
    tailing.run()
    restore()
    tailing.log.with_name("access.log.1").unlink()
    with pytest.raises(PositionError, match="cannot be sent again"):
        tailing.run()
    tailing.run(begin="file")
    assert any("not all" in notice for notice in tailing.told.notices)
    assert counted(tailing.client) == Counter([*LONG, "/b"])


def test_killed_between_redis_and_the_file(
    tailing: Tailing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is ahead by one step: it is right, and the file learns of it without a gap."""
    write(tailing.log, "/a")
    tailing.run()
    restore = snapshot(tailing.client)
    write(tailing.log, "/b")
    monkeypatch.setattr(PositionFile, "append", _killed)
    with pytest.raises(Killed):
        tailing.run()
    monkeypatch.undo()
    write(tailing.log, "/c")
    assert tailing.run().counted == 1
    assert counted(tailing.client) == {"/a": 1, "/b": 1, "/c": 1}
    before = sent(tailing.client)
    restore()
    tailing.run()
    assert sent(tailing.client) == before


class Killed(BaseException):
    """As SIGKILL."""


def _killed(*_: object) -> None:
    raise Killed


def test_a_torn_last_line_of_the_file_is_one_that_was_not_written(tailing: Tailing) -> None:
    write(tailing.log, "/a")
    tailing.run()
    write(tailing.log, "/b")
    tailing.run()
    assert tailing.file
    os.truncate(tailing.file, tailing.file.stat().st_size - 5)
    assert tailing.run().counted == 0
    tailing.client.flushall()
    tailing.run(begin="file")
    assert counted(tailing.client) == {"/a": 1, "/b": 1}


def test_redis_is_believed_where_it_is_ahead(tailing: Tailing, tmp_path: Path) -> None:
    """Somebody else's tail, with a file of its own, went on meanwhile."""
    write(tailing.log, "/a")
    tailing.run()
    other = Tailing(tailing.client, tailing.log, file=tmp_path / "other")
    write(tailing.log, "/b")
    other.run()
    assert tailing.run().counted == 0
    other.run(begin="start")
    assert tailing.run().counted == 0


def test_another_redis_that_stands_elsewhere_is_refused(tailing: Tailing) -> None:
    write(tailing.log, "/a")
    tailing.run()
    restore = snapshot(tailing.client)
    tailing.client.flushall()
    write(tailing.log, "/b")
    tailing.run(begin="start")
    restore()
    with pytest.raises(PositionError, match="does not know"):
        tailing.run()
    tailing.run(begin="redis")
    assert counted(tailing.client) == {"/a": 1, "/b": 1}
    assert tailing.run().counted == 0


@pytest.mark.parametrize("restored", [False, True])
def test_redis_is_emptied_under_a_run_that_follows(tailing: Tailing, restored: bool) -> None:
    restore = snapshot(tailing.client)
    write(tailing.log, "/a")
    run = tailing.make(follow=True, file=None)
    pause = tailing.stop.wait
    pauses: list[float] = []

    def disaster(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 1:
            restore()
            write(tailing.log, "/b")
        return pause(0)

    tailing.stop.wait = disaster  # type: ignore[method-assign]
    with pytest.raises(TailError, match="Redis has lost the position"):
        run.run()
    assert tailing.client.xlen(stream_key(0)) == 0


def test_nothing_counted_is_nothing_lost(tailing: Tailing) -> None:
    tailing.log.touch()
    tailing.run()
    tailing.client.flushall()
    write(tailing.log, "/a")
    rotate(tailing.log, copy=True)
    tailing.run()
    assert counted(tailing.client) == {"/a": 1}


def test_the_file_is_of_one_tail_of_one_log_and_counter(tailing: Tailing) -> None:
    write(tailing.log, "/a")
    tailing.run()
    with pytest.raises(PositionError, match="not the position file of this log"):
        Tailing(tailing.client, tailing.log, kind="status", file=tailing.file).run()
    mine = PositionFile(str(tailing.file), tailing.source)
    with pytest.raises(PositionError, match="another countersink tail uses"):
        tailing.run()
    mine.close()
    assert tailing.file
    tailing.file.write_bytes(tailing.file.read_bytes().replace(b'"offset"', b'"upset"'))
    with pytest.raises(PositionError, match="damaged"):
        tailing.run()


def test_a_long_file_is_replaced_by_its_end(
    tailing: Tailing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(position_file, "KEPT", 2)
    assert tailing.file
    for number in range(9):
        write(tailing.log, f"/{number}")
        tailing.run()
        assert tailing.file.read_bytes().count(b"\n") <= 5
    before = sent(tailing.client)
    tailing.client.flushall()
    tailing.run(begin="file")
    assert sent(tailing.client).items() <= before.items()
    assert 2 <= len(counted(tailing.client)) <= 4
    assert [name for name in os.listdir(tailing.log.parent) if name.endswith(".new")] == []


def test_the_end_of_a_log_that_says_its_fields_first(tailing: Tailing) -> None:
    """Whoever begins at the end still knows what the head of the file says."""
    head = b"#Version: 1.0\n#Fields: date time cs-method cs-uri-stem c-ip sc-status\n"
    row = b"2026-11-20 22:00:00 GET %s 10.0.0.1 200\n"
    append(tailing.log, head + row % b"/old")
    with tailing.following("end"):
        eventually(lambda: tailing.ledger.read() is not None)
        append(tailing.log, row % b"/new")
        eventually(lambda: counted(tailing.client) == {"/new": 1})

"""Log lines on a stream that may not take them: nobody waits for it, and little is lost."""

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from countersink.runtime.log import KEPT_BYTES, JsonFormatter, LineHandler, logged
from countersink.worker.report import LOGGER
from tests.support.waiting import eventually


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A pipe's ends, the second as a process has its stderr."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        yield reader, stream
    os.close(reader)


def handler_for(stream: TextIO) -> LineHandler:
    handler = LineHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler


def log(handler: LineHandler, text: str) -> None:
    handler.handle(logging.LogRecord("countersink", logging.INFO, "", 0, text, None, None))


def read_lines(reader: int, until: str) -> list[str]:
    found = b""
    while not found.endswith(f"{until}\n".encode()):
        found += os.read(reader, 65_536)
    return found.decode().splitlines()


def test_a_line_is_written_before_the_call_returns(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    log(handler_for(stream), "häppy")
    assert os.get_blocking(stream.fileno())  # others who write to it wait as they did
    os.set_blocking(reader, False)
    assert os.read(reader, 100).decode() == "häppy\n"


def test_what_a_slow_reader_does_not_take_at_once_comes_later_whole_and_in_order(
    pipe: tuple[int, TextIO],
) -> None:
    reader, stream = pipe
    handler = handler_for(stream)
    lines = [f"{number} " + "x" * (number % 9_000) for number in range(100)]
    for line in lines:
        log(handler, line)  # many times what a pipe holds, and none is read so far
    assert read_lines(reader, lines[-1]) == lines


def test_the_note_of_dropped_lines_has_the_format_of_the_log(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    handler = LineHandler(stream)
    handler.setFormatter(JsonFormatter())
    for _ in range(3 * KEPT_BYTES // 1_000):
        log(handler, "x" * 999)
    *_, note = map(json.loads, read_lines(reader, 'the reader was too slow"}'))
    assert (note["level"], note["action"]) == ("warning", "lines_dropped")


def test_beyond_a_bound_lines_are_dropped_and_counted(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    handler = handler_for(stream)
    line = "x" * 999
    sent = 3 * KEPT_BYTES // 1_000
    for _ in range(sent):
        log(handler, line)
    *kept, note = read_lines(reader, "log lines dropped: the reader was too slow")
    assert set(kept) == {line}
    assert KEPT_BYTES // 1_000 - 10 <= len(kept) < sent
    assert note == f"{sent - len(kept):,} log lines dropped: the reader was too slow"
    log(handler, "again")
    assert read_lines(reader, "again") == ["again"]


def test_taking_it_down_waits_for_a_reader_that_comes_in_time(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    found: list[str] = []
    reading = threading.Thread(target=lambda: found.extend(read_lines(reader, "the end")))
    with logged("text", stream):
        for _ in range(200):
            LOGGER.warning("x" * 999)
        LOGGER.warning("the end")
        reading.start()
    reading.join(20)
    assert len(found) == 201


def test_the_end_of_a_process_is_not_held_up_by_who_never_reads(pipe: tuple[int, TextIO]) -> None:
    handler = handler_for(pipe[1])
    for _ in range(200):
        log(handler, "x" * 999)
    handler.close()  # returns


def test_a_reader_that_has_gone_ends_nothing(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    handler = handler_for(stream)
    other = os.dup(reader)
    os.close(reader)
    os.dup2(os.open(os.devnull, os.O_RDONLY), reader)  # for the fixture to close
    os.close(other)
    log(handler, "into nothing")
    handler.close()


def test_a_journal_that_hangs_holds_up_nobody() -> None:
    ours, journal = socket.socketpair()
    with journal, os.fdopen(ours.detach(), "w") as stream:
        handler = handler_for(stream)
        for number in range(500):
            log(handler, f"{number} " + "x" * 999)
        log(handler, "last")
        lines = read_lines(journal.fileno(), "last")
    assert [line.split()[0] for line in lines] == [*map(str, range(500)), "last"]


def test_a_full_disk_or_a_file_is_written_to_as_ever(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        stream.write("before\n")
        stream.flush()
        log(handler_for(stream), "after")
    assert (tmp_path / "log").read_text() == "before\nafter\n"
    with Path("/dev/full").open("w") as stream:
        log(handler_for(stream), "no room")


def test_a_child_leaves_what_is_kept_to_its_parent(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    handler = handler_for(stream)
    for number in range(150):
        log(handler, f"{number} " + "x" * 999)
    room, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(room, 1)
        log(handler, "the child's")
        os._exit(0)
    log(handler, "last")
    ours = [line.split()[0] for line in read_lines(reader, "last")]
    os.write(told, b"!")
    assert read_lines(reader, "the child's") == ["the child's"]
    assert os.waitpid(child, 0)[1] == 0
    assert ours == [*map(str, range(150)), "last"]


def test_warnings_that_no_handler_takes_go_the_same_way(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    before = logging.lastResort
    with logged("text", stream):
        last = logging.lastResort
        assert last is not None
        assert last is not before
        last.handle(logging.LogRecord("a.library", logging.WARNING, "", 0, "careful", None, None))
    eventually(lambda: b"careful" in os.read(reader, 1_000))
    assert logging.lastResort is before

"""`countersink tail`: an access log through the command, its statuses and its signals."""

import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from countersink.stream.names import stream_key
from tests.cli.command import (
    Result,
    Servers,
    Start,
    call,
    one_sentence,
    piped,
    redirected,
)
from tests.logs.tailing import append, counted, line, write
from tests.support.examples import MANY
from tests.support.processes import Child
from tests.support.waiting import eventually

COUNTER = "page_views"


def _wait_for_hits(client: redis.Redis, number: int) -> None:
    eventually(lambda: counted(client).total() >= number)


def _wait_for_entries(client: redis.Redis, number: int, child: Child) -> None:
    eventually(lambda: client.xlen(stream_key(0)) >= number or not child.running, 60)


def tail(redis_url: str, *arguments: str) -> Result:
    return call("tail", *arguments, "--counter", COUNTER, COUNTERSINK_REDIS_URL=redis_url)


def test_a_log_is_counted_once_by_any_name_of_its_directory(
    redis_url: str, redis_client: redis.Redis, log: Path, tmp_path: Path
) -> None:
    write(log, "/a", "/b?x=1", "/b?x=2")
    done = tail(redis_url, str(log))
    assert (done.status, done.err) == (0, "")
    assert done.out == "page_views: counted 3, rejected 0\n"
    assert tail(redis_url, str(log)).out == "page_views: counted 0, rejected 0\n"
    assert counted(redis_client) == {"/a": 1, "/b": 2}
    again = tail(redis_url, str(log), "--begin", "start", "--key", "path")
    assert again.out == "page_views: counted 3, rejected 0\n"
    link = tmp_path / "link"
    link.symlink_to(log.parent)
    assert "counted 0" in tail(redis_url, str(link / log.name)).out
    assert "counted 0" in tail(redis_url, os.path.relpath(log)).out


def test_what_lines_are_can_be_set(redis_url: str, redis_client: redis.Redis, log: Path) -> None:
    log.write_text("1779000000.000;200;/a b\n1779000000.000;200;/a c\n1779000000.000;404;/a b\n")
    given = {"log_format": "$msec;$status;$uri", "key": "{status} {path}"}
    given["where"] = "status=200 'path=/a b'"
    variables = {f"COUNTERSINK_TAIL_{name.upper()}": text for name, text in given.items()}
    arguments = ["tail", str(log), "--counter", COUNTER]
    done = call(*arguments, COUNTERSINK_REDIS_URL=redis_url, **variables)
    assert (done.status, done.out) == (0, "page_views: counted 1, rejected 0\n"), done.err
    assert counted(redis_client) == {"200 /a b": 1}


def test_the_result_as_json(redis_url: str, log: Path) -> None:
    write(log, "/a")
    append(log, b"bad\n" + line("/half")[:-3])
    done = tail(redis_url, str(log), "--format", "json")
    assert done.status == 3
    assert done.json == {
        "counter": COUNTER,
        "counted": 1,
        "rejected": 1,
        "left": 1,
        "lost": 0,
        "entries": 1,
        "rejected_lines": [
            {"file": str(log), "line": 2, "reason": done.json["rejected_lines"][0]["reason"]},
        ],
    }
    assert f"line 3 of {log} has no newline yet" in done.err


def test_rotated_files_in_a_directory_of_their_own(
    redis_url: str, redis_client: redis.Redis, log: Path, tmp_path: Path
) -> None:
    old = tmp_path.with_name(f"{tmp_path.name}-old")
    old.mkdir()
    options = ("--rotated-in", os.path.relpath(old), "--rotate-wait", "0")
    for number in range(2):
        write(log, f"/{number}")
        assert tail(redis_url, str(log), *options).status == 0
        write(log, f"/late{number}")
        log.rename(old / "access.log.1")
    write(log, "/new")
    done = tail(redis_url, str(log), "--format", "json")
    assert (done.status, done.json["counted"], done.json["lost"]) == (3, 1, 1)
    assert "was not found" in done.err
    assert counted(redis_client) == dict.fromkeys(["/0", "/late0", "/1", "/new"], 1)
    assert "--rotated-in" in tail(redis_url, str(log), "--rotated-in", str(tmp_path / "no")).err


def test_standard_input(servers: Servers, redis_client: redis.Redis) -> None:
    lines = b"".join(line(f"/{n % 3}") + b"\n" for n in range(3000)) + b"bad\n" + line("/end")
    with piped(lines):
        done = servers.call("tail", "-", "--counter", COUNTER)
    assert done.status == 3
    assert done.out == "page_views: counted 3,001, rejected 1\n"
    assert "rejected: - line 3001:" in done.err
    assert counted(redis_client) == {"/0": 1000, "/1": 1000, "/2": 1000, "/end": 1}


def test_what_comes_slowly_through_a_pipe_is_stored_soon(
    redis_url: str, redis_client: redis.Redis
) -> None:
    reader, writer = os.pipe()

    def write_slowly() -> None:
        with open(writer, "wb", buffering=0) as pipe:
            for number in range(2):
                pipe.write(line(f"/{number}") + b"\n")
                _wait_for_hits(redis_client, number + 1)

    with redirected(reader), ThreadPoolExecutor() as threads:
        writing = threads.submit(write_slowly)
        done = tail(redis_url, "-")
        writing.result()
    assert (done.status, done.out) == (0, "page_views: counted 2, rejected 0\n")


def test_a_stop_ends_the_reading_of_a_pipe_with_everything_stored(
    redis_client: redis.Redis, tmp_path: Path, start: Start
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = start("tail", str(pipe), "--counter", COUNTER, "--follow")
    with pipe.open("wb", buffering=0) as writer:
        writer.write(line("/0") + b"\n")
        _wait_for_hits(redis_client, 1)
        child.terminate()
        assert child.wait() == 0
        assert child.output() == "page_views: counted 1, rejected 0\n"


def test_ctrl_c_ends_following_with_everything_stored(
    servers: Servers, redis_client: redis.Redis, log: Path, start: Start
) -> None:
    write(log, "/a")
    child = start("tail", str(log), "--counter", COUNTER, "--follow")
    eventually(lambda: counted(redis_client) == {"/a": 1})
    write(log, "/b")
    eventually(lambda: counted(redis_client) == {"/a": 1, "/b": 1})
    child.send(signal.SIGINT)
    assert child.wait() == 130
    assert child.output() == "page_views: counted 2, rejected 0\n"
    assert "counted 0" in tail(servers.redis_url, str(log)).out


@pytest.mark.random
def test_killed_at_any_moment_and_run_again_each_line_counts_once(
    servers: Servers, redis_client: redis.Redis, log: Path, start: Start
) -> None:
    draw = random.Random(20261121)
    times = 6 if MANY else 3
    paths = [f"/{number}" for number in range(10_000 * times)]
    write(log, *paths)
    for _ in range(times):
        child = start("tail", str(log), "--counter", COUNTER)
        # Killed when so many entries are there, which no two times are.
        enough = min(10 * times, redis_client.xlen(stream_key(0)) + draw.randrange(0, 12))
        _wait_for_entries(redis_client, enough, child)
        child.kill()
    assert tail(servers.redis_url, str(log)).status == 0
    assert "counted 0" in tail(servers.redis_url, str(log)).out
    assert counted(redis_client) == dict.fromkeys(paths, 1)


def test_a_second_tail_of_the_same_log_gets_a_clear_error(
    servers: Servers, redis_client: redis.Redis, log: Path, start: Start
) -> None:
    write(log, "/a")
    child = start("tail", str(log), "--counter", COUNTER, "--follow")
    eventually(lambda: counted(redis_client) == {"/a": 1})
    write(log, "/b")
    refused = tail(servers.redis_url, str(log))
    assert "another countersink tail uses the position file" in one_sentence(refused, 1)
    eventually(lambda: counted(redis_client)["/b"] == 1)
    # Of another user, whose file is another one:
    child.stop()
    others = ["--position-file", str(log.parent)]
    refused = tail(servers.redis_url, str(log), *others)
    assert "--begin end only new lines" in one_sentence(refused, 1)
    assert tail(servers.redis_url, str(log), *others, "--begin", "end").status == 0
    write(log, "/c")
    child.go_on()
    assert child.wait() == 1
    assert "another countersink tail reads this log" in child.output()
    assert tail(servers.redis_url, str(log), *others).status == 0
    assert counted(redis_client) == dict.fromkeys(["/a", "/b", "/c"], 1)


def test_what_is_sent_again_to_an_emptied_redis_counts_once(
    servers: Servers, redis_client: redis.Redis, log: Path
) -> None:
    """What workers had applied is left out, what they had not is counted after all."""

    def run(*options: str) -> Result:
        return servers.call("tail", str(log), "--counter", COUNTER, *options)

    write(log, "/applied", "/applied")
    assert run().status == 0
    append(log, line("/half"))
    assert run().status == 3
    servers.apply()
    append(log, b"\n" + line("/lost") + b"\n")
    assert run().status == 0
    redis_client.flushall()
    write(log, "/new")
    assert run().out == "page_views: counted 1, rejected 0\n"
    servers.apply()
    shown = servers.rows(COUNTER, "--by", "key")
    totals = {row["key"]: row["total"] for row in shown}
    assert totals == {"/applied": 2, "/half": 1, "/lost": 1, "/new": 1}


def test_what_is_sent_again_later_than_guards_are_kept_becomes_a_dead_letter(
    servers: Servers, redis_client: redis.Redis, log: Path, tmp_path: Path
) -> None:
    """A tail that was killed before it had sent its last lines runs again after four days."""
    file = tmp_path / "position"
    arguments = ("tail", str(log), "--counter", COUNTER, "--position-file", str(file))
    write(log, "/a")
    assert servers.call(*arguments).status == 0
    (mark,) = redis_client.scan_iter("*:tail:*")
    before = redis_client.dump(mark) or b""
    servers.apply()
    write(log, "/b")
    assert servers.call(*arguments).status == 0
    redis_client.delete(stream_key(0))
    redis_client.restore(mark, 0, before, replace=True)
    *lines, last = file.read_text().splitlines(keepends=True)
    at = json.loads(last)["at"]
    file.write_text("".join([*lines, last.replace(str(at), str(at - 4 * 24 * 3600 * 1000))]))
    servers.execute(f"UPDATE control SET pruned_before = {at - 3 * 24 * 3600 * 1000}")
    write(log, "/c")
    assert servers.call(*arguments).out == "page_views: counted 1, rejected 0\n"
    servers.apply()
    totals = {row["key"]: row["total"] for row in servers.rows(COUNTER, "--by", "key")}
    assert totals == {"/a": 1, "/c": 1}
    assert "too_old" in servers.call("dead", "list").out


def test_what_cannot_be_read(redis_url: str) -> None:
    for source, said, status in (
        (["/none/access.log"], "cannot read /none/access.log: No such file or directory", 1),
        (["."], "it is not a file", 1),
        (["-", "--begin", "end"], "has no position: leave out --begin", 2),
    ):
        assert said in one_sentence(tail(redis_url, *source), status)
    away = tail("redis://127.0.0.1:1/0", __file__)  # told at once to who runs once
    assert "cannot be reached" in one_sentence(away, 1)

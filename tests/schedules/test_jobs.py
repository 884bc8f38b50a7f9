"""The job process: real processes, real signals, servers that go away."""

import json
import os
import signal
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from countersink.database.connection import connect
from countersink.database.migrate import migrate
from countersink.database.session import Session
from countersink.schedules import runs
from countersink.schedules.rq_worker import (
    FAILURE_TTL_S,
    FUNCTION,
    RunQueue,
    make_queue,
)
from countersink.stream.connection import connect as connect_redis
from tests.schedules.scheduling import at, lines_of, require_no_gap, run_row, said
from tests.support import scheduled
from tests.support.factories import MySQLFactory, RedisFactory
from tests.support.forked import ForkedChildren
from tests.support.processes import Child
from tests.support.waiting import eventually

LIMIT_S = 60
ENDS_WITHIN = 10.0
"""Seconds in which a job process ends after SIGTERM, whatever its run does."""


def later(text: str) -> datetime:
    """A time of a day to come: runs that are hours late make way for later ones."""
    return at(text).replace(year=2099)


NINE = later("09:00:00")


class Ground:
    """The servers, the queue, and job processes on them."""

    def __init__(self, session: Session, redis_url: str, mysql_url: str) -> None:
        self.session = session
        self.redis_url = redis_url
        self.mysql_url = mysql_url
        self.client = connect_redis(redis_url)
        self.runs = RunQueue(self.client)
        self.children = ForkedChildren()
        scheduled.make_table(session)

    def process(self, **options: Any) -> Child:
        """Start a job process."""
        plan = {
            "mysql_url": self.mysql_url,
            "redis_url": self.redis_url,
            "jobs_redis_url": self.redis_url,
            **options,
        }
        return scheduled.start(self.children, "jobs", plan)

    def plan(self, job: str, moment: datetime = NINE, limit_s: int = LIMIT_S) -> None:
        """Plan a run and enqueue its first attempt."""
        self.session.execute(
            "INSERT INTO job_run (job, planned_at, state, due_at)"
            " VALUES (%s, %s, 'planned', UTC_TIMESTAMP(3))",
            (job, moment.replace(tzinfo=None)),
        )
        self.runs.enqueue(job, moment, 1, limit_s)

    def take_over(self, job: str) -> None:
        """Give back a run that goes on, as a scheduler does that saw it silent for long, and
        enqueue its next attempt."""
        (seen,) = runs.open_runs(self.session, running=job)
        assert runs.give_back(self.session, seen)
        self.runs.enqueue(job, seen.planned_at, seen.attempts + 1, LIMIT_S)

    def wait_state(self, job: str, state: str, moment: datetime = NINE) -> dict[str, Any]:
        """Wait until a run is in a state; its row."""
        eventually(
            lambda: run_row(self.session, job, moment)["state"] == state,
            30,
            message=lambda: f"{run_row(self.session, job, moment)}\n{self.outputs()}",
        )
        return run_row(self.session, job, moment)

    def wait_starts(self, count: int) -> list[str]:
        """Wait until jobs were started so many times in all."""
        eventually(lambda: len(scheduled.starts(self.session)) >= count, 30, message=self.outputs)
        return scheduled.starts(self.session)

    def outputs(self) -> str:
        return "\n".join(child.output() for child in self.children)


@pytest.fixture
def ground(session: Session, redis_url: str, mysql_url: str) -> Iterator[Ground]:
    made = Ground(session, redis_url, mysql_url)
    with made.children:
        yield made
    made.client.close()


def end(child: Child) -> None:
    child.terminate()
    assert child.wait(ENDS_WITHIN) == 0, child.output()


def test_a_run_is_done_once_however_often_it_is_enqueued_and_says_what_it_did(
    ground: Ground,
) -> None:
    child = ground.process()
    ground.plan("tick")
    row = ground.wait_state("tick", "done")
    assert (row["attempts"], row["row_count"], row["detail"]) == (1, 1, "ticked")
    for _ in range(3):
        ground.runs.enqueue("tick", NINE, 1, LIMIT_S)
    ground.runs.enqueue("tick", later("10:00:00"), 1, LIMIT_S)  # never planned
    ground.plan("tick", later("11:00:00"))
    for _ in range(3):
        ground.runs.enqueue("tick", later("11:00:00"), 1, LIMIT_S)
    ground.plan("tick", later("12:00:00"))
    ground.wait_state("tick", "done", later("12:00:00"))  # the queue is first in, first out
    assert scheduled.starts(ground.session) == [
        f"tick-20991121T{hour}0000Z" for hour in ("09", "11", "12")
    ]
    end(child)
    assert {"started", "ready", "run_started", "run_done", "stopped"} <= set(said(child))
    assert "Traceback" not in child.output()


def test_a_run_that_fails_says_so_and_does_not_block_the_next(ground: Ground) -> None:
    child = ground.process(attempts=1)
    for second in range(3):
        ground.plan("breaks", later(f"09:00:0{second}"))
    ground.plan("deaf", limit_s=1)
    ground.plan("tick")
    ground.plan("unknown")
    ground.wait_state("tick", "done")
    row = ground.wait_state("deaf", "failed")
    assert row["detail"] == "it took longer than its limit of 1 s"
    row = ground.wait_state("breaks", "failed", later("09:00:02"))
    assert row["detail"].startswith("RuntimeError: it broke: ¡ñandú! xxx")
    assert len(row["detail"]) == 1000
    row = ground.wait_state("unknown", "failed")
    assert "knows no job unknown" in row["detail"]
    end(child)
    # the text of an unexpected error may quote an event: for the table alone
    assert "it broke" not in child.output()
    assert "rq" not in said(child)


def test_what_a_job_finds_does_not_pass_and_what_it_fails_in_is_tried_again(ground: Ground) -> None:
    child = ground.process(retry_after_s=0.001)
    ground.plan("breaks")
    ground.plan("finds")
    row = ground.wait_state("finds", "failed")
    assert (row["detail"], row["attempts"]) == ("one thing differs", 1)
    row = run_row(ground.session, "breaks", NINE)
    assert (row["state"], row["attempts"]) == ("planned", 1)
    for attempt in (2, 3):
        ground.runs.enqueue("breaks", NINE, attempt, LIMIT_S)
        ground.plan("tick", later(f"10:00:0{attempt}"))
        ground.wait_state("tick", "done", later(f"10:00:0{attempt}"))
    row = run_row(ground.session, "breaks", NINE)
    assert (row["state"], row["attempts"]) == ("failed", 3)
    end(child)
    levels = [line["level"] for line in lines_of(child) if line["action"] == "run_failed"]
    assert sorted(levels) == ["error", "error", "warning", "warning"]


def test_sigterm_tells_the_run_to_end_in_good_order(ground: Ground) -> None:
    child = ground.process()
    ground.plan("until_told")
    ground.wait_starts(1)
    end(child)
    row = run_row(ground.session, "until_told", NINE)
    assert (row["state"], row["attempts"], row["detail"]) == ("planned", 0, "told to stop")
    assert "run_stopped" in said(child)
    other = ground.process()  # goes on at once
    ground.runs.enqueue("until_told", NINE, 1, LIMIT_S)  # as a scheduler does
    ground.wait_starts(2)
    assert run_row(ground.session, "until_told", NINE)["attempts"] == 1
    end(other)


def test_sigterm_kills_a_run_that_does_not_listen_and_another_takes_it_over(
    ground: Ground,
) -> None:
    child = ground.process(stop_within_s=1.0, silent_s=2.0, beat_every_s=0.5)
    ground.plan("once_deaf")
    ground.wait_starts(1)
    child.terminate()
    assert child.wait(ENDS_WITHIN) == 1, child.output()
    assert "stop_forced" in said(child)
    assert run_row(ground.session, "once_deaf", NINE)["state"] == "running"
    other = ground.process()
    ground.take_over("once_deaf")
    row = ground.wait_state("once_deaf", "done")
    assert (row["attempts"], row["detail"]) == (2, "the second time")
    end(other)


def test_a_killed_process_leaves_a_run_that_goes_on_elsewhere(ground: Ground) -> None:
    child = ground.process(silent_s=2.0, beat_every_s=0.5)
    ground.plan("until_told")
    ground.wait_starts(1)
    child.kill()  # its work horse finds itself an orphan, and ends in good order
    row = ground.wait_state("until_told", "planned")
    assert row["attempts"] == 0


@pytest.mark.long("runs that fall silent")
def test_a_run_that_is_frozen_for_long_has_nothing_more_to_say(ground: Ground) -> None:
    slow = ground.process(silent_s=1.0, beat_every_s=0.3)
    ground.plan("until_told")
    ground.wait_starts(1)
    pid = ground.session.query("SELECT pid FROM test_start")[0][0]
    frozen = (slow.pid, pid)  # as when the machine is: else the one kills the other
    for each in frozen:
        os.kill(each, signal.SIGSTOP)
    try:
        other = ground.process()
        ground.take_over("until_told")
        ground.wait_starts(2)
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: "run_lost" in said(slow), 30, message=ground.outputs)
    finally:
        for each in frozen:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)
    assert run_row(ground.session, "until_told", NINE)["state"] == "running"
    end(other)
    row = run_row(ground.session, "until_told", NINE)
    assert (row["state"], row["attempts"]) == ("planned", 1)
    end(slow)


@pytest.mark.long("runs that fall silent")
def test_a_run_that_hangs_is_killed_once_it_was_silent_for_long(ground: Ground) -> None:
    child = ground.process(silent_s=1.0, beat_every_s=0.3)
    ground.plan("until_told")
    ground.wait_starts(1)
    pid = ground.session.query("SELECT pid FROM test_start")[0][0]
    os.kill(pid, signal.SIGSTOP)
    ground.plan("tick")
    ground.wait_state("tick", "done")  # behind it, in the same process
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert said(child).count("run_lost") == 1
    end(child)


@pytest.mark.long("a frozen Redis")
def test_an_idle_process_ends_in_good_order_though_redis_does_not_answer(
    own_redis_server: RedisFactory, session: Session, mysql_url: str
) -> None:
    server = own_redis_server()
    ground = Ground(session, server.url, mysql_url)
    with ground.children:
        child = ground.process()
        eventually(lambda: "ready" in said(child), 30, message=child.output)
        server.freeze()
        try:
            end(child)
        finally:
            server.thaw()
        assert said(child)[-1] == "stopped"
        assert "stop_forced" not in said(child)
    ground.client.close()


def test_a_redis_that_goes_away_is_waited_for(
    own_redis_server: RedisFactory, session: Session, mysql_url: str
) -> None:
    server = own_redis_server(appendfsync="always")
    ground = Ground(session, server.url, mysql_url)
    with ground.children:
        child = ground.process()
        ground.plan("tick")
        ground.wait_state("tick", "done")
        server.stop()
        eventually(lambda: "waiting" in said(child), 30, message=child.output)
        server.start()
        eventually(lambda: "resumed" in said(child), 30, message=child.output)
        ground.plan("tick", later("10:00:00"))
        ground.wait_state("tick", "done", later("10:00:00"))
        server.stop()
        eventually(lambda: said(child).count("waiting") == 2, 30, message=child.output)
        end(child)
        assert "Traceback" not in child.output()
    ground.client.close()


def test_a_full_redis_is_said_once(
    own_redis_server: RedisFactory, session: Session, mysql_url: str
) -> None:
    server = own_redis_server(extra=["--maxmemory", "1"])
    ground = Ground(session, server.url, mysql_url)

    def refused() -> int:
        return int(ground.client.info("errorstats").get("errorstat_OOM", {"count": 0})["count"])

    with ground.children:
        child = ground.process()
        eventually(lambda: refused() >= 4, message=child.output)
        ground.client.config_set("maxmemory", 0)
        eventually(lambda: "resumed" in said(child), 30, message=child.output)
        assert (said(child).count("waiting"), said(child).count("resumed")) == (1, 1)
        assert "Redis is full" in child.output()
        end(child)
    ground.client.close()


def test_whatever_else_is_put_into_the_queue_is_refused(ground: Ground, tmp_path: Path) -> None:
    file = tmp_path / "made"
    make_queue(ground.client).enqueue_call(
        "os.mkdir", args=(str(file),), job_id="evil", on_success=None
    )
    ours: dict[Any, Any] = {
        "created_at": "2026-11-21T13:00:00.000000Z",
        "origin": "countersink",
        "timeout": "60",
    }
    good = zlib.compress(json.dumps([FUNCTION, None, ["tick", "x", 1, 1], {}]).encode())
    broken: list[dict[Any, Any]] = [
        {"created_at": "secret nonsense", "data": good},
        {"timeout": "secret", "data": good},
        {"result_ttl": "zz", "data": good},
        {"data": b"garbage"},
        {"data": good},
    ]
    for number, fields in enumerate(broken):
        ground.client.hset(f"rq:job:bad{number}", mapping=ours | fields)
        ground.client.rpush("rq:queue:countersink", f"bad{number}")
    ground.client.rpush("rq:queue:countersink", "not:there\n")
    child = ground.process()
    ground.plan("tick")
    ground.wait_state("tick", "done")
    assert not file.exists()
    assert ground.client.hget("rq:job:evil", "status") == b"failed"
    for name in ("evil", *(f"bad{number}" for number in range(len(broken)))):
        assert 0 < ground.client.ttl(f"rq:job:{name}") <= FAILURE_TTL_S
    for key in ground.client.scan_iter("rq:results:*"):
        assert 0 < ground.client.ttl(key) <= FAILURE_TTL_S
    end(child)
    lines = lines_of(child)
    causes = [line["cause"] for line in lines if line["action"] == "rq"]
    assert len(causes) == 3  # what does not even look like a job; the rest fails
    assert "ValueError" in causes
    assert "secret" not in child.output()


FROZEN_S = 40.0
"""Twice as long as a run may be without a sign of life."""


@pytest.mark.long("a MySQL that is frozen for 40 s")
def test_a_frozen_mysql_loses_no_run_and_overlaps_at_most_one_transaction(
    own_mysql_server: MySQLFactory, redis_url: str
) -> None:
    server = own_mysql_server(fast=True)
    url = server.url_for("countersink")
    migrate(url)
    plan: dict[str, Any] = {"mysql_url": url, "redis_url": redis_url}
    jobs = {"tick": ("* * * * * *", 60), "steps": ("0 0 1 1 *", 600)}
    with ForkedChildren() as children:
        with connect(url) as session:
            scheduled.make_table(session)
            for _ in range(2):
                scheduled.start(children, "scheduler", plan | {"jobs": jobs})
                scheduled.start(children, "jobs", plan | {"jobs_redis_url": redis_url})
            eventually(lambda: "steps" in runs.jobs(session))
            assert runs.add(session, "steps")
            eventually(lambda: steps(session))
            (first,) = {pid for _, pid in steps(session)}
        server.freeze()
        threading.Event().wait(FROZEN_S)  # nothing tells that it is over: nobody answers
        server.thaw()
        with connect(url) as session:
            eventually(lambda: any(pid != first for _, pid in steps(session)), 60)
            ticks = session.query("SELECT COUNT(*) FROM job_run WHERE job = 'tick'")[0][0]
            eventually(lambda: done(session) > ticks, 60)
            for child in children:
                child.terminate()
            for child in children:
                assert child.wait(20) == 0, child.output()
            check(session, first)
        assert sum(said(child).count("run_lost") for child in children) >= 1


def check(session: Session, first: int) -> None:
    """No second is left out, and of two attempts one transaction overlaps at most."""
    begun = next(number for number, pid in steps(session) if pid != first)
    late = [number for number, pid in steps(session) if pid == first and number > begun]
    assert len(late) <= 1, late
    require_no_gap(session, "tick")
    assert not session.query("SELECT 1 FROM job_run WHERE state = 'failed'")


def steps(session: Session) -> list[tuple[int, int]]:
    """(number, process) of each transaction of the job, in order."""
    return session.query("SELECT id, pid FROM test_step ORDER BY id")


def done(session: Session) -> int:
    """Seconds whose run is done."""
    query = "SELECT COUNT(*) FROM job_run WHERE job = 'tick' AND state = 'done'"
    return int(session.query(query)[0][0])

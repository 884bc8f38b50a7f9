"""Schedulers that should not be in charge, or whose clock is wrong: real processes."""

from typing import Any

import pytest
import redis

from countersink.schedules.scheduler.leader import idle_seconds
from countersink.store.connection import Session
from tests.schedules.scheduling import lines_of, queued, said, scheduler, wait_said
from tests.support.processes import Child, Children
from tests.support.waiting import eventually

NOWHERE = "redis://127.0.0.1:1"


def runs(session: Session) -> int:
    return int(session.query("SELECT COUNT(*) FROM job_run")[0][0])


def wait_more_runs(session: Session, child: Child, count: int = 3) -> None:
    enough = runs(session) + count
    eventually(lambda: runs(session) >= enough, 30, message=child.output)


@pytest.mark.long("sessions that the server ends")
def test_one_that_is_frozen_in_a_transaction_holds_up_no_takeover_for_long(
    session: Session, redis_url: str, runs_url: str, children: Children
) -> None:
    slower: dict[str, Any] = {"lease_s": 4.0, "renew_every_s": 1.0}
    frozen = scheduler(children, redis_url, runs_url, "freeze", **slower)
    wait_said(frozen, "leading")
    other = scheduler(children, redis_url, runs_url, **slower)
    wait_said(other, "standby")
    wait_said(other, "leading")
    wait_more_runs(session, other)
    rows = session.query(
        "SELECT MAX(IF(token = 1, planned_at, NULL)), MIN(IF(token = 2, planned_at, NULL))"
        " FROM job_run"
    )
    # the takeover plans the last run that was missed: by the server's clock. A session may be idle
    # for 30 s by default.
    gap = (rows[0][1] - rows[0][0]).total_seconds()
    assert gap < 20, other.output()
    assert not said(other).count("waiting"), other.output()
    frozen.go_on()
    wait_said(frozen, "standby")
    assert {token for (token,) in session.query("SELECT DISTINCT token FROM job_run")} == {1, 2}


def test_the_sessions_of_a_scheduler_end_well_before_its_lease() -> None:
    assert idle_seconds(15.0) == 8
    assert idle_seconds(1.5) == 3


@pytest.mark.long("five seconds each")
@pytest.mark.parametrize("trick", ["clock:-7200", "clock:7200"])
def test_a_step_of_the_hosts_clock_neither_stops_it_nor_dates_runs_ahead(
    session: Session, redis_client: redis.Redis, redis_url: str, runs_url: str,
    children: Children, trick: str,
) -> None:  # fmt: skip
    child = scheduler(children, redis_url, runs_url, trick)
    wait_said(child, "leading")
    wait_more_runs(session, child, 5)
    redis_client.delete("rq:queue:countersink")
    waiting = runs(session)
    eventually(lambda: len(set(queued(redis_client))) >= waiting, 30, message=child.output)
    assert not session.query("SELECT 1 FROM job_run WHERE planned_at > UTC_TIMESTAMP()")
    assert "clock" not in said(child)
    child.terminate()
    assert child.wait(10) == 0, child.output()


def test_one_that_cannot_reach_redis_makes_room_for_one_that_can(
    session: Session, redis_client: redis.Redis, redis_url: str, runs_url: str, children: Children
) -> None:
    cut_off = scheduler(children, NOWHERE, runs_url)
    wait_said(cut_off, "leading")
    other = scheduler(children, redis_url, runs_url)
    wait_said(other, "leading")
    wait_said(cut_off, "standby")
    assert any("jobs' Redis" in one["message"] for one in lines_of(cut_off)), cut_off.output()
    count = runs(session)
    eventually(lambda: len(set(queued(redis_client))) >= count, 30, message=other.output)
    wait_more_runs(session, other, 1)
    assert said(cut_off).count("leading") == 1
    for child in (cut_off, other):
        child.terminate()
        assert child.wait(10) == 0, child.output()
        assert all(line.startswith("{") for line in child.output().splitlines() if line)


@pytest.mark.long("seconds without Redis")
def test_one_that_is_alone_goes_on_without_redis(
    session: Session, runs_url: str, children: Children
) -> None:
    child = scheduler(children, NOWHERE, runs_url)
    wait_said(child, "leading", times=2)
    wait_more_runs(session, child)
    child.terminate()
    assert child.wait(10) == 0, child.output()

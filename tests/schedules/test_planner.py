"""Planning: each run once, by the scheduler in charge alone, and none forgotten."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from countersink.schedules.errors import Deposed
from countersink.schedules.history import overdue
from countersink.schedules.report import LOGGER
from countersink.schedules.runner.rq import RunJob, run_id
from countersink.schedules.runner.run import FOUND
from countersink.store.connection import Session
from countersink.stream.connection import connect as connect_redis
from tests.schedules.scheduling import (
    LeaderAt,
    at,
    depose,
    planned,
    queued,
    run_row,
)
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.worker.running import Records

Rule = Callable[..., LeaderAt]


@pytest.fixture
def rule(session: Session, redis_client: redis.Redis, runs_url: str) -> Rule:
    """Begins a leader: `rule({"j": "* * * * *"})`, which takes over at a time; the one
    before it is over.
    """

    def make(jobs: dict[str, str], since: str = "", **more: Any) -> LeaderAt:
        depose(session)
        leader = LeaderAt(session, redis_client, runs_url, jobs, **more)
        if since:
            leader.take_over(since)
        return leader

    return make


def job_row(session: Session, name: str = "j") -> tuple[Any, ...]:
    rows = session.query(
        "SELECT cron, time_zone, next_at, planned_to, token FROM job WHERE name = %s", (name,)
    )
    return rows[0] if rows else ()


def test_a_new_installation_has_missed_nothing(rule: Rule, session: Session) -> None:
    leader = rule({"j": "*/10 * * * *", "o": "off"}, "12:04:30")
    assert planned(session) == []
    assert job_row(session) == (
        "*/10 * * * *",
        "UTC",
        at("12:10:00").replace(tzinfo=None),
        at("12:04:30").replace(tzinfo=None),
        leader.token,
    )
    assert job_row(session, "o")[0] == "off"
    assert job_row(session, "o")[2] is None


def test_what_is_due_is_planned_and_enqueued_once(
    rule: Rule, session: Session, redis_client: redis.Redis
) -> None:
    leader = rule({"j": "* * * * * *"}, "12:00:00")
    for moment in ("12:00:01", "12:00:01", "12:00:04", "12:00:03", "12:00:04"):
        leader.plan(moment)
    assert planned(session) == ["12:00:01", "12:00:02", "12:00:03", "12:00:04"]
    assert queued(redis_client) == [f"j-20261121T12000{n}Z" for n in (1, 2, 3, 4)]
    job: Any = RunJob.fetch("j-20261121T120001Z", redis_client, "json")
    assert job.func_name == "countersink.schedules.runner.run.perform"
    assert job.args == ["j", "20261121T120001Z", 1, 3600]
    assert job.timeout == 3600
    row = run_row(session, "j", at("12:00:01"))
    assert (row["state"], row["attempts"], row["token"]) == ("planned", 0, leader.token)


def test_what_is_more_than_a_minute_late_becomes_one_run(rule: Rule, session: Session) -> None:
    leader = rule({"j": "*/30 * * * * *"}, "12:00:00")
    leader.plan("12:10:10")  # frozen for ten minutes, and still in charge
    assert planned(session) == ["12:09:30", "12:10:00"]
    other = rule({"h": "0 * * * *"}, "12:30:00")
    other.plan("16:20:00", "h")
    assert planned(session, "h") == ["16:00:00"]


def test_a_new_leader_runs_the_last_missed_run_and_not_those_before_it(
    rule: Rule, session: Session, redis_client: redis.Redis
) -> None:
    first = rule({"j": "*/10 * * * *"}, "12:04:00")
    first.plan("12:10:00")
    second = rule({"j": "*/10 * * * *"}, "12:55:00", holder="b-2-y")
    assert planned(session) == ["12:10:00", "12:50:00"]
    assert queued(redis_client)[-1] == "j-20261121T125000Z"
    assert run_row(session, "j", at("12:50:00"))["token"] == second.token > first.token
    third = rule({"j": "*/10 * * * *"}, "12:56:00")  # nothing is missed: nothing twice
    third.plan("12:56:00")
    assert planned(session) == ["12:10:00", "12:50:00"]


def test_a_deposed_scheduler_plans_nothing(
    rule: Rule, session: Session, redis_client: redis.Redis
) -> None:
    old = rule({"j": "* * * * *"}, "12:00:00")
    rule({"j": "* * * * *"}, "12:00:30", holder="b-2-y")
    with pytest.raises(Deposed):
        old.plan("12:05:00")
    with pytest.raises(Deposed):
        old.take_over("12:05:00")
    depose(session)  # nobody has it now: the old one still has not
    with pytest.raises(Deposed):
        old.plan("12:05:00")
    assert planned(session) == []
    assert queued(redis_client) == []


def test_a_clock_that_goes_back_a_little_plans_nothing_twice(rule: Rule, session: Session) -> None:
    first = rule({"j": "* * * * *"}, "12:00:00")
    first.plan("12:02:30")
    first.plan("12:03:00")
    behind = rule({"j": "* * * * *"}, holder="b-2-y")
    with Records(LOGGER) as records:
        behind.take_over("12:02:01")
        behind.plan("12:02:30")
        behind.plan("12:03:30")
    assert "clock" not in records.actions()
    assert planned(session) == ["12:02:00", "12:03:00"]
    behind.plan("12:04:00")
    assert planned(session) == ["12:02:00", "12:03:00", "12:04:00"]


def test_the_hosts_clock_has_no_say(rule: Rule, session: Session) -> None:
    leader = rule({"j": "* * * * *"})
    for moment in ("12:00:00", "12:01:00"):  # whatever this host's clock shows
        leader.set_clock(moment)
        leader.planner.read_clock()
        assert abs(leader.planner.now() - at(moment)) < timedelta(seconds=30)
    leader.take_over("12:01:00")
    assert job_row(session)[3] == at("12:01:00").replace(tzinfo=None)


@pytest.mark.parametrize("another", [False, True])
def test_after_the_databases_clock_was_far_ahead_planning_goes_on_at_once(
    rule: Rule, session: Session, redis_client: redis.Redis, another: bool
) -> None:
    jobs = {"j": "* * * * *"}
    leader = rule(jobs, "12:00:00")
    leader.plan("12:01:00")
    leader.plan("14:29:30")
    leader.plan("14:30:00")
    session.execute("UPDATE job_run SET state = 'done' WHERE planned_at = '2026-11-21 14:29:00'")
    assert planned(session) == ["12:01:00", "14:29:00", "14:30:00"]
    with Records(LOGGER) as records:
        if another:
            leader = rule(jobs, "12:02:30", holder="b-2-y")
        else:
            leader.plan("12:02:30")  # the clock is right again
        leader.plan("12:02:31")
    assert records.actions().count("clock") == 1
    # what is still to come is not done before its time; what was done stays
    assert planned(session) == ["12:01:00", "14:29:00"]
    assert job_row(session)[2:4] == (
        at("12:03:00").replace(tzinfo=None), at("12:02:30").replace(tzinfo=None)
    )  # fmt: skip
    leader.plan("12:03:00")
    assert planned(session) == ["12:01:00", "12:03:00", "14:29:00"]
    leader.plan("14:28:30")
    leader.plan("14:30:10")
    assert planned(session)[-3:] == ["14:28:00", "14:29:00", "14:30:00"]
    assert run_row(session, "j", at("14:29:00"))["state"] == "done"
    assert queued(redis_client).count("j-20261121T142900Z") == 1


def test_a_changed_expression_makes_no_runs_in_the_past(rule: Rule, session: Session) -> None:
    rule({"j": "0 20 * * *"}, "09:00:00")
    # 8:00 is over, but was not planned when it came
    rule({"j": "0 8 * * *"}, "09:30:00")
    assert planned(session) == []
    assert job_row(session)[2] == at("08:00:00").replace(tzinfo=None) + timedelta(days=1)
    # another zone is another time
    rule({"j": "0 8 * * *"}, "10:00:00", time_zone="Asia/Kolkata")
    assert planned(session) == []


def test_a_run_missed_under_the_old_expression_is_made_up_for(rule: Rule, session: Session) -> None:
    rule({"j": "0 10 * * *"}, "09:00:00")
    rule({"j": "0 8 * * *"}, "11:00:00")
    assert planned(session) == ["10:00:00"]


def test_a_job_that_was_off_has_missed_nothing(rule: Rule, session: Session) -> None:
    rule({"j": "0 * * * *"}, "09:30:00")
    rule({"j": "off"}, "09:40:00")
    assert job_row(session)[:4] == ("off", "UTC", None, None)
    rule({"j": "0 * * * *"}, "11:30:00")
    assert planned(session) == []


def test_a_job_that_is_gone_leaves_no_plans(rule: Rule, session: Session) -> None:
    first = rule({"j": "* * * * *", "k": "* * * * *", "o": "* * * * *"}, "12:00:00")
    for job in ("j", "k", "o"):
        first.plan("12:01:00", job)
    second = rule({"k": "* * * * *", "o": "off"})
    with Records(LOGGER) as records:
        second.take_over("12:01:30")
    assert "configured" in records.actions()
    assert job_row(session) == ()
    assert run_row(session, "j", at("12:01:00"))["state"] == "skipped"
    assert run_row(session, "o", at("12:01:00"))["state"] == "skipped"
    assert run_row(session, "k", at("12:01:00"))["state"] == "planned"


def test_what_redis_has_lost_is_enqueued_again(
    rule: Rule, session: Session, redis_client: redis.Redis
) -> None:
    leader = rule({"j": "* * * * *"}, "12:00:00")
    leader.plan("12:01:00")
    leader.sweep()
    assert queued(redis_client) == ["j-20261121T120100Z"]  # it is in hand: not once more
    redis_client.flushall()  # of our own private server
    with Records(LOGGER) as records:
        leader.sweep()
        leader.sweep()
    assert queued(redis_client) == ["j-20261121T120100Z"]
    assert records.actions().count("requeued") == 1
    redis_client.delete("rq:queue:countersink")  # its hash says queued, but it is in no queue
    leader.sweep()
    assert queued(redis_client) == ["j-20261121T120100Z"]


def test_a_run_that_could_not_be_enqueued_is_by_the_next_sweep(
    session: Session, redis_client: redis.Redis, runs_url: str
) -> None:
    with connect_redis("redis://127.0.0.1:1") as nowhere:
        leader = LeaderAt(session, nowhere, runs_url, {"j": "* * * * *"})
        leader.take_over("12:00:00")
        with Records(LOGGER) as records:
            leader.plan("12:01:00")
        assert "waiting" in records.actions()
    assert planned(session) == ["12:01:00"]
    depose(session)
    after = LeaderAt(session, redis_client, runs_url, {"j": "* * * * *"}, holder="b-2-y")
    after.take_over("12:01:10")
    after.sweep()
    assert queued(redis_client) == ["j-20261121T120100Z"]


def fail(session: Session, attempts: int, seconds_ago: int) -> None:
    session.execute(
        "INSERT INTO job_run (job, planned_at, token, state, attempts, ended_at) VALUES"
        " ('j', '2026-11-21 11:00:00', 1, 'failed', %s,"
        " '2026-11-21 12:00:00' - INTERVAL %s SECOND)",
        (attempts, seconds_ago),
    )


@pytest.mark.parametrize(
    ("attempts", "seconds_ago", "again"),
    [(1, 20, False), (1, 40, True), (2, 40, False), (2, 70, True), (3, 9999, False)],
)
def test_a_failed_run_is_tried_again_after_growing_pauses_and_not_for_ever(
    rule: Rule,
    session: Session,
    redis_client: redis.Redis,
    attempts: int,
    seconds_ago: int,
    again: bool,
) -> None:
    leader = rule({"j": "0 0 1 1 *"}, "12:00:00", attempts=3, retry_after_s=30)
    fail(session, attempts, seconds_ago)
    leader.sweep()
    names = queued(redis_client)
    assert bool(names) is again
    if again:
        job: Any = RunJob.fetch(names[0], redis_client, "json")
        assert job.args[2] == attempts + 1


def test_a_run_that_failed_for_what_it_found_is_not_tried_again(
    rule: Rule, session: Session, redis_client: redis.Redis
) -> None:
    leader = rule({"j": "0 0 1 1 *"}, "12:00:00", attempts=3, retry_after_s=30)
    fail(session, 1, 9999)
    session.execute("UPDATE job_run SET detail = %s", (FOUND,))
    leader.sweep()
    assert queued(redis_client) == []


def test_a_failed_run_makes_way_for_the_next_one_of_its_job(
    rule: Rule, session: Session, redis_client: redis.Redis
) -> None:
    leader = rule({"j": "0 0 1 1 *"}, "12:00:00")
    fail(session, 1, 9999)
    session.execute(
        "INSERT INTO job_run (job, planned_at, token, state)"
        " VALUES ('j', '2026-11-21 12:00:00', 1, 'done')"
    )
    leader.sweep()
    assert queued(redis_client) == []


def running(session: Session, attempts: int, lease_ms: int) -> None:
    session.execute(
        "INSERT INTO job_run (job, planned_at, token, state, attempts, holder)"
        " VALUES ('j', '2026-11-21 11:00:00', 1, 'running', %s, 'h')",
        (attempts,),
    )
    session.execute(
        "INSERT INTO lease (name, holder, token, expires_at) VALUES ('job:j', 'h', 1, %s)",
        (lease_ms,),
    )


def test_a_run_whose_process_died_is_enqueued_again_and_one_that_lives_is_not(
    rule: Rule, session: Session, redis_client: redis.Redis
) -> None:
    leader = rule({"j": "0 0 1 1 *"}, "12:00:00")
    running(session, 1, 2**50)
    leader.sweep()
    assert queued(redis_client) == []
    session.execute("UPDATE lease SET expires_at = 1 WHERE name = 'job:j'")
    leader.sweep()
    name = run_id("j", at("11:00:00"))
    assert queued(redis_client) == [name]
    job: Any = RunJob.fetch(name, redis_client, "json")
    assert job.args[2] == 2


def test_a_run_that_kills_its_process_every_time_ends_as_failed(
    rule: Rule, session: Session, redis_client: redis.Redis
) -> None:
    leader = rule({"j": "0 0 1 1 *"}, "12:00:00", attempts=3)
    running(session, 3, 1)
    with Records(LOGGER) as records:
        leader.sweep()
    assert queued(redis_client) == []
    row = run_row(session, "j", at("11:00:00"))
    assert row["state"] == "failed"
    assert "3 times in all" in row["error"]
    assert "failing" in records.actions()


def test_runs_that_were_planned_minutes_ago_and_never_began_are_overdue(session: Session) -> None:
    assert overdue(session, 5) == []
    for job, state, minutes in (
        ("j", "planned", 6),
        ("k", "planned", 9),
        ("l", "planned", 4),
        ("m", "running", 9),
        ("n", "skipped", 9),
    ):
        session.execute(
            "INSERT INTO job_run (job, planned_at, token, state)"
            " VALUES (%s, UTC_TIMESTAMP() - INTERVAL %s MINUTE, 1, %s)",
            (job, minutes, state),
        )
    assert [run.job for run in overdue(session, 5)] == ["k", "j"]


def test_what_a_transaction_says_that_is_run_again_is_logged_once(
    session: Session, redis_client: redis.Redis, runs_url: str
) -> None:
    with MySQLProxy.to(runs_url) as proxy:
        jobs = {"j": "*/30 * * * * *"}
        leader = LeaderAt(session, redis_client, proxy.url(runs_url), jobs)
        leader.take_over("12:00:00")
        rule = proxy.when("commit_other", Phase.BEFORE, Deed.ERROR, error=1213, times=2)
        with Records(LOGGER) as records:
            leader.plan("12:10:10")
            leader.plan("12:10:10")
    assert rule.acted == 2
    assert records.actions().count("left_out") == 1
    assert planned(session) == ["12:09:30", "12:10:00"]

"""Planning: each time once, however many schedulers look at once, and none forgotten."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from typing import Any

import pytest
import redis

from countersink.schedules import runs
from countersink.schedules.report import LOGGER
from countersink.schedules.runner.rq import RunJob
from countersink.store.connection import Session
from countersink.store.errors import StoreError
from tests.schedules.scheduling import SchedulerAt, at, planned, queued, run_row
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.worker.running import Records

Make = Callable[..., SchedulerAt]


@pytest.fixture
def make(redis_client: redis.Redis, mysql_url: str) -> Make:
    """Starts a scheduler: `make({"j": "* * * * *"})`."""

    def start(jobs: dict[str, str], **more: Any) -> SchedulerAt:
        return SchedulerAt(redis_client, mysql_url, jobs, **more)

    return start


def next_at(session: Session, name: str = "j") -> str | None:
    at = runs.jobs(session)[name].next_at
    return None if at is None else f"{at:%d %H:%M:%S}"


def test_a_new_installation_has_missed_nothing(make: Make, session: Session) -> None:
    assert not runs.is_planned(session)
    make({"j": "*/10 * * * *", "o": "off"}).look("12:04:30")
    assert planned(session) == []
    assert next_at(session) == "21 12:10:00"
    assert (next_at(session, "o"), runs.jobs(session)["o"].cron) == (None, "off")


def test_what_is_due_is_planned_and_handed_over_once(
    make: Make, session: Session, redis_client: redis.Redis
) -> None:
    scheduler = make({"j": "* * * * * *"})
    assert scheduler.look("12:00:00") == 1.0
    for moment in ("12:00:01", "12:00:01", "12:00:04", "12:00:03", "12:00:04"):  # a clock goes back
        scheduler.look(moment)
    assert planned(session) == ["12:00:01", "12:00:02", "12:00:03", "12:00:04"]
    assert queued(redis_client) == [f"j-20261121T12000{n}Z" for n in (1, 2, 3, 4)]
    job: Any = RunJob.fetch("j-20261121T120001Z", redis_client, "json")
    assert job.func_name == "countersink.schedules.runner.run.perform"
    assert job.args == ["j", "20261121T120001Z", 1, 3600]
    assert job.timeout == 3600
    row = run_row(session, "j", at("12:00:01"))
    assert (row["state"], row["attempts"]) == ("planned", 0)


def test_many_that_look_at_once_plan_each_time_once(
    make: Make, session: Session, redis_client: redis.Redis
) -> None:
    jobs = {f"j{number}": "* * * * * *" for number in range(4)}
    schedulers = [make(jobs) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for second in range(12):
            list(pool.map(methodcaller("look", f"12:00:{second:02d}"), schedulers))
    for job in jobs:
        assert planned(session, job) == [f"12:00:{second:02d}" for second in range(1, 12)]
    assert len(set(queued(redis_client))) == 4 * 11


def test_times_missed_for_long_become_the_first_and_those_of_the_last_minute(
    make: Make, session: Session
) -> None:
    scheduler = make({"j": "*/30 * * * * *", "h": "0 * * * *"})
    scheduler.look("12:30:00")
    with Records(LOGGER) as records:
        scheduler.look("16:20:10")
    assert planned(session) == ["12:30:30", "16:19:30", "16:20:00"]
    assert planned(session, "h") == ["13:00:00"]
    assert next_at(session, "h") == "21 17:00:00"
    assert records.actions().count("missed") == 2


@pytest.mark.parametrize("another", [False, True])
def test_after_the_databases_clock_was_far_ahead_planning_goes_on_at_once(
    make: Make, session: Session, another: bool
) -> None:
    jobs = {"j": "* * * * *"}
    scheduler = make(jobs)
    scheduler.look("12:00:00")
    scheduler.look("14:30:00")
    assert planned(session) == ["12:01:00", "14:30:00"]
    assert next_at(session) == "21 14:31:00"
    if another:
        scheduler = make(jobs)
    with Records(LOGGER) as records:
        scheduler.look("12:02:30")
        scheduler.look("12:02:31")
    assert records.actions().count("clock") == 1
    assert next_at(session) == "21 12:03:00"
    for moment in ("12:03:00", "14:29:00", "14:30:00", "14:31:00"):
        scheduler.look(moment)
    assert planned(session) == ["12:01:00", "12:03:00", "12:04:00", "14:29:00",
                                "14:30:00", "14:31:00"]  # fmt: skip


def test_a_changed_expression_makes_no_runs_in_the_past(make: Make, session: Session) -> None:
    make({"j": "0 20 * * *"}).look("09:00:00")
    # 8:00 is over, but was not planned when it came
    make({"j": "0 8 * * *"}).look("09:30:00")
    assert planned(session) == []
    assert next_at(session) == "22 08:00:00"
    # another zone is another time
    make({"j": "0 8 * * *"}, time_zone="Asia/Kolkata").look("10:00:00")
    assert planned(session) == []
    assert next_at(session) == "22 02:30:00"


def test_a_run_missed_under_the_old_expression_is_made_up_for(make: Make, session: Session) -> None:
    make({"j": "0 10 * * *"}).look("09:00:00")
    make({"j": "0 8 * * *"}).look("11:00:00")
    assert planned(session) == ["10:00:00"]
    assert next_at(session) == "22 08:00:00"


def test_who_started_last_says_when_a_job_runs_and_all_go_by_it(
    make: Make, session: Session
) -> None:
    old = make({"j": "* * * * *"})
    old.look("12:00:00")
    new = make({"j": "30 * * * *", "n": "* * * * *"})
    new.look("12:00:30")
    for moment in ("12:01:00", "12:02:00"):
        old.look(moment)
        new.look(moment)
    assert planned(session) == []
    old.look("12:30:00")
    assert planned(session) == ["12:30:00"]
    assert planned(session, "n") == ["12:01:00", "12:02:00"]  # the old one knows no such job


def test_a_job_that_is_off_or_paused_leaves_nothing_out_that_it_was_to_do(
    make: Make, session: Session
) -> None:
    jobs = {"j": "* * * * *", "k": "* * * * *"}
    make(jobs).look("12:00:00")
    make(jobs).look("12:01:00")
    later = make({"j": "off", "k": "* * * * *"})
    runs.pause(session, "k")
    later.look("12:05:00")
    assert run_row(session, "j", at("12:01:00"))["state"] == "skipped"
    assert run_row(session, "k", at("12:01:00"))["state"] == "planned"
    assert planned(session, "k") == ["12:01:00"]
    runs.resume(session, "k")
    assert next_at(session, "k") is None
    later.look("12:06:30")
    runs.resume(session, "k")  # it is not paused
    assert next_at(session, "k") == "21 12:07:00"
    later.look("12:07:00")
    assert planned(session, "k") == ["12:01:00", "12:07:00"]
    make(jobs).look("12:30:00")
    assert planned(session) == ["12:01:00"]


def test_a_run_by_hand_is_handed_over_by_the_next_look(
    make: Make, session: Session, redis_client: redis.Redis
) -> None:
    make({"j": "off"}).look(datetime.now(UTC))
    assert runs.add(session, "j") is not None
    assert runs.add(session, "j") is None  # one waits already
    make({"j": "off"}).look(datetime.now(UTC) + timedelta(seconds=5))
    assert len(queued(redis_client)) == 1


def test_what_redis_has_lost_is_handed_over_again(
    make: Make, session: Session, redis_client: redis.Redis
) -> None:
    scheduler = make({"j": "* * * * *"})
    scheduler.look("12:00:00")
    scheduler.look("12:01:00")
    scheduler.look("12:01:05")
    assert queued(redis_client) == ["j-20261121T120100Z"]  # it is in hand: not once more
    redis_client.flushall()  # of our own private server
    scheduler.look("12:01:10")
    scheduler.look("12:01:15")
    assert queued(redis_client) == ["j-20261121T120100Z"]
    redis_client.delete("rq:queue:countersink")  # its hash says queued, but it is in no queue
    scheduler.look("12:01:20")
    assert queued(redis_client) == ["j-20261121T120100Z"]


def running(session: Session, beat: str = "2026-11-21 12:00:00") -> None:
    session.execute(
        "REPLACE INTO job_run (job, planned_at, state, attempts, holder, heartbeat_at)"
        " VALUES ('j', '2026-11-21 11:00:00', 'running', 1, 'h', %s)",
        (beat,),
    )


def test_a_run_that_was_seen_silent_for_long_is_given_back_and_one_that_beats_is_not(
    make: Make, session: Session, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("countersink.schedules.scheduler.planner.time.monotonic", lambda: now[0])
    scheduler = make({"j": "0 0 1 1 *"})
    running(session)

    def looked(seconds: float) -> str:
        now[0] += seconds
        scheduler.look("12:00:10")  # whatever the database's clock says
        return str(run_row(session, "j", at("11:00:00"))["state"])

    assert [looked(5) for _ in range(5)] == ["running"] * 4 + ["planned"]
    assert queued(redis_client) == []  # handed over by the next look
    looked(5)
    job: Any = RunJob.fetch(queued(redis_client)[0], redis_client, "json")
    assert job.args[2] == 2
    for beat in range(12):
        running(session, f"2026-11-21 12:00:{beat:02d}")
        assert looked(5) == "running"
    looked(15)
    assert looked(16) == "running"  # this process stood still: so may all others have


def test_a_dead_run_is_seen_behind_any_number_of_planned_ones(session: Session) -> None:
    session.execute(
        "INSERT INTO job_run (job, planned_at, state) SELECT 'j',"
        " '2026-11-20' + INTERVAL seq SECOND, 'planned' FROM (WITH RECURSIVE n AS"
        " (SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM n WHERE seq < 1000)"
        " SELECT seq FROM n) AS m"
    )
    running(session)
    found = runs.open_runs(session)
    assert (len(found), found[0].state) == (1000, "running")


def test_rows_that_no_scheduler_would_write_stop_none(
    make: Make, session: Session, redis_client: redis.Redis
) -> None:
    for name, cron, zone in (("a b", "@newer 5", "UTC"), ("x/y", "* * * * *", "Mars/Base")):
        session.execute(
            "INSERT INTO job (name, cron, time_zone, next_at) VALUES (%s, %s, %s, '2026-11-21')",
            (name, cron, zone),
        )
        session.execute(
            "INSERT INTO job_run (job, planned_at, state) VALUES (%s, '2026-11-21', 'planned')",
            (name,),
        )
        runs.pause(session, name)
        runs.resume(session, name)
    scheduler = make({"j": "* * * * *"})
    scheduler.look("12:00:00")
    session.execute("DELETE FROM job WHERE name = 'j'")
    scheduler.look("12:00:30")  # it is made again
    scheduler.look("12:01:00")
    assert queued(redis_client) == ["j-20261121T120100Z"]


def test_a_sign_of_life_in_between_keeps_a_run_from_being_given_back(session: Session) -> None:
    running(session)
    (seen,) = runs.open_runs(session)
    running(session, "2026-11-21 12:00:01")
    assert not runs.give_back(session, seen)
    (seen,) = runs.open_runs(session)
    assert runs.give_back(session, seen)
    assert not runs.give_back(session, seen)


def test_runs_that_were_planned_minutes_ago_and_never_began_are_overdue(session: Session) -> None:
    assert runs.overdue(session, 5) == []
    for job, state, minutes in (
        ("j", "planned", 6),
        ("k", "planned", 9),
        ("l", "planned", 4),
        ("m", "running", 9),
        ("n", "skipped", 9),
    ):
        session.execute(
            "INSERT INTO job_run (job, planned_at, state, due_at) VALUES"
            " (%s, UTC_TIMESTAMP() - INTERVAL %s MINUTE, %s, UTC_TIMESTAMP(3))",
            (job, minutes, state),
        )
    assert [run.job for run in runs.overdue(session, 5)] == ["k", "j"]


def test_a_time_that_nobody_plans_tells_that_no_scheduler_runs(
    make: Make, session: Session
) -> None:
    scheduler = make({"j": "* * * * *"})
    now = datetime.now(UTC)
    scheduler.look(now)
    assert runs.is_planned(session)
    session.execute("UPDATE job SET next_at = UTC_TIMESTAMP() - INTERVAL 61 SECOND")
    assert not runs.is_planned(session)
    runs.pause(session, "j")
    assert runs.is_planned(session)


def test_a_commit_of_unknown_outcome_plans_no_time_twice_and_leaves_none_out(
    session: Session, redis_client: redis.Redis, mysql_url: str
) -> None:
    for phase in (Phase.BEFORE, Phase.AFTER):
        session.execute("DELETE FROM job")
        session.execute("DELETE FROM job_run")
        with MySQLProxy.to(mysql_url) as proxy:
            scheduler = SchedulerAt(redis_client, proxy.url(mysql_url), {"j": "* * * * *"})
            scheduler.look("12:00:00")
            rule = proxy.when("commit_other", phase, Deed.CUT)
            with pytest.raises(StoreError):
                scheduler.look("12:01:00")
            assert rule.acted == 1
            scheduler.look("12:01:01")
        assert planned(session) == ["12:01:00"], phase

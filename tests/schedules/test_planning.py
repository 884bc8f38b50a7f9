"""Planning: each time once, however many schedulers look at once, and none forgotten."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from typing import Any

import pytest
import redis

from countersink.database.errors import StoreError
from countersink.database.session import Session
from countersink.schedules import runs
from countersink.schedules.report import LOGGER
from countersink.schedules.rq_worker import RunJob
from tests.schedules.scheduling import SchedulerAt, at, planned, queued, run_row
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.worker.running import Records


@dataclass(frozen=True)
class Plans:
    """Schedulers, and what they have planned and handed over."""

    session: Session
    client: redis.Redis
    mysql_url: str

    def made(self, jobs: dict[str, str], **more: Any) -> SchedulerAt:
        """Start a scheduler."""
        return self.made_at(self.mysql_url, jobs, **more)

    def made_at(self, url: str, jobs: dict[str, str], **more: Any) -> SchedulerAt:
        return SchedulerAt(self.client, url, jobs, **more)

    def planned(self, job: str = "j") -> list[str]:
        return planned(self.session, job)

    def next_at(self, name: str = "j") -> str | None:
        at = runs.jobs(self.session)[name].next_at
        return None if at is None else f"{at:%d %H:%M:%S}"

    def queued(self) -> list[str]:
        return queued(self.client)


@pytest.fixture
def plans(redis_client: redis.Redis, mysql_url: str, session: Session) -> Plans:
    return Plans(session, redis_client, mysql_url)


def test_a_new_installation_has_missed_nothing(plans: Plans) -> None:
    assert not runs.is_planned(plans.session)
    plans.made({"j": "*/10 * * * *", "o": "off"}).look("12:04:30")
    assert plans.planned() == []
    assert plans.next_at() == "21 12:10:00"
    assert (plans.next_at("o"), runs.jobs(plans.session)["o"].cron) == (None, "off")


def test_what_is_due_is_planned_and_handed_over_once(plans: Plans) -> None:
    scheduler = plans.made({"j": "* * * * * *"})
    assert scheduler.look("12:00:00") == 1.0
    for moment in ("12:00:01", "12:00:01", "12:00:04", "12:00:03", "12:00:04"):  # a clock goes back
        scheduler.look(moment)
    assert plans.planned() == ["12:00:01", "12:00:02", "12:00:03", "12:00:04"]
    assert plans.queued() == [f"j-20261121T12000{n}Z" for n in (1, 2, 3, 4)]
    job: Any = RunJob.fetch("j-20261121T120001Z", plans.client, "json")
    assert job.func_name == "countersink.schedules.run_process.perform"
    assert job.args == ["j", "20261121T120001Z", 1, 3600]
    assert job.timeout == 3600
    row = run_row(plans.session, "j", at("12:00:01"))
    assert (row["state"], row["attempts"]) == ("planned", 0)


def test_many_that_look_at_once_plan_each_time_once(plans: Plans) -> None:
    jobs = {f"j{number}": "* * * * * *" for number in range(4)}
    schedulers = [plans.made(jobs) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for second in range(12):
            list(pool.map(methodcaller("look", f"12:00:{second:02d}"), schedulers))
    for job in jobs:
        assert plans.planned(job) == [f"12:00:{second:02d}" for second in range(1, 12)]
    assert len(set(plans.queued())) == 4 * 11


def test_times_missed_for_long_become_the_first_and_those_of_the_last_minute(plans: Plans) -> None:
    scheduler = plans.made({"j": "*/30 * * * * *", "h": "0 * * * *"})
    scheduler.look("12:30:00")
    with Records(LOGGER) as records:
        scheduler.look("16:20:10")
    assert plans.planned() == ["12:30:30", "16:19:30", "16:20:00"]
    assert plans.planned("h") == ["13:00:00"]
    assert plans.next_at("h") == "21 17:00:00"
    assert records.actions().count("missed") == 2


@pytest.mark.parametrize("another", [False, True])
def test_after_the_databases_clock_was_far_ahead_planning_goes_on_at_once(
    plans: Plans, another: bool
) -> None:
    jobs = {"j": "* * * * *"}
    scheduler = plans.made(jobs)
    scheduler.look("12:00:00")
    scheduler.look("14:30:00")
    assert plans.planned() == ["12:01:00", "14:30:00"]
    assert plans.next_at() == "21 14:31:00"
    if another:
        scheduler = plans.made(jobs)
    scheduler.look("12:02:30")
    scheduler.look("12:02:31")
    assert plans.next_at() == "21 12:03:00"
    for moment in ("12:03:00", "14:29:00", "14:30:00", "14:31:00"):
        scheduler.look(moment)
    assert plans.planned() == ["12:01:00", "12:03:00", "12:04:00", "14:29:00",
                                "14:30:00", "14:31:00"]  # fmt: skip


def test_a_changed_expression_makes_no_runs_in_the_past_but_what_the_old_one_missed(
    plans: Plans,
) -> None:
    plans.made({"j": "0 20 * * *"}).look("09:00:00")
    # 8:00 is over, but was not planned when it came
    plans.made({"j": "0 8 * * *"}).look("09:30:00")
    assert plans.planned() == []
    assert plans.next_at() == "22 08:00:00"
    # another zone is another time
    plans.made({"j": "0 8 * * *"}, time_zone="Asia/Kolkata").look("10:00:00")
    assert plans.planned() == []
    assert plans.next_at() == "22 02:30:00"
    plans.made({"j": "0 11 * * *"}).look("10:30:00")
    plans.made({"j": "0 8 * * *"}).look("12:00:00")
    assert plans.planned() == ["11:00:00"]
    assert plans.next_at() == "22 08:00:00"


def test_who_started_last_says_when_a_job_runs_and_all_go_by_it(plans: Plans) -> None:
    old = plans.made({"j": "* * * * *"})
    old.look("12:00:00")
    new = plans.made({"j": "30 * * * *", "n": "* * * * *"})
    new.look("12:00:30")
    for moment in ("12:01:00", "12:02:00"):
        old.look(moment)
        new.look(moment)
    assert plans.planned() == []
    old.look("12:30:00")
    assert plans.planned() == ["12:30:00"]
    assert plans.planned("n") == ["12:01:00", "12:02:00"]  # the old one knows no such job


def test_a_job_that_is_off_or_paused_leaves_nothing_out_that_it_was_to_do(plans: Plans) -> None:
    jobs = {"j": "* * * * *", "k": "* * * * *"}
    plans.made(jobs).look("12:00:00")
    plans.made(jobs).look("12:01:00")
    later = plans.made({"j": "off", "k": "* * * * *"})
    runs.pause(plans.session, "k")
    later.look("12:05:00")
    assert run_row(plans.session, "j", at("12:01:00"))["state"] == "skipped"
    assert run_row(plans.session, "k", at("12:01:00"))["state"] == "planned"
    assert plans.planned("k") == ["12:01:00"]
    runs.resume(plans.session, "k")
    assert plans.next_at("k") is None
    later.look("12:06:30")
    runs.resume(plans.session, "k")  # it is not paused
    assert plans.next_at("k") == "21 12:07:00"
    later.look("12:07:00")
    assert plans.planned("k") == ["12:01:00", "12:07:00"]
    plans.made(jobs).look("12:30:00")
    assert plans.planned() == ["12:01:00"]


def test_a_run_by_hand_is_handed_over_by_the_next_look(plans: Plans) -> None:
    plans.made({"j": "off"}).look(datetime.now(UTC))
    assert runs.add(plans.session, "j") is not None
    assert runs.add(plans.session, "j") is None  # one waits already
    plans.made({"j": "off"}).look(datetime.now(UTC) + timedelta(seconds=5))
    assert len(plans.queued()) == 1


def test_what_redis_has_lost_is_handed_over_again(plans: Plans) -> None:
    scheduler = plans.made({"j": "* * * * *"})
    scheduler.look("12:00:00")
    scheduler.look("12:01:00")
    scheduler.look("12:01:05")
    assert plans.queued() == ["j-20261121T120100Z"]  # it is in hand: not once more
    plans.client.flushall()  # of our own private server
    scheduler.look("12:01:10")
    scheduler.look("12:01:15")
    assert plans.queued() == ["j-20261121T120100Z"]
    plans.client.delete("rq:queue:countersink")  # its hash says queued, but it is in no queue
    scheduler.look("12:01:20")
    assert plans.queued() == ["j-20261121T120100Z"]


def running(session: Session, beat: str = "2026-11-21 12:00:00") -> None:
    session.execute(
        "REPLACE INTO job_run (job, planned_at, state, attempts, holder, heartbeat_at)"
        " VALUES ('j', '2026-11-21 11:00:00', 'running', 1, 'h', %s)",
        (beat,),
    )


def test_a_run_that_was_seen_silent_for_long_is_given_back_and_one_that_beats_is_not(
    plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("countersink.schedules.scheduler.time.monotonic", lambda: now[0])
    scheduler = plans.made({"j": "0 0 1 1 *"})
    running(plans.session)

    def looked(seconds: float) -> str:
        now[0] += seconds
        scheduler.look("12:00:10")  # whatever the database's clock says
        return str(run_row(plans.session, "j", at("11:00:00"))["state"])

    assert [looked(5) for _ in range(5)] == ["running"] * 4 + ["planned"]
    assert plans.queued() == []  # handed over by the next look
    looked(5)
    job: Any = RunJob.fetch(plans.queued()[0], plans.client, "json")
    assert job.args[2] == 2
    for beat in range(12):
        running(plans.session, f"2026-11-21 12:00:{beat:02d}")
        assert looked(5) == "running"
    looked(15)
    assert looked(16) == "running"  # this process stood still: so may all others have


def test_a_sign_of_life_in_between_keeps_a_run_from_being_given_back(session: Session) -> None:
    running(session)
    (seen,) = runs.open_runs(session)
    running(session, "2026-11-21 12:00:01")
    assert not runs.give_back(session, seen)
    (seen,) = runs.open_runs(session)
    assert runs.give_back(session, seen)
    assert not runs.give_back(session, seen)


def test_a_time_that_nobody_plans_tells_that_no_scheduler_runs(plans: Plans) -> None:
    scheduler = plans.made({"j": "* * * * *"})
    now = datetime.now(UTC)
    scheduler.look(now)
    assert runs.is_planned(plans.session)
    plans.session.execute("UPDATE job SET next_at = UTC_TIMESTAMP() - INTERVAL 61 SECOND")
    assert not runs.is_planned(plans.session)
    runs.pause(plans.session, "j")
    assert runs.is_planned(plans.session)


def test_a_commit_of_unknown_outcome_plans_no_time_twice_and_leaves_none_out(plans: Plans) -> None:
    for phase in (Phase.BEFORE, Phase.AFTER):
        plans.session.execute("DELETE FROM job")
        plans.session.execute("DELETE FROM job_run")
        with MySQLProxy.to(plans.mysql_url) as proxy:
            scheduler = plans.made_at(proxy.url(plans.mysql_url), {"j": "* * * * *"})
            scheduler.look("12:00:00")
            rule = proxy.when("commit_other", phase, Deed.CUT)
            with pytest.raises(StoreError):
                scheduler.look("12:01:00")
            assert rule.acted == 1
            scheduler.look("12:01:01")
        assert plans.planned() == ["12:01:00"], phase

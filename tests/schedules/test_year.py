"""A year of schedules by the database's clock, in which schedulers and runs are killed and frozen:
each planned time has one run, which is done once.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
import redis

from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.schedules import runs
from countersink.schedules.options import parse
from countersink.schedules.rq_worker import RunJob
from countersink.schedules.runs import Attempt, Begun
from tests.schedules.scheduling import SchedulerAt, queued
from tests.support.examples import MANY

START = datetime(2026, 3, 27, tzinfo=UTC)
DAYS = 366 if MANY else 3
"""The few cross the night in which the clocks of Europe change."""
ZONES = ("Europe/Berlin", "America/New_York", "America/St_Johns", "Africa/Casablanca")
CRONS = {"night": "30 2 * * *", "twice": "15 */12 * * *", "sunday": "0 4 * * 0"}
JOBS = {f"{name}-{zone.partition('/')[2]}": (name, zone) for zone in ZONES for name in CRONS}
SECOND = timedelta(seconds=1)
SILENT_S = 20
MOST = 50
"""Attempts: this is about what becomes of each, not of runs that die every time."""


@dataclass
class World:
    """Schedulers, runs at work, and the one clock of them all."""

    session: Session
    client: redis.Redis
    schedulers: list[SchedulerAt]
    random: Random
    now: datetime = START
    attempts: int = 0
    at_work: list[tuple[Attempt, datetime]] = field(default_factory=list)
    """Attempts that live, and until when they work."""
    frozen: list[Attempt] = field(default_factory=list)
    done: Counter[tuple[str, datetime]] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)

    def pass_time(self, seconds: float) -> None:
        """Let the clock go on."""
        self.now += seconds * SECOND
        self.session.execute("SET timestamp = %s", (self.now.timestamp(),))

    def look(self, number: int) -> None:
        """So many schedulers look; the others stand still."""
        for one in self.random.sample(self.schedulers, number):
            one.look(self.now)

    def take(self) -> None:
        """Job processes take what is in RQ's queue: runs begin, die at once, or are frozen."""
        for name in queued(self.client):
            self.client.lrem("rq:queue:countersink", 1, name)
            job, planned, number, _ = RunJob.fetch(name, self.client, "json").args
            at = datetime.strptime(planned, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            self.attempts += 1
            attempt = Attempt(job, at, number, f"holder-{self.attempts}")
            begun, _ = runs.begin(self.session, attempt, MOST)
            if begun is not Begun.STARTED:
                self.told[begun.value] += 1
                continue
            ((running,),) = self.session.query(
                "SELECT COUNT(*) FROM job_run WHERE job = %s AND state = 'running'", (job,)
            )
            assert running == 1
            fate = self.random.random()
            if fate < 0.1:
                self.told["killed"] += 1
            elif fate < 0.2:
                self.told["frozen"] += 1
                self.frozen.append(attempt)
            else:
                self.at_work.append((attempt, self.now + self.random.randrange(90) * SECOND))

    def work(self) -> None:
        """Signs of life of the attempts at work; those whose time is over end well."""
        going = []
        for attempt, until in self.at_work:
            if until > self.now:
                assert runs.beat(self.session, attempt)
                going.append((attempt, until))
            else:
                assert runs.finish(self.session, attempt, "done", None, 1)
                self.done[attempt.job, attempt.planned_at] += 1
        self.at_work = going

    def thaw(self) -> None:
        """Frozen attempts go on: the run is another's by now, or still their own."""
        for attempt in self.frozen:
            if not runs.beat(self.session, attempt):
                self.told["thawed too late"] += 1
            elif runs.finish(self.session, attempt, "done", None, 1):
                self.done[attempt.job, attempt.planned_at] += 1
        self.frozen = []

    def settle(self, looks: int) -> None:
        """Let so many looks of a scheduler go by, five seconds each; others look now and then."""
        for _ in range(looks):
            self.pass_time(5)
            self.schedulers[0].look(self.now)
            if self.random.random() < 0.2:
                self.look(1)
            self.work()
            self.take()

    @property
    def dead(self) -> bool:
        """Whether a run is nobody's."""
        ((running,),) = self.session.query("SELECT COUNT(*) FROM job_run WHERE state = 'running'")
        return bool(running > len(self.at_work))


@pytest.fixture
def make(
    mysql_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], World]]:
    """A world of so many schedulers."""
    schedulers: list[SchedulerAt] = []

    def made(number: int) -> World:
        crons = {job: CRONS[name] for job, (name, _) in JOBS.items()}
        zones = {job: zone for job, (_, zone) in JOBS.items()}
        for _ in range(number):
            schedulers.append(
                SchedulerAt(redis_client, mysql_url, crons, time_zone=zones, silent_s=SILENT_S)
            )
        world = World(session, redis_client, schedulers, Random(7))
        clock = "countersink.schedules.scheduler.time.monotonic"
        monkeypatch.setattr(clock, lambda: world.now.timestamp())
        return world

    with connect(mysql_url) as session:
        yield made
    for one in schedulers:
        one.session.close()


def due(name: str, zone: str, end: datetime) -> list[datetime]:
    """The times of a job after the start, up to the end."""
    cron, found, moment = parse(CRONS[name], zone), [], START
    assert cron is not None
    while (at := cron.after(moment)) is not None and at <= end:
        found.append(at)
        moment = at
    return found


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", [3, 1])
def test_each_time_of_the_year_has_one_run_that_is_done_once(
    make: Callable[[int], World], number: int
) -> None:
    world = make(number)
    end = START + timedelta(days=DAYS)
    expected = {(job, at) for job, (name, zone) in JOBS.items() for at in due(name, zone, end)}
    world.pass_time(0)
    world.look(number)
    for moment in sorted({at for _, at in expected}):
        # Not on time: each is planned that is found within a minute.
        world.pass_time((moment - world.now).total_seconds() + world.random.uniform(0, 40))
        world.look(world.random.randint(1, number))
        world.take()
        world.settle(world.random.randint(1, 3))
        if world.random.random() < 0.3:
            world.thaw()
        if world.dead:
            world.settle(7)  # until it was silent for long enough
    while world.session.query("SELECT 1 FROM job_run WHERE state <> 'done' LIMIT 1"):
        world.settle(7)
    world.thaw()
    assert set(world.done) == expected
    assert set(world.done.values()) == {1}
    rows = world.session.query("SELECT job, planned_at, state FROM job_run")
    assert {(job, at.replace(tzinfo=UTC)) for job, at, _ in rows} == expected
    assert world.told["killed"]
    assert world.told["thawed too late"]
    print(f"{len(expected):,} runs, {world.attempts:,} attempts, {dict(world.told)}")

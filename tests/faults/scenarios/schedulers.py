"""Schedulers, job processes and runs that die, are frozen, and are started again at random, with
jobs every second: each is planned once, started once, and done, as long as one of them lives.
"""

import os
import signal
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.schedules.rq_worker import TIME_FORMAT, RunQueue, connect_queue, run_id
from tests.faults.stage import Stage
from tests.support import scheduled
from tests.support.processes import Child
from tests.support.waiting import eventually

TICK, BREAKS = "tick", "breaks"
EVERY_SECOND = "* * * * * *"
SELDOM = "0 0 1 1 *"


QUICK: dict[str, Any] = {"look_every_s": 0.5, "silent_s": 3.0}
"""Of schedulers: a dead run is given back soon."""


class Troupe:
    """The processes of one scenario, and what they leave in the tables."""

    def __init__(self, stage: Stage, session: Session) -> None:
        self.stage = stage
        self.session = session
        self.schedulers: list[Child] = []
        self.workers: list[Child] = []

    def clear(self) -> None:
        """Forget the runs of earlier scenarios."""
        for table in ("job", "job_run"):
            self.session.execute(f"DELETE FROM {table}")
        scheduled.make_table(self.session)

    # -- processes -----------------------------------------------------------------------------

    def scheduler(self, **more: Any) -> Child:
        """Start a scheduler."""
        plan: dict[str, Any] = {
            "mysql_url": self.stage.mysql_url,
            "redis_url": self.stage.redis_server.url,
            "jobs": {TICK: (EVERY_SECOND, 30), BREAKS: (EVERY_SECOND, 30)},
            **QUICK,
        }
        return scheduled.start(self.stage.children, "scheduler", plan | more)

    def jobs(self, **more: Any) -> Child:
        """Start a job process."""
        url = self.stage.redis_server.url
        plan = {"mysql_url": self.stage.mysql_url, "redis_url": url, "jobs_redis_url": url}
        return scheduled.start(self.stage.children, "jobs", plan | more)

    @staticmethod
    def horse_of(child: Child) -> int | None:
        """The process in which a job process runs a job right now, if it does."""
        return next(iter(child.children()), None)

    # -- waiting -------------------------------------------------------------------------------

    def done(self) -> int:
        """How many runs of ``tick`` are done."""
        query = "SELECT COUNT(*) FROM job_run WHERE job = %s AND state = 'done'"
        return int(self.session.query(query, (TICK,))[0][0])

    def wait_runs(self, more: int) -> None:
        """Wait until so many more runs are done."""
        enough = self.done() + more
        eventually(lambda: self.done() >= enough, 60 + 2 * more, message=self.outputs)

    @staticmethod
    def ready(*children: Child) -> None:
        """Wait until these schedulers and job processes are at work."""
        for child in children:
            eventually(partial(_is_ready, child), 60, message=child.output)

    def end(self, *children: Child) -> None:
        """SIGTERM; each must end by itself, in good order. One that is still starting would just
        die of the signal: it is waited for.
        """
        self.ready(*children)
        for child in children:
            child.terminate()
        for child in children:
            status = child.wait(20)
            assert status == 0, f"{child.name} {child.pid}: status {status}\n{child.output()}"

    def settled(self) -> None:
        """Wait until no run is planned or under way."""
        eventually(
            lambda: (
                not self.session.query(
                    "SELECT 1 FROM job_run WHERE state IN ('planned', 'running') LIMIT 1"
                )
            ),
            60,
            message=self.outputs,
        )

    def outputs(self) -> str:
        """The last runs, and what the processes said."""
        rows = self.session.query(
            "SELECT job, planned_at, state, attempts, detail FROM job_run"
            " ORDER BY planned_at DESC LIMIT 12"
        )
        outputs = [f"--- {c.name} {c.pid}\n{c.output()[-3000:]}" for c in self.stage.children]
        return "\n".join([*(str(row) for row in rows), *outputs])


def _is_ready(child: Child) -> bool:
    return '"action": "ready"' in child.output()


def kill(pid: int) -> None:
    """SIGKILL of a process that may have just ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


SECOND = timedelta(seconds=1)


def killed_and_frozen(stage: Stage, strikes: int = 6) -> None:
    """Three schedulers and two job processes; all schedulers but one are killed or frozen."""
    with connect(stage.mysql_url) as session:
        _Deaths(stage, session).play(strikes)


class _Deaths(Troupe):
    """Deaths of schedulers."""

    def play(self, strikes: int) -> None:
        """Play it."""
        self.clear()
        self.workers = [self.jobs(attempts=1), self.jobs(attempts=1)]
        self.schedulers = [self.scheduler() for _ in range(3)]
        self.wait_runs(2)
        for _ in range(strikes):
            self._strike()
        self.end(*self.schedulers)
        self.settled()
        self._late_enqueues()
        self.end(*self.workers)
        self._check()

    def _strike(self) -> None:
        """Two of three stand still or die; the third is enough."""
        first, second = self.stage.random.sample(self.schedulers, 2)
        first.stop()
        self.stage.faults["a scheduler was frozen"] += 1
        second.kill()
        self.stage.faults["a scheduler was killed"] += 1
        self.wait_runs(2)
        first.go_on()
        self.schedulers.remove(second)
        self.schedulers.append(self.scheduler())
        self.wait_runs(1)

    def _late_enqueues(self) -> None:
        """What was frozen for long may do: enqueue runs that are over, or never planned."""
        client = connect_queue(self.stage.redis_server.url, client_name="late")
        queue = RunQueue(client)
        before = scheduled.starts(self.session)
        over = self.session.query(
            "SELECT job, planned_at FROM job_run ORDER BY planned_at DESC LIMIT 6"
        )
        never = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        late = [(job, at.replace(tzinfo=UTC)) for job, at in over] + [(TICK, never)]
        for job, at in late:
            queue.enqueue(job, at, 1, 30)
        eventually(
            lambda: all(_finished(client, run_id(job, at)) for job, at in late),
            60,
            message=self.outputs,
        )
        client.close()
        assert scheduled.starts(self.session) == before

    def _check(self) -> None:
        outputs = self.outputs()
        started = scheduled.starts(self.session)
        assert len(started) == len(set(started)), f"started twice: {started}\n{outputs}"
        for job in (TICK, BREAKS):
            rows = self.session.query(
                "SELECT planned_at, state, attempts FROM job_run WHERE job = %s"
                " ORDER BY planned_at",
                (job,),
            )
            ends = "done" if job == TICK else "failed"
            wrong = [row for row in rows if row[1:] != (ends, 1)]
            assert not wrong, f"{job}: {wrong}\n{outputs}"
            times = [row[0] for row in rows]
            seconds = [times[0] + number * SECOND for number in range(len(times))]
            assert times == seconds, f"{job}: seconds were left out\n{outputs}"
            ours = {at for name, at in map(_planned, started) if name == job}
            assert ours == set(times), f"{job}\n{outputs}"
        print(f"schedulers: {len(started)} runs, each started once")


def _planned(run: str) -> tuple[str, datetime]:
    job, _, text = run.rpartition("-")
    return job, datetime.strptime(text, TIME_FORMAT)  # noqa: DTZ007 (naive, as in the tables)


def _finished(client: Any, name: str) -> bool:
    return client.hget(f"rq:job:{name}", "status") in (b"finished", b"failed")


PATIENT = {"silent_s": 3.0, "beat_every_s": 0.5, "wait_s": 60.0, "attempts": 1000}
"""A dead run is given back soon, no run is skipped for waiting long, and there are as many attempts
as it takes: this is about what becomes of each of them."""


def job_processes_killed(stage: Stage, kills: int = 6) -> None:
    """A job process, a run or both are killed again and again; once Redis is emptied."""
    with connect(stage.mysql_url) as session:
        _jobs_killed(Troupe(stage, session), kills)


def _jobs_killed(troupe: Troupe, kills: int) -> None:
    stage = troupe.stage
    troupe.clear()
    troupe.workers = [troupe.jobs(**PATIENT), troupe.jobs(**PATIENT)]
    # Not BREAKS: with so many attempts its runs never end.
    troupe.schedulers = [troupe.scheduler(jobs={TICK: (EVERY_SECOND, 30)})]
    for number in range(kills):
        troupe.wait_runs(2)
        if number == kills // 2:
            stage.redis.flushall()  # of the stage's private server
            stage.faults["redis was emptied under the scheduler"] += 1
        _strike_jobs(troupe)
    troupe.wait_runs(3)
    troupe.end(*troupe.schedulers)
    # it hands over what is left, and plans nothing more
    troupe.schedulers = [troupe.scheduler(jobs={TICK: (SELDOM, 30)})]
    troupe.ready(*troupe.schedulers)
    troupe.settled()
    wrong = troupe.session.query(
        "SELECT planned_at, state, attempts, detail FROM job_run"
        " WHERE job = %s AND state <> 'done'",
        (TICK,),
    )
    assert not wrong, f"{wrong}\n{troupe.outputs()}"
    attempts = troupe.session.query("SELECT SUM(attempts) FROM job_run WHERE job = %s", (TICK,))
    started = [run for run in scheduled.starts(troupe.session) if run.startswith(TICK)]
    assert len(started) <= attempts[0][0], troupe.outputs()
    troupe.end(*troupe.schedulers, *troupe.workers)


def _strike_jobs(troupe: Troupe) -> None:
    random, faults = troupe.stage.random, troupe.stage.faults
    victim = random.choice(troupe.workers)
    horse = troupe.horse_of(victim)
    if horse is not None and random.random() < 0.5:
        kill(horse)
        faults["a run was killed"] += 1
        return
    victim.kill()
    if horse is not None and random.random() < 0.7:
        kill(horse)  # else it is an orphan, and ends what it has begun
    faults["a job process was killed"] += 1
    troupe.workers.remove(victim)
    troupe.workers.append(troupe.jobs(**PATIENT))

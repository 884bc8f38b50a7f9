"""Schedulers that die, are frozen, and are started again at random, with jobs every second: each
second is planned once and started once, as long as one of them lives.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from countersink.schedules.runner.rq import TIME_FORMAT, RunQueue, connect_queue, run_id
from countersink.store.connection import connect
from tests.faults.stage import Stage
from tests.faults.troupe import BREAKS, TICK, Troupe
from tests.support import scheduled
from tests.support.waiting import eventually

SECOND = timedelta(seconds=1)


def killed_and_frozen(stage: Stage, strikes: int = 6) -> None:
    """Three schedulers and two job processes; all schedulers but one are killed or frozen."""
    with connect(stage.mysql_url) as session:
        _Deaths(stage, session).play(strikes)


def three_minutes(stage: Stage) -> None:
    """The same for three minutes."""
    killed_and_frozen(stage, 60)


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

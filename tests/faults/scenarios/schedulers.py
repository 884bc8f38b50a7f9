"""Schedulers that die or are frozen while they are in charge, with jobs every second.

No run is started twice; none is missing but those planned during a takeover, of which the last is
run; what a deposed scheduler enqueues late does nothing; a job that fails holds up no other.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from countersink.schedules.queue import Runs, connect_queue, planned_time, run_id
from countersink.store.connection import Session, connect
from tests.faults.stage import Stage
from tests.support import scheduled
from tests.support.processes import Child
from tests.support.waiting import eventually

SECOND = timedelta(seconds=1)
TICK, BREAKS = "tick", "breaks"
EVERY_SECOND = "* * * * * *"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a round is.

    Attributes:
        seconds: that the jobs run, in all.
        lease_s, renew_every_s: of the schedulers.
        sweep_every_s: of the one in charge.
        takeover_s: seconds in which another must be in charge.
    """

    seconds: float
    lease_s: float
    renew_every_s: float
    sweep_every_s: float
    takeover_s: float


SHORT = Pace(seconds=9, lease_s=1.5, renew_every_s=0.3, sweep_every_s=2.0, takeover_s=20)
LONG = Pace(seconds=180, lease_s=15.0, renew_every_s=3.0, sweep_every_s=15.0, takeover_s=30)
"""The schedulers as they are by default, for three minutes."""


def killed_and_frozen_in_charge(stage: Stage, pace: Pace = SHORT) -> None:
    """Two schedulers and two job processes: the one in charge is killed, then frozen past its
    lease and woken again.
    """
    with connect(stage.mysql_url) as session:
        _Play(stage, pace, session).run()


def three_minutes(stage: Stage) -> None:
    """The same with the default lease, for three minutes."""
    killed_and_frozen_in_charge(stage, LONG)


class _Play:
    def __init__(self, stage: Stage, pace: Pace, session: Session) -> None:
        self.stage = stage
        self.pace = pace
        self.session = session
        self.schedulers: list[Child] = []
        self.workers: list[Child] = []

    def run(self) -> None:
        for table in ("job", "job_run"):
            self.session.execute(f"DELETE FROM {table}")
        self.session.execute("DELETE FROM lease WHERE name = 'scheduler' OR name LIKE 'job:%'")
        scheduled.make_table(self.session)
        begun = time.monotonic()
        self.workers = [self._jobs(), self._jobs()]
        self.schedulers = [self._scheduler(), self._scheduler()]
        part = self.pace.seconds / 3
        self._wait_runs(since=None, seconds=part)

        killed = self._leader()
        killed.kill()
        self.stage.faults["a scheduler in charge was killed"] += 1
        token = self._next_leader(killed)
        self.schedulers.remove(killed)
        self.schedulers.append(self._scheduler())
        self._wait_runs(since=token, seconds=part)

        frozen = self._leader()
        frozen.stop()
        self.stage.faults["a scheduler in charge was frozen"] += 1
        token = self._next_leader(frozen)
        frozen.go_on()
        self._wait_runs(since=token, seconds=part)

        print(f"schedulers: {time.monotonic() - begun:.0f} s until the end is asked for")
        for child in self.schedulers:
            child.terminate()
        for child in self.schedulers:
            assert child.wait(20) == 0, child.output()
        self._settled()
        self._late_enqueues()
        for child in self.workers:
            child.terminate()
        for child in self.workers:
            assert child.wait(20) == 0, child.output()
        self._check()

    # -- processes -----------------------------------------------------------------------------

    def _scheduler(self) -> Child:
        plan = {
            "mysql_url": self.stage.mysql_url,
            "redis_url": self.stage.redis_server.url,
            "jobs": {TICK: (EVERY_SECOND, 30), BREAKS: (EVERY_SECOND, 30)},
            "lease_s": self.pace.lease_s,
            "renew_every_s": self.pace.renew_every_s,
            "sweep_every_s": self.pace.sweep_every_s,
        }
        return self._start("scheduler", plan)

    def _jobs(self) -> Child:
        url = self.stage.redis_server.url
        return self._start(
            "jobs",
            {"mysql_url": self.stage.mysql_url, "redis_url": url, "jobs_redis_url": url},
        )

    def _start(self, what: str, plan: dict[str, Any]) -> Child:
        return self.stage.children.start(
            [sys.executable, "-m", "tests.support.scheduled", what, json.dumps(plan)], name=what
        )

    def _leader(self) -> Child:
        def find() -> Child | None:
            rows = self.session.query("SELECT holder FROM lease WHERE name = 'scheduler'")
            pid = int(rows[0][0].rsplit("-", 2)[1]) if rows else 0
            return next((child for child in self.schedulers if child.pid == pid), None)

        found = eventually(find, self.pace.takeover_s)
        assert found is not None
        return found

    def _next_leader(self, former: Child) -> int:
        """Wait until another one plans; its token."""
        eventually(
            lambda: self._leader() is not former,
            self.pace.takeover_s,
            message=lambda: "\n".join(child.output() for child in self.schedulers),
        )
        return int(self.session.query("SELECT token FROM lease WHERE name = 'scheduler'")[0][0])

    # -- waiting -------------------------------------------------------------------------------

    def _wait_runs(self, since: int | None, seconds: float) -> None:
        """Wait for the end of the runs of so many seconds, under that token."""
        where = "" if since is None else f"AND token = {since}"
        eventually(
            lambda: (
                self.session.query(
                    "SELECT COUNT(*) FROM job_run WHERE job = %s AND state = 'done' " + where,
                    (TICK,),
                )[0][0]
                >= seconds
            ),
            60 + 2 * seconds,
            message=self._outputs,
        )

    def _settled(self) -> None:
        eventually(
            lambda: (
                not self.session.query(
                    "SELECT 1 FROM job_run WHERE state IN ('planned', 'running') LIMIT 1"
                )
            ),
            60,
            message=self._outputs,
        )

    def _outputs(self) -> str:
        rows = self.session.query(
            "SELECT job, planned_at, token, state, attempts, error FROM job_run"
            " ORDER BY planned_at DESC LIMIT 12"
        )
        outputs = [f"--- {c.name} {c.pid}\n{c.output()[-3000:]}" for c in self.stage.children]
        return "\n".join([*(str(row) for row in rows), *outputs])

    def _late_enqueues(self) -> None:
        """What a deposed scheduler could still do: enqueue runs that are over, or never planned."""
        client = connect_queue(self.stage.redis_server.url, client_name="late")
        runs = Runs(client)
        before = scheduled.starts(self.session)
        over = self.session.query(
            "SELECT job, planned_at FROM job_run ORDER BY planned_at DESC LIMIT 6"
        )
        never = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        late = [(job, at.replace(tzinfo=UTC)) for job, at in over] + [(TICK, never)]
        for job, at in late:
            runs.enqueue(job, at, 1, 30)
        eventually(
            lambda: all(_finished(client, run_id(job, at)) for job, at in late),
            60,
            message=self._outputs,
        )
        client.close()
        assert scheduled.starts(self.session) == before

    # -- the books -----------------------------------------------------------------------------

    def _check(self) -> None:
        outputs = self._outputs()
        started = scheduled.starts(self.session)
        assert len(started) == len(set(started)), f"started twice: {_twice(started)}\n{outputs}"
        for job in (TICK, BREAKS):
            rows = self.session.query(
                "SELECT planned_at, token, state, attempts FROM job_run WHERE job = %s"
                " ORDER BY planned_at",
                (job,),
            )
            ends = "done" if job == TICK else "failed"
            wrong = [row for row in rows if row[2] != ends or row[3] != 1]
            assert not wrong, f"{job}: {wrong}\n{outputs}"
            ours = {at for at in map(_planned, started) if at[0] == job}
            assert ours == {(job, row[0]) for row in rows}, f"{job}\n{outputs}"
            _no_gaps(job, rows, self.pace, outputs)
        missed = sum(_missed(child.output(), TICK) for child in self.stage.children)
        assert missed >= 2, f"the last missed run was planned {missed} times\n{outputs}"
        print(f"schedulers: {len(started)} runs, each started once")


def _no_gaps(job: str, rows: Sequence[tuple[Any, ...]], pace: Pace, outputs: str) -> None:
    """Under one token a run every second; between two a gap of a takeover at most."""
    tokens = [row[1] for row in rows]
    assert tokens == sorted(tokens), f"{job}: a deposed scheduler planned\n{outputs}"
    assert len(set(tokens)) >= 3, f"{job}: fewer takeovers than there were\n{outputs}"
    for before, after in pairwise(rows):
        gap = after[0] - before[0]
        if before[1] == after[1]:
            assert gap == SECOND, f"{job}: {before} is followed by {after}\n{outputs}"
        else:
            assert gap <= timedelta(seconds=pace.takeover_s), f"{before} {after}\n{outputs}"


def _missed(output: str, job: str) -> int:
    """How often a scheduler said that it plans the last run that was missed."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sum(line["action"] == "missed" and line["job"] == job for line in lines)


def _planned(run: str) -> tuple[str, datetime]:
    job, _, text = run.rpartition("-")
    return job, planned_time(text)


def _twice(started: Sequence[str]) -> list[str]:
    return sorted({run for run in started if started.count(run) > 1})


def _finished(client: Any, name: str) -> bool:
    return client.hget(f"rq:job:{name}", "status") in (b"finished", b"failed")

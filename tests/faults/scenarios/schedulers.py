"""Schedulers that die or are frozen while they are in charge, with jobs every second.

No run is started twice; none is missing but those planned during a takeover, of which the last is
run; what a deposed scheduler enqueues late does nothing; a job that fails holds up no other.
"""

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from countersink.schedules.runner.attempts import planned_time
from countersink.schedules.runner.rq import RunQueue, connect_queue, run_id
from countersink.store.connection import connect
from tests.faults.stage import Stage
from tests.faults.troupe import BREAKS, LONG, SHORT, TICK, Pace, Troupe
from tests.support import scheduled
from tests.support.waiting import eventually

SECOND = timedelta(seconds=1)


def killed_and_frozen_in_charge(stage: Stage, pace: Pace = SHORT) -> None:
    """Two schedulers and two job processes: the one in charge is killed, then frozen past its
    lease and woken again.
    """
    with connect(stage.mysql_url) as session:
        _Deaths(stage, pace, session).run()


def three_minutes(stage: Stage) -> None:
    """The same with the default lease, for three minutes."""
    killed_and_frozen_in_charge(stage, LONG)


class _Deaths(Troupe):
    """Deaths of schedulers."""

    def run(self) -> None:
        """Play it."""
        self.clear()
        begun = time.monotonic()
        self.workers = [self.jobs(), self.jobs()]
        self.schedulers = [self.scheduler(), self.scheduler()]
        part = self.pace.seconds / 3
        self.wait_runs(since=None, seconds=part)

        killed = self.leader()
        killed.kill()
        self.stage.faults["a scheduler in charge was killed"] += 1
        token = self.next_leader(killed)
        self.schedulers.remove(killed)
        self.schedulers.append(self.scheduler())
        self.wait_runs(since=token, seconds=part)

        frozen = self.leader()
        frozen.stop()
        self.stage.faults["a scheduler in charge was frozen"] += 1
        token = self.next_leader(frozen)
        frozen.go_on()
        self.wait_runs(since=token, seconds=part)

        print(f"schedulers: {time.monotonic() - begun:.0f} s until the end is asked for")
        self.end(*self.schedulers)
        self.settled()
        self._late_enqueues()
        self.end(*self.workers)
        self._check()

    def _late_enqueues(self) -> None:
        """What a deposed scheduler could still do: enqueue runs that are over, or never planned."""
        client = connect_queue(self.stage.redis_server.url, client_name="late")
        runs = RunQueue(client)
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
            message=self.outputs,
        )
        client.close()
        assert scheduled.starts(self.session) == before

    # -- the books -----------------------------------------------------------------------------

    def _check(self) -> None:
        outputs = self.outputs()
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

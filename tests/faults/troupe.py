"""Schedulers and job processes on a stage, with jobs every second."""

import os
import signal
from contextlib import suppress
from functools import partial
from typing import Any

from countersink.store.connection import Session
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

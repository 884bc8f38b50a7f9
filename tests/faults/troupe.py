"""Schedulers and job processes on a stage, with jobs every second."""

import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countersink.store.connection import Session
from tests.faults.stage import Stage
from tests.support import scheduled
from tests.support.processes import Child
from tests.support.waiting import eventually

TICK, BREAKS = "tick", "breaks"
EVERY_SECOND = "* * * * * *"
SELDOM = "0 0 1 1 *"


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


class Troupe:
    """The processes of one scenario, and what they leave in the tables."""

    def __init__(self, stage: Stage, pace: Pace, session: Session) -> None:
        self.stage = stage
        self.pace = pace
        self.session = session
        self.schedulers: list[Child] = []
        self.workers: list[Child] = []

    def clear(self) -> None:
        """Forget the runs and leases of earlier scenarios."""
        for table in ("job", "job_run"):
            self.session.execute(f"DELETE FROM {table}")
        self.session.execute("DELETE FROM lease WHERE name = 'scheduler' OR name LIKE 'job:%'")
        scheduled.make_table(self.session)

    # -- processes -----------------------------------------------------------------------------

    def scheduler(self, **more: Any) -> Child:
        """Start a scheduler."""
        plan: dict[str, Any] = {
            "mysql_url": self.stage.mysql_url,
            "redis_url": self.stage.redis_server.url,
            "jobs": {TICK: (EVERY_SECOND, 30), BREAKS: (EVERY_SECOND, 30)},
            "lease_s": self.pace.lease_s,
            "renew_every_s": self.pace.renew_every_s,
            "sweep_every_s": self.pace.sweep_every_s,
        }
        return self._start("scheduler", plan | more)

    def jobs(self, **more: Any) -> Child:
        """Start a job process."""
        url = self.stage.redis_server.url
        plan = {"mysql_url": self.stage.mysql_url, "redis_url": url, "jobs_redis_url": url}
        return self._start("jobs", plan | more)

    @staticmethod
    def horse_of(child: Child) -> int | None:
        """The process in which a job process runs a job right now, if it does."""
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        try:
            found = children.read_text().split()
        except OSError:
            return None
        return int(found[0]) if found else None

    def _start(self, what: str, plan: dict[str, Any]) -> Child:
        return self.stage.children.start(
            [sys.executable, "-m", "tests.support.scheduled", what, json.dumps(plan)], name=what
        )

    def leader(self) -> Child:
        """The scheduler in charge."""

        def find() -> Child | None:
            rows = self.session.query("SELECT holder FROM lease WHERE name = 'scheduler'")
            pid = int(rows[0][0].rsplit("-", 2)[1]) if rows else 0
            return next((child for child in self.schedulers if child.pid == pid), None)

        found = eventually(find, self.pace.takeover_s)
        assert found is not None
        return found

    def next_leader(self, former: Child) -> int:
        """Wait until another one plans; its token."""
        eventually(
            lambda: self.leader() is not former,
            self.pace.takeover_s,
            message=lambda: "\n".join(child.output() for child in self.schedulers),
        )
        return int(self.session.query("SELECT token FROM lease WHERE name = 'scheduler'")[0][0])

    # -- waiting -------------------------------------------------------------------------------

    def wait_runs(self, since: int | None, seconds: float) -> None:
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
            message=self.outputs,
        )

    def end(self, *children: Child) -> None:
        """SIGTERM; each must end by itself, in good order."""
        for child in children:
            child.terminate()
        for child in children:
            assert child.wait(20) == 0, child.output()

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
            "SELECT job, planned_at, token, state, attempts, error FROM job_run"
            " ORDER BY planned_at DESC LIMIT 12"
        )
        outputs = [f"--- {c.name} {c.pid}\n{c.output()[-3000:]}" for c in self.stage.children]
        return "\n".join([*(str(row) for row in rows), *outputs])


def kill(pid: int) -> None:
    """SIGKILL of a process that may have just ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

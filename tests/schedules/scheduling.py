"""A planner at a time of the test's choosing, and looks into the tables of runs."""

import json
import sys
from datetime import UTC, datetime
from typing import Any

import redis

from countersink.runtime.log import Log
from countersink.runtime.retry import Outage
from countersink.schedules.cron import parse
from countersink.schedules.history import LEASE
from countersink.schedules.options import SchedulerOptions, Times
from countersink.schedules.report import LOGGER
from countersink.schedules.runner.rq import RunQueue
from countersink.schedules.scheduler.planner import RunPlanner
from countersink.schedules.scheduler.sweep import Sweep
from countersink.store import lease
from countersink.store.connection import Session
from countersink.store.sessions import lease_session
from tests.support.processes import Child, Children
from tests.support.waiting import eventually

EVERY_SECOND = "* * * * * *"
QUICK: dict[str, Any] = {"lease_s": 1.5, "renew_every_s": 0.3, "sweep_every_s": 1.0}
LONG = 60.0
YEARS = 20 * 366 * 86_400.0


def at(text: str) -> datetime:
    """A time of 2026-11-21 in UTC."""
    return datetime.fromisoformat(f"2026-11-21 {text}").replace(tzinfo=UTC)


class LeaderAt:
    """A scheduler in charge, without its processes and threads: who calls says when, by the clock
    of its session on the server.
    """

    def __init__(
        self,
        session: Session,
        client: redis.Redis,
        mysql_url: str,
        jobs: dict[str, str],
        *,
        holder: str = "a-1-x",
        time_zone: str = "UTC",
        **options: Any,
    ) -> None:
        token = lease.acquire(session, LEASE, holder, YEARS)
        assert token is not None
        self.token = token
        self.options = SchedulerOptions(
            mysql_url=mysql_url,
            redis_url="redis://unused",
            jobs={
                name: Times(cron=parse(cron, time_zone), time_zone=time_zone)
                for name, cron in jobs.items()
            },
            **options,
        )
        log = Log(LOGGER, process=holder)
        self.kept = lease_session(mysql_url, idle_seconds=600)
        self.set_clock("12:00:00")
        self.planner = RunPlanner(
            self.kept, RunQueue(client), self.options, holder, token, log, Outage("Redis", log)
        )
        self.sweep = Sweep(self.planner)

    def set_clock(self, text: str) -> None:
        """What the server's clock shows from now on; it stands still there."""
        self.kept().execute("SET timestamp = %s", (at(text).timestamp(),))

    def take_over(self, text: str) -> None:
        """Take over at a time."""
        self.set_clock(text)
        self.planner.take_over()

    def plan(self, text: str, job: str = "j") -> None:
        """The call at a time."""
        self.set_clock(text)
        self.planner.read_clock()
        self.planner.plan_due(job)


def depose(session: Session) -> None:
    """Let the lease run out."""
    session.execute("UPDATE lease SET expires_at = 1 WHERE name = %s", (LEASE,))


def planned(session: Session, job: str = "j") -> list[str]:
    """The planned times of a job's runs."""
    rows = session.query(
        "SELECT planned_at FROM job_run WHERE job = %s ORDER BY planned_at", (job,)
    )
    return [f"{moment:%H:%M:%S}" for (moment,) in rows]


def run_row(session: Session, job: str, moment: datetime) -> dict[str, Any]:
    """A run's row."""
    names = ("state", "attempts", "holder", "row_count", "detail", "error", "token")
    rows = session.query(
        f"SELECT {', '.join(names)} FROM job_run WHERE job = %s AND planned_at = %s",
        (job, moment.replace(tzinfo=None)),
    )
    return dict(zip(names, rows[0], strict=True))


def queued(client: redis.Redis) -> list[str]:
    """The ids in RQ's queue, in order."""
    names: Any = client.lrange("rq:queue:countersink", 0, -1)
    return [name.decode() for name in names]


def scheduler(
    children: Children, redis_url: str, mysql_url: str, trick: str = "", **options: Any
) -> Child:
    """Start a scheduler of a job every second; ``trick``: one of `odd_scheduler`."""
    plan = {
        "mysql_url": mysql_url,
        "redis_url": redis_url,
        "jobs": {"j": (EVERY_SECOND, 60), "o": ("off", 60)},
        **QUICK,
        **options,
    }
    module = "tests.schedules.odd_scheduler" if trick else "tests.support.scheduled"
    return children.start(
        [sys.executable, "-m", module, trick or "scheduler", json.dumps(plan)], name="scheduler"
    )


def lines_of(child: Child) -> list[dict[str, Any]]:
    """What a process logged."""
    return [json.loads(line) for line in child.output().splitlines() if line.startswith("{")]


def said(child: Child) -> list[str]:
    """The actions that a process logged."""
    return [line["action"] for line in lines_of(child)]


def wait_said(child: Child, action: str, times: int = 1) -> None:
    """Wait until a process has logged an action so many times."""
    eventually(lambda: said(child).count(action) >= times, 40, message=child.output)

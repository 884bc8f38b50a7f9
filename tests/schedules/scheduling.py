"""A planner at a time of the test's choosing, and looks into the tables of runs."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import redis

from countersink.database.session import Session
from countersink.database.sessions import brief_session
from countersink.runtime.log import Log
from countersink.schedules.options import SchedulerOptions, Times, parse
from countersink.schedules.report import LOGGER
from countersink.schedules.rq_worker import RunQueue
from countersink.schedules.scheduler import Planner
from tests.support import scheduled
from tests.support.processes import Child, Children
from tests.support.waiting import eventually

EVERY_SECOND = "* * * * * *"
QUICK: dict[str, Any] = {"look_every_s": 0.5, "silent_s": 3.0}


def at(text: str) -> datetime:
    """A time of 2026-11-21 in UTC."""
    return datetime.fromisoformat(f"2026-11-21 {text}").replace(tzinfo=UTC)


class SchedulerAt:
    """What a scheduler does, without its process: who calls says when, by the clock of its session
    on the server.
    """

    def __init__(
        self,
        client: redis.Redis,
        mysql_url: str,
        jobs: Mapping[str, str],
        *,
        time_zone: str | Mapping[str, str] = "UTC",
        **options: Any,
    ) -> None:
        zones = dict.fromkeys(jobs, time_zone) if isinstance(time_zone, str) else time_zone
        self.options = SchedulerOptions(
            mysql_url=mysql_url,
            redis_url="redis://unused",
            jobs={
                name: Times(cron=parse(cron, zones[name]), time_zone=zones[name])
                for name, cron in jobs.items()
            },
            **options,
        )
        self.session = brief_session(mysql_url)
        log = Log(LOGGER, process="a-1-x")
        self.planner = Planner(self.session, RunQueue(client), self.options, log)

    def look(self, moment: str | datetime) -> float:
        """The look at a time, at which the server's clock stands still; what it returns."""
        shown = at(moment) if isinstance(moment, str) else moment
        self.session().execute("SET timestamp = %s", (shown.timestamp(),))
        return self.planner.plan_once()


def planned(session: Session, job: str = "j") -> list[str]:
    """The planned times of a job's runs."""
    rows = session.query(
        "SELECT planned_at FROM job_run WHERE job = %s ORDER BY planned_at", (job,)
    )
    return [f"{moment:%H:%M:%S}" for (moment,) in rows]


def require_no_gap(session: Session, job: str = "j") -> None:
    """A run for each second from the first to the last."""
    rows = session.query(
        "SELECT planned_at FROM job_run WHERE job = %s ORDER BY planned_at", (job,)
    )
    found = [moment for (moment,) in rows]
    assert found == [found[0] + timedelta(seconds=n) for n in range(len(found))]


def run_row(session: Session, job: str, moment: datetime) -> dict[str, Any]:
    """A run's row."""
    names = ("state", "attempts", "holder", "row_count", "detail", "due_at")
    rows = session.query(
        f"SELECT {', '.join(names)} FROM job_run WHERE job = %s AND planned_at = %s",
        (job, moment.replace(tzinfo=None)),
    )
    return dict(zip(names, rows[0], strict=True))


def queued(client: redis.Redis) -> list[str]:
    """The ids in RQ's queue, in order."""
    names: Any = client.lrange("rq:queue:countersink", 0, -1)
    return [name.decode() for name in names]


def scheduler(children: Children, redis_url: str, mysql_url: str, **options: Any) -> Child:
    """Start a scheduler of a job every second."""
    plan = {
        "mysql_url": mysql_url,
        "redis_url": redis_url,
        "jobs": {"j": (EVERY_SECOND, 60), "o": ("off", 60)},
        **QUICK,
        **options,
    }
    return scheduled.start(children, "scheduler", plan)


def lines_of(child: Child) -> list[dict[str, Any]]:
    """What a process logged."""
    return [json.loads(line) for line in child.output().splitlines() if line.startswith("{")]


def said(child: Child) -> list[str]:
    """The actions that a process logged."""
    return [line["action"] for line in lines_of(child)]


def wait_said(child: Child, action: str, times: int = 1) -> None:
    """Wait until a process has logged an action so many times."""
    eventually(lambda: said(child).count(action) >= times, 40, message=child.output)

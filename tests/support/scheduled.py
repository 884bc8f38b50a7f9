"""Jobs for tests of the scheduled processes, and those processes.

Each job writes a row for every start into a table of the test's own, with the id of RQ's job.
"""

import datetime
import os
import time
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

import apscheduler.schedulers.base
from rq import get_current_job

from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.runtime.log import set_up
from countersink.schedules import scheduler as process
from countersink.schedules.errors import JobFailed
from countersink.schedules.job_process import run as run_jobs
from countersink.schedules.jobs import Context, JobOutcome, Kind, Registry
from countersink.schedules.options import JobProcessOptions, SchedulerOptions, Times, parse
from countersink.schedules.scheduler import run as run_scheduler
from tests.support.processes import Child, Children

TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS test_start (id BIGINT AUTO_INCREMENT PRIMARY KEY,"
    " run VARCHAR(100) NOT NULL, pid INT NOT NULL,"
    " at DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), ended DATETIME(3) NULL)"
)
STEPS: Final = "CREATE TABLE test_step (id BIGINT AUTO_INCREMENT PRIMARY KEY, pid INT NOT NULL)"
PAUSE_S: Final = 0.02
PATIENCE_S: Final = 60.0
LOOKS_BEFORE_STEP: Final = 6


def start(children: Children, what: str, plan: Mapping[str, Any]) -> Child:
    """Start a process: a scheduler or jobs."""
    return children.module("scheduled", {"what": what, **plan}, name=what)


def make_table(session: Session) -> None:
    """An empty table of starts."""
    session.execute("DROP TABLE IF EXISTS test_start, test_step")
    session.execute(TABLE)
    session.execute(STEPS)


def starts(session: Session) -> list[str]:
    """The RQ id of each start so far, in order."""
    return [run for (run,) in session.query("SELECT run FROM test_start ORDER BY id")]


def _start(context: Context) -> int:
    """Record a start; how many there are now."""
    with connect(context.mysql_url) as session:
        session.execute(
            "INSERT INTO test_start (run, pid) VALUES (%s, %s)", (get_current_job().id, os.getpid())
        )
        return len(starts(session))


def tick(context: Context) -> JobOutcome:
    """Record the start; nothing else."""
    _start(context)
    return JobOutcome(1, "ticked")


def breaks(context: Context) -> JobOutcome:
    """Record the start, and fail."""
    _start(context)
    # put together, so that a traceback's line of code does not hold it
    raise RuntimeError(" ".join(("it", "broke:", "¡ñandú!", "x" * 3000)))


def finds(context: Context) -> JobOutcome:
    """Record the start, and fail by what was found."""
    _start(context)
    raise JobFailed("one thing differs")


def until_told(context: Context) -> JobOutcome:
    """Record the start, and go on until told to stop."""
    _start(context)
    begun = time.monotonic()
    while not context.stop():
        if time.monotonic() - begun > PATIENCE_S:
            return JobOutcome(0, "nobody said anything")
        time.sleep(PAUSE_S)
    return JobOutcome(7, "told to stop", finished=False)


def steps(context: Context) -> JobOutcome:
    """Record the start, and then a transaction after another one, until told to stop."""
    _start(context)
    with connect(context.mysql_url, read_timeout=PATIENCE_S) as session:
        begun = time.monotonic()
        while not context.stop() and time.monotonic() - begun < 3 * PATIENCE_S:
            session.execute("INSERT INTO test_step (pid) VALUES (%s)", (os.getpid(),))
            time.sleep(PAUSE_S)
    return JobOutcome(0, "told to stop", finished=False)


def deaf(context: Context) -> JobOutcome:
    """Record the start, and go on whatever is said."""
    _start(context)
    time.sleep(PATIENCE_S)
    return JobOutcome(0, "nobody said anything")


def once_deaf(context: Context) -> JobOutcome:
    """The first start goes on for ever; later ones end at once."""
    if _start(context) > 1:
        return JobOutcome(2, "the second time")
    time.sleep(PATIENCE_S)
    return JobOutcome(0, "nobody said anything")


NAMES: Final = ("tick", "breaks", "finds", "until_told", "steps", "deaf", "once_deaf")


def registry() -> Registry:
    """All of them, under their own names."""
    return {
        name: Kind(path=f"tests.support.scheduled:{name}", cron="off", limit_s=60, does="a test")
        for name in NAMES
    }


def scheduler_options(plan: Mapping[str, Any]) -> SchedulerOptions:
    """From JSON: fields of the options, `jobs` as name → [cron, time limit]."""
    fields = dict(plan)
    fields["jobs"] = {
        name: Times(cron=parse(cron), limit_s=limit_s)
        for name, (cron, limit_s) in fields.pop("jobs").items()
    }
    return SchedulerOptions(**fields)


def step_clock(seconds: int) -> None:
    """Let this host's clock, as the scheduler and APScheduler see it, jump after some looks."""
    asked = count()

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            ahead = seconds if next(asked) > LOOKS_BEFORE_STEP else 0
            return datetime.datetime.now(tz) + datetime.timedelta(seconds=ahead)

    for module in (apscheduler.schedulers.base, process):
        vars(module)["datetime"] = Clock


def main(what: str, clock_step: int = 0, **plan: Any) -> int:
    """Run the process, "scheduler" or "jobs", until it is signalled."""
    set_up("json")
    step_clock(clock_step)
    if what == "scheduler":
        return run_scheduler(scheduler_options(plan))
    return run_jobs(JobProcessOptions(**plan), registry=registry())

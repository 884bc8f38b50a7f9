"""Reads runs of jobs: last, next, overdue, failing (three times in a row), totals by state; how
they are shown: ``cli/commands/maintain/job_runs.py``."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from countersink.schedules.report import FAILING_AFTER
from countersink.store.connection import Session

LATE_S: Final = 60
"""Seconds after which a time that nobody has planned tells that no scheduler runs."""
_COLUMNS: Final = "job, planned_at, state, attempts, started_at, ended_at, row_count, detail"


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run. Times are naive UTC; see the comments of the table ``job_run``."""

    job: str
    planned_at: datetime
    state: str
    attempts: int
    started_at: datetime | None
    ended_at: datetime | None
    rows: int | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class NextRun:
    """When a job runs next. Time is naive UTC; None: it is paused, or off."""

    job: str
    at: datetime | None
    cron: str
    time_zone: str
    paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A job that failed three times in a row or more.

    Attributes:
        job: its name.
        times: attempts in a row that failed, of its last runs.
        detail: why the last one did.
        since: when the first of these runs was planned; naive UTC.
    """

    job: str
    times: int
    detail: str | None
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTally:
    """Runs of a job by state, and its last success.

    Attributes:
        runs: by state, of those planned in the last 24 hours.
        last_success: when the last one that was done ended; naive UTC; None if there is none.
    """

    runs: dict[str, int]
    last_success: datetime | None


def last_runs(session: Session, *, job: str | None = None, limit: int = 20) -> list[RunRow]:
    """The runs planned last, the latest first.

    Raises:
        StoreError: MySQL did not do its part.
    """
    where, args = ("", ()) if job is None else ("WHERE job = %s", (job,))
    return _runs(session, f"{where} ORDER BY planned_at DESC, job LIMIT %s", (*args, limit))


def overdue(session: Session, minutes: int) -> list[RunRow]:
    """Runs that were planned more than ``minutes`` ago and have not begun, the earliest first, at
    most 1,000: no job process runs, or none gets them, because Redis cannot be reached.

    Raises:
        StoreError: MySQL did not do its part.
    """
    return _runs(
        session,
        "WHERE state = 'planned' AND planned_at < UTC_TIMESTAMP() - INTERVAL %s MINUTE"
        " ORDER BY planned_at, job LIMIT 1000",
        (minutes,),
    )


def _runs(session: Session, which: str, args: tuple[object, ...]) -> list[RunRow]:
    return [RunRow(*row) for row in session.query(f"SELECT {_COLUMNS} FROM job_run {which}", args)]


def next_runs(session: Session, *, job: str | None = None) -> list[NextRun]:
    """The next run of every job, the soonest first, those that are paused or off at the end."""
    where, args = ("", ()) if job is None else (" WHERE name = %s", (job,))
    rows = session.query(
        "SELECT name, IF(paused, NULL, next_at) AS at, cron, time_zone, paused FROM job"
        f"{where} ORDER BY at IS NULL, at, name",
        args,
    )
    return [NextRun(name, at, cron, zone, bool(paused)) for name, at, cron, zone, paused in rows]


def is_planned(session: Session) -> bool:
    """Whether schedulers plan the jobs: there are some, and no time has come that nobody has
    planned."""
    ((number, late),) = session.query(
        "SELECT COUNT(*), COALESCE(SUM(NOT paused AND"
        " next_at < UTC_TIMESTAMP(3) - INTERVAL %s SECOND), 0) FROM job",
        (LATE_S,),
    )
    return bool(number > 0 and late == 0)


def failing(session: Session, job: str | None = None) -> list[Failing]:
    """The jobs, or this one, that failed three times in a row or more, up to now.

    An attempt counts, whether it failed or its process died: a run of three attempts is enough.
    """
    names = [job] if job else [n for (n,) in session.query("SELECT DISTINCT job FROM job_run")]
    found = []
    for name in names:
        rows = session.query(
            "SELECT state, attempts, detail, planned_at FROM job_run"
            " WHERE job = %s AND state IN ('done', 'failed') ORDER BY planned_at DESC LIMIT %s",
            (name, FAILING_AFTER),
        )
        times, detail, since = 0, None, None
        for state, attempts, said, planned_at in rows:
            if state != "failed":
                break
            times += int(attempts)
            detail = said if since is None else detail
            since = planned_at
        if since is not None and times >= FAILING_AFTER:
            found.append(Failing(job=name, times=times, detail=detail, since=since))
    return sorted(found, key=lambda one: one.job)


def last_done(session: Session, job: str) -> RunRow | None:
    """The last run of a job that ended well; None if there is none."""
    # The inner query reads an index alone, however many runs went wrong since.
    found = _runs(
        session,
        "JOIN (SELECT job, planned_at FROM job_run WHERE job = %s AND state = 'done'"
        " ORDER BY planned_at DESC LIMIT 1) AS last_one USING (job, planned_at)",
        (job,),
    )
    return found[0] if found else None


def last_ended(session: Session, job: str) -> RunRow | None:
    """The last run of a job that ended, well or not; None if there is none."""
    found = _runs(
        session,
        "WHERE job = %s AND state IN ('done', 'failed') ORDER BY planned_at DESC LIMIT 1",
        (job,),
    )
    return found[0] if found else None


def tally(session: Session) -> dict[str, RunTally]:
    """What became of the runs, by job; of all jobs that ever had one and are remembered.

    By index, whatever the number of runs: each job's last day, and its last run that was done.
    """
    names = [str(name) for (name,) in session.query("SELECT DISTINCT job FROM job_run")]
    found = {}
    for name in names:
        rows = session.query(
            "SELECT state, COUNT(*) FROM job_run"
            " WHERE job = %s AND planned_at > UTC_TIMESTAMP() - INTERVAL 1 DAY"
            " AND planned_at <= UTC_TIMESTAMP() GROUP BY state",
            (name,),
        )
        done = last_done(session, name)
        found[name] = RunTally(
            runs={str(state): int(number) for state, number in rows},
            last_success=None if done is None else done.ended_at,
        )
    return found

"""Reads runs of jobs: last, next, overdue, failing (three times in a row), totals by state; how
they are shown: ``cli/commands/maintain/job_runs.py``."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from countersink.schedules.report import FAILING_AFTER
from countersink.store.connection import Session
from countersink.store.sql import NOW_MS

LEASE: Final = "scheduler"
"""The lease of the scheduler in charge."""
TEXT: Final = 1000
"""Characters that ``detail`` and ``error`` of a run hold."""
_COLUMNS: Final = "job, planned_at, state, attempts, started_at, ended_at, row_count, detail, error"


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
    error: str | None


@dataclass(frozen=True, slots=True)
class NextRun:
    """When a job runs next. Time is naive UTC."""

    job: str
    at: datetime
    cron: str
    time_zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A job that failed three times in a row or more.

    Attributes:
        job: its name.
        times: attempts in a row that failed, of its last runs.
        error: the last one.
        since: when the first of these runs was planned; naive UTC.
    """

    job: str
    times: int
    error: str | None
    since: datetime


@dataclass(frozen=True, slots=True)
class InCharge:
    """The scheduler that plans.

    Attributes:
        scheduler: host, process and a random part.
        token: its fencing token.
    """

    scheduler: str
    token: int


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
    """The next run of every job that is not off, the soonest first."""
    where, args = ("", ()) if job is None else ("AND name = %s", (job,))
    rows = session.query(
        "SELECT name, next_at, cron, time_zone FROM job"
        f" WHERE next_at IS NOT NULL {where} ORDER BY next_at, name",
        args,
    )
    return [NextRun(*row) for row in rows]


def failing(session: Session, job: str | None = None) -> list[Failing]:
    """The jobs, or this one, that failed three times in a row or more, up to now.

    An attempt counts, whether it failed or its process died: a run of three attempts is enough.
    """
    names = [job] if job else [n for (n,) in session.query("SELECT DISTINCT job FROM job_run")]
    found = []
    for name in names:
        rows = session.query(
            "SELECT state, attempts, error, planned_at FROM job_run"
            " WHERE job = %s AND state IN ('done', 'failed') ORDER BY planned_at DESC LIMIT %s",
            (name, FAILING_AFTER),
        )
        times, error, since = 0, None, None
        for state, attempts, said, planned_at in rows:
            if state != "failed":
                break
            times += int(attempts)
            error = said if since is None else error
            since = planned_at
        if since is not None and times >= FAILING_AFTER:
            found.append(Failing(job=name, times=times, error=error, since=since))
    return sorted(found, key=lambda one: one.job)


def in_charge(session: Session) -> InCharge | None:
    """The scheduler that holds the lease; None if nobody does."""
    rows = session.query(
        f"SELECT holder, token FROM lease WHERE name = %s AND expires_at > {NOW_MS}", (LEASE,)
    )
    return InCharge(*rows[0]) if rows else None


def last_done(session: Session, job: str) -> RunRow | None:
    """The last run of a job that ended well; None if there is none."""
    # The inner query reads an index alone, however many runs went wrong since.
    found = _runs(
        session,
        "JOIN (SELECT job, planned_at FROM job_run WHERE job = %s AND state = 'done'"
        " ORDER BY planned_at DESC LIMIT 1) AS last_one USING (job, planned_at)",
        (job,),
    )
    # What an earlier attempt failed by is over.
    return replace(found[0], error=None) if found else None


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

"""The scheduler's statements on ``job`` and ``job_run``. Times are naive UTC, as in the tables.

Whatever changes something is called in a transaction that :func:`in_charge` has begun.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from countersink.schedules.errors import Deposed
from countersink.store.connection import Session
from countersink.store.sql import NOW_MS

LEASE: Final = "scheduler"
"""The lease of the scheduler in charge."""
TEXT: Final = 1000
"""Characters that ``detail`` and ``error`` of a run hold."""
_RETRY_DAYS: Final = 2
"""Days after which nobody tries a failed run again."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A row of ``job``.

    Attributes:
        cron: the expression, or ``off``.
        time_zone: of the expression.
        planned_to: see the table.
    """

    cron: str
    time_zone: str
    planned_to: datetime | None


@dataclass(frozen=True, slots=True)
class Stray:
    """A run that is not over.

    Attributes:
        job: its name.
        planned_at: when it was to run.
        state: ``planned``, ``running`` or ``failed``.
        attempts: how often it was started.
        alive: whether a process is at it.
        over_s: seconds since it failed; 0 if it did not.
    """

    job: str
    planned_at: datetime
    state: str
    attempts: int
    alive: bool
    over_s: float


def in_charge(session: Session, holder: str, token: int) -> None:
    """Lock the lease's row, and make sure that it is ours: until the transaction ends nobody else
    gets it.

    Raises:
        Deposed: it is not, or it ran out.
    """
    rows = session.query(
        f"SELECT holder = %s AND token = %s AND expires_at > {NOW_MS}"
        " FROM lease WHERE name = %s FOR UPDATE",
        (holder, token, LEASE),
    )
    if not rows or not rows[0][0]:
        raise Deposed("the lease has another holder, or none")


def clock(session: Session) -> datetime:
    """The database's clock, to the millisecond; aware."""
    now: datetime = session.query("SELECT UTC_TIMESTAMP(3)")[0][0]
    return now.replace(tzinfo=UTC)


def read_job(session: Session, name: str) -> PlannedJob | None:
    """The row of a job; None if there is none."""
    rows = session.query("SELECT cron, time_zone, planned_to FROM job WHERE name = %s", (name,))
    return PlannedJob(*rows[0]) if rows else None


def write_job(
    session: Session,
    name: str,
    job: PlannedJob,
    next_at: datetime | None,
    token: int,
    *,
    new: bool,
) -> None:
    """Make or change the row of a job. ``new``: whether there is none."""
    values = (job.cron, job.time_zone, next_at, job.planned_to, token, name)
    if new:
        session.execute(
            "INSERT INTO job (cron, time_zone, next_at, planned_to, token, name)"
            " VALUES (%s, %s, %s, %s, %s, %s)",
            values,
        )
    else:
        session.execute(
            "UPDATE job SET cron = %s, time_zone = %s, next_at = %s, planned_to = %s, token = %s"
            " WHERE name = %s",
            values,
        )


def drop_jobs(session: Session, names: Collection[str]) -> list[str]:
    """Delete the rows of all jobs but ``names``; whose they were."""
    known = [name for (name,) in session.query("SELECT name FROM job ORDER BY name")]
    gone = [name for name in known if name not in names]
    for name in gone:
        session.execute("DELETE FROM job WHERE name = %s", (name,))
    return gone


def drop_runs(session: Session, active: Collection[str]) -> int:
    """Skip the planned runs of all jobs but the ``active`` ones; how many."""
    found = session.query("SELECT DISTINCT job FROM job_run WHERE state = 'planned'")
    return sum(
        session.execute(
            "UPDATE job_run SET state = 'skipped', ended_at = UTC_TIMESTAMP(3),"
            " detail = 'the job was turned off, or removed, before this run began'"
            " WHERE job = %s AND state = 'planned'",
            (name,),
        )
        for (name,) in found
        if name not in active
    )


def take_back(session: Session, job: str, now: datetime) -> int:
    """Delete the runs of a job that are planned for later than ``now``; how many.

    Those that began stay. What was enqueued of the others finds no row, and does nothing; skipped
    they would keep their times from being planned when they come.
    """
    return session.execute(
        "DELETE FROM job_run WHERE job = %s AND planned_at > %s AND state = 'planned'", (job, now)
    )


def add_run(session: Session, job: str, planned_at: datetime, token: int) -> bool:
    """Plan a run; False if that run is there already."""
    there = session.query(
        "SELECT 1 FROM job_run WHERE job = %s AND planned_at = %s", (job, planned_at)
    )
    if there:
        return False
    session.execute(
        "INSERT INTO job_run (job, planned_at, token, state) VALUES (%s, %s, %s, 'planned')",
        (job, planned_at, token),
    )
    return True


def strays(session: Session, attempts: int) -> list[Stray]:
    """Runs that are planned, or running, or failed with less than ``attempts`` attempts and no
    later run of their job; the earliest first, at most 1,000 of each kind. Not those that failed
    for what they found, which have a detail: it does not pass by itself.
    """
    going = session.query(
        "SELECT r.job, r.planned_at, r.state, r.attempts,"
        f" COALESCE(l.holder = r.holder AND l.expires_at > {NOW_MS}, 0), 0"
        " FROM job_run r LEFT JOIN lease l ON l.name = CONCAT('job:', r.job)"
        " WHERE r.state IN ('planned', 'running') ORDER BY r.planned_at LIMIT 1000"
    )
    failed = session.query(
        "SELECT r.job, r.planned_at, r.state, r.attempts, 0,"
        " TIMESTAMPDIFF(SECOND, r.ended_at, UTC_TIMESTAMP(3))"
        " FROM job_run r WHERE r.state = 'failed' AND r.attempts < %s AND r.detail IS NULL"
        " AND r.planned_at > UTC_TIMESTAMP() - INTERVAL %s DAY"
        " AND NOT EXISTS (SELECT 1 FROM job_run n"
        # not what a wrong clock has dated ahead
        " WHERE n.job = r.job AND n.planned_at > r.planned_at"
        " AND n.planned_at <= UTC_TIMESTAMP() + INTERVAL 1 MINUTE)"
        " ORDER BY r.planned_at LIMIT 1000",
        (attempts, _RETRY_DAYS),
    )
    return [
        Stray(job, planned_at, state, int(tried), bool(alive), float(over_s or 0))
        for job, planned_at, state, tried, alive, over_s in (*going, *failed)
    ]


def give_up(session: Session, stray: Stray, error: str) -> bool:
    """End a run whose process is gone as failed; False if somebody took it over meanwhile."""
    return (
        session.execute(
            "UPDATE job_run SET state = 'failed', ended_at = UTC_TIMESTAMP(3), error = %s"
            " WHERE job = %s AND planned_at = %s AND state = 'running' AND attempts = %s",
            (error[:TEXT], stray.job, stray.planned_at, stray.attempts),
        )
        == 1
    )

"""The rows of the tables ``job`` and ``job_run``, and the statements that change them: plan, begin,
finish, put back, give back and skip a run; write its heartbeat; pause, resume and run a job. Also
what the tables report: last runs, overdue runs, failing jobs, numbers by state. (``jobs/checks.py``
reads them, too, and ``jobs/retention.py`` deletes old runs.)

A process *puts back* its own run, so that it can be started again. A scheduler *gives back* the run
of a process that writes no heartbeats any more.

Schedulers and job processes do not know each other. They need no leader, because each statement
changes a row only if it is still in the state in which it was read. So only one scheduler plans the
run of a time (it advances ``job.next_at``), only one process starts a planned run (it sets the
state to running), and a run that was given back belongs to no process. Times in the tables are
naive UTC, by the database's clock alone. Here they are aware, except in ``RunRow`` and
``FailingJob``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from countersink.database.session import Session
from countersink.database.sql import marks
from countersink.runtime.limits import MAX_AMOUNT

FAILING_AFTER: Final = 3
"""Number of failed attempts in a row from which on a job counts as failing."""
ENDED: Final = ("done", "failed")
"""The states of a run that began and has ended."""
LATE_S: Final = 60
"""Seconds after a planned time. If the time is still not planned then, no scheduler runs."""
TEXT: Final = 1000
"""Most characters in the detail of a run; a longer text is cut."""
STALE_S: Final = 3600
"""Seconds after its planned time at which a run that never began is skipped, if later runs of its
job are planned."""
STALE: Final = "it waited for more than an hour, and later runs of this job are planned"
EXHAUSTED: Final = "its process died before the run was over, in the last of {} attempts"
_MAX_ROWS: Final = MAX_AMOUNT
_JOB: Final = "name, cron, time_zone, paused, next_at"
_RUN: Final = "job, planned_at, state, attempts, started_at, ended_at, row_count, detail"


@dataclass(frozen=True, slots=True)
class JobRow:
    """A scheduled job: a row of the table ``job``.

    Attributes:
        name: the job's name.
        cron: the cron expression, or ``off``.
        time_zone: the time zone of the expression.
        paused: True if the job is paused: no runs are planned then.
        next_at: the next time for which a run is to be planned. None if there is none, or if a
            scheduler has yet to write it.
    """

    name: str
    cron: str
    time_zone: str
    paused: bool
    next_at: datetime | None


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that is running, or that is planned and due.

    Attributes:
        job: the job's name.
        planned_at: the run's planned time.
        state: ``planned`` or ``running``.
        attempts: how often the run was started, without attempts that were stopped.
        holder: the text that identifies the present attempt; empty if the run is planned.
        heartbeat_at: the time of the last heartbeat; None if the run never began.
    """

    job: str
    planned_at: datetime
    state: str
    attempts: int
    holder: str
    heartbeat_at: datetime | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a run. Only one process makes it: the holder of the attempt.

    Attributes:
        job: the job's name.
        planned_at: the run's planned time.
        number: the number of the attempt, from 1. It can start only after ``number - 1`` attempts
            were started; attempts that were stopped do not count.
        holder: a text that identifies the attempt; no other attempt has it.
    """

    job: str
    planned_at: datetime
    number: int
    holder: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run: columns of the table ``job_run``. Times are naive UTC; ``started_at`` is that of the
    last attempt. ``detail`` is the result, or says why the run failed or was skipped."""

    job: str
    planned_at: datetime
    state: str
    attempts: int
    started_at: datetime | None
    ended_at: datetime | None
    rows: int | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class FailingJob:
    """A job whose last attempts failed, three in a row or more.

    Attributes:
        job: the job's name.
        times: number of attempts of all runs that failed since the job's last run that succeeded.
            Runs that were pruned, or are to be tried again, are not included.
        detail: the reason of the last failure.
        since: the planned time of the first failed run that is counted in ``times``, in naive UTC.
    """

    job: str
    times: int
    detail: str | None
    since: datetime


class Begun(Enum):
    """The outcome of :func:`begin`."""

    STARTED = "started"
    """The attempt runs."""
    NOTHING = "nothing"
    """There is no such run, or it is over, or it is not this attempt's turn."""
    BUSY = "busy"
    """Another run of the job is running."""
    STALE = "stale"
    """The run waited for more than an hour, and later runs are planned, so this run was skipped."""
    EXHAUSTED = "exhausted"
    """All attempts of the run were started, and the last one's process died, so the run has
    failed."""


def clock(session: Session) -> datetime:
    """Return the time on the database's clock, in UTC."""
    return _aware(session.query("SELECT UTC_TIMESTAMP(3)")[0][0])


def jobs(session: Session) -> dict[str, JobRow]:
    """Return all scheduled jobs, by name."""
    return {row.name: row for row in _jobs(session)}


def configure(
    session: Session,
    name: str,
    *,
    cron: str,
    time_zone: str,
    upcoming: datetime | None,
) -> JobRow | None:
    """Write a job's expression, time zone and next time. Every scheduler does this when it starts,
    so the values of the scheduler that started last hold. The next time becomes ``upcoming``, but
    the one in the row is kept if it has passed already, so that its run is still planned, or if
    expression and zone are the same. If ``upcoming`` is None, the next time always becomes None; if
    it was not None, the job's planned runs with 0 attempts (stopped ones do not count) are skipped.

    Args:
        session: a session outside a transaction.
        name, cron, time_zone: the values for the job's row.
        upcoming: the next time of the expression; None if there is none, or if the job is off.

    Returns:
        The job as it was before; None if it is new.
    """
    with session.transaction():
        made = session.execute(
            "INSERT INTO job (name, cron, time_zone, next_at) VALUES (%s, %s, %s, %s)"
            " ON DUPLICATE KEY UPDATE name = name",
            (name, cron, time_zone, _naive(upcoming)),
        )
        if made:
            return None
        (before,) = _jobs(session, "WHERE name = %s FOR UPDATE", name)
        same = (before.cron, before.time_zone) == (cron, time_zone)
        due = before.next_at is not None and before.next_at <= clock(session)
        next_at = before.next_at if upcoming is not None and (same or due) else upcoming
        session.execute(
            "UPDATE job SET cron = %s, time_zone = %s, next_at = %s WHERE name = %s",
            (cron, time_zone, _naive(next_at), name),
        )
        if upcoming is None and before.next_at is not None:
            session.execute(
                "UPDATE job_run SET state = 'skipped', ended_at = UTC_TIMESTAMP(3),"
                " detail = 'the job is off'"
                " WHERE job = %s AND state = 'planned' AND attempts = 0",
                (name,),
            )
    return before


def claim(session: Session, job: JobRow, following: datetime | None) -> bool:
    """Plan the run for the time ``job.next_at``, and write ``following`` as the job's next time.
    Return False, and change nothing, if the job is paused or its row has changed since ``job`` was
    read.

    If a run of that time exists already, for example because the database's clock was set back,
    only the next time is written."""
    with session.transaction():
        if not plan_next(session, job, following):
            return False
        session.execute(
            "INSERT INTO job_run (job, planned_at, state) VALUES (%s, %s, 'planned')"
            " ON DUPLICATE KEY UPDATE job = job",
            (job.name, _naive(job.next_at)),
        )
    return True


def plan_next(session: Session, job: JobRow, to: datetime | None) -> bool:
    """Write ``to`` as the next time of a job. Return False, and change nothing, if the job is
    paused or its row has changed since ``job`` was read."""
    changed = session.execute(
        "UPDATE job SET next_at = %s WHERE name = %s AND next_at <=> %s AND cron = %s"
        " AND time_zone = %s AND NOT paused",
        (_naive(to), job.name, _naive(job.next_at), job.cron, job.time_zone),
    )
    return changed == 1


def open_runs(session: Session, *, running: str | None = None) -> list[OpenRun]:
    """Return the runs that are running, then the planned runs that are due, each in the order of
    their planned times. At most 1,000 runs are returned. If ``running`` names a job, return only
    the runs of this job that are running."""
    which = (
        "state = 'running'"
        " OR (state = 'planned' AND (due_at IS NULL OR due_at <= UTC_TIMESTAMP(3)))"
    )
    args: tuple[object, ...] = ()
    if running is not None:
        which, args = "state = 'running' AND job = %s", (running,)
    rows = session.query(
        "SELECT job, planned_at, state, attempts, COALESCE(holder, ''), heartbeat_at FROM job_run"
        f" WHERE {which} ORDER BY state = 'running' DESC, planned_at, job LIMIT 1000",
        args,
    )
    return [
        OpenRun(job, _aware(at), state, int(attempts), holder, beat and _aware(beat))
        for job, at, state, attempts, holder, beat in rows
    ]


def give_back(session: Session, run: OpenRun) -> bool:
    """Let a run be started again whose process writes no heartbeats; the attempt counts. Return
    False, and change nothing, if it ended, was put back or had a heartbeat since it was read."""
    changed = session.execute(
        "UPDATE job_run SET state = 'planned', holder = NULL, due_at = NULL"
        " WHERE job = %s AND planned_at = %s AND state = 'running' AND holder = %s"
        " AND heartbeat_at = %s",
        (run.job, _naive(run.planned_at), run.holder, _naive(run.heartbeat_at)),
    )
    return changed == 1


def begin(session: Session, attempt: Attempt, most: int) -> tuple[Begun, OpenRun | None]:
    """Start an attempt, or end its run, or do nothing: :class:`Begun` lists the outcomes. Return
    the outcome and, for ``BUSY``, the other run of the job that is running; else None.

    Args:
        session: a session outside a transaction.
        attempt: the attempt to start. It starts only if it is the next one of a planned run.
        most: how often a run may be started. At a later attempt the run fails: ``EXHAUSTED``.

    Raises:
        StoreError: it is unknown whether the attempt was started. Call this again to find out.
    """
    with session.transaction():
        # Processes that start runs of a job take turns: at most one run is running.
        session.query("SELECT 1 FROM job WHERE name = %s FOR UPDATE", (attempt.job,))
        rows = session.query(
            "SELECT state, attempts, COALESCE(holder, '') FROM job_run"
            " WHERE job = %s AND planned_at = %s FOR UPDATE",
            _primary_key(attempt),
        )
        if rows and (rows[0][0], rows[0][2]) == ("running", attempt.holder):
            return Begun.STARTED, None
        if not rows or tuple(rows[0][:2]) != ("planned", attempt.number - 1):
            return Begun.NOTHING, None
        if attempt.number > most:
            _end_planned(session, attempt, "failed", EXHAUSTED.format(most))
            return Begun.EXHAUSTED, None
        if attempt.number == 1 and _is_stale(session, attempt):
            _end_planned(session, attempt, "skipped", STALE)
            return Begun.STALE, None
        if others := open_runs(session, running=attempt.job):
            return Begun.BUSY, others[0]
        session.execute(
            "UPDATE job_run SET state = 'running', attempts = %s, holder = %s,"
            " started_at = UTC_TIMESTAMP(3), heartbeat_at = UTC_TIMESTAMP(3), ended_at = NULL,"
            " row_count = NULL, detail = NULL WHERE job = %s AND planned_at = %s",
            (attempt.number, attempt.holder, *_primary_key(attempt)),
        )
    return Begun.STARTED, None


def beat(session: Session, attempt: Attempt) -> bool:
    """Write a heartbeat. Returns False if the run does not belong to this attempt any more."""
    return _change(session, attempt, "heartbeat_at = UTC_TIMESTAMP(3)")


def finish(
    session: Session, attempt: Attempt, state: str, detail: str | None, rows: int | None = None
) -> bool:
    """End the run of an attempt, with the state ``done`` or ``failed``, and the text and the number
    of rows for its row. Return False, and change nothing, if the run is not this attempt's."""
    number = None if rows is None else max(-_MAX_ROWS, min(rows, _MAX_ROWS))
    return _change(
        session,
        attempt,
        "state = %s, ended_at = UTC_TIMESTAMP(3), detail = %s, row_count = %s",
        state,
        _stored(detail),
        number,
    )


def put_back(
    session: Session,
    attempt: Attempt,
    detail: str | None,
    *,
    spent: bool,
    pause_s: float | None = None,
) -> bool:
    """Let the run of an attempt be started again. Return False, and change nothing, if the run does
    not belong to this attempt any more.

    Args:
        session: a session outside a transaction.
        attempt: the attempt that was started.
        detail: what was done so far, or the reason of the failure.
        spent: True if the attempt failed: it counts as one of the run's attempts. False if it was
            stopped: it does not count.
        pause_s: seconds before the run may be started again; None for no pause.
    """
    return _change(
        session,
        attempt,
        "state = 'planned', attempts = %s, holder = NULL, detail = %s,"
        " due_at = UTC_TIMESTAMP(3) + INTERVAL %s MICROSECOND",
        attempt.number if spent else attempt.number - 1,
        _stored(detail),
        None if pause_s is None else round(pause_s * 1e6),
    )


def skip(session: Session, attempt: Attempt, reason: str) -> bool:
    """Skip the run of an attempt that has not begun. Return False, and change nothing, if the
    attempt has begun or the run is over."""
    return _end_planned(session, attempt, "skipped", reason)


def pause(session: Session, name: str) -> None:
    """Let schedulers plan no runs of a job until it is resumed. Runs planned before still start."""
    session.execute("UPDATE job SET paused = 1 WHERE name = %s", (name,))


def resume(session: Session, name: str) -> None:
    """Let runs of a paused job be planned again. A scheduler then writes the job's next time, and
    plans runs from that time on. A job that is not paused stays as it is."""
    session.execute("UPDATE job SET paused = 0, next_at = NULL WHERE name = %s AND paused", (name,))


def add(session: Session, name: str) -> datetime | None:
    """Plan a run of a job for now, and return its planned time. Return None, and plan nothing, if
    the job has a planned run (also one that is to be tried again), or any run of the present
    second. Raises ValueError if there is no such job."""
    with session.transaction():
        ((now,),) = session.query(
            "SELECT UTC_TIMESTAMP() FROM job WHERE name = %s FOR UPDATE", (name,)
        )
        if session.query(
            "SELECT 1 FROM job_run WHERE job = %s AND (state = 'planned' OR planned_at = %s)"
            " LIMIT 1",
            (name, now),
        ):
            return None
        session.execute(
            "INSERT INTO job_run (job, planned_at, state) VALUES (%s, %s, 'planned')", (name, now)
        )
    return _aware(now)


def last_runs(
    session: Session, *, job: str | None = None, states: Sequence[str] = (), limit: int = 20
) -> list[RunRow]:
    """Return the runs with the latest planned times, the latest first.

    Args:
        session: a session outside a transaction.
        job: return only runs of this job; None for all jobs.
        states: return only runs in these states; empty for all states.
        limit: maximum number of runs to return.
    """
    conditions = ["job = %s"] if job is not None else []
    conditions += [f"state IN ({marks(states)})"] if states else []
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    values = [*([] if job is None else [job]), *states, limit]
    return _runs(session, f"{where}ORDER BY planned_at DESC, job LIMIT %s", *values)


def overdue(session: Session, minutes: int) -> list[RunRow]:
    """Return the runs that were planned for more than ``minutes`` ago and are still not running:
    they never began, or are to be started again. The earliest come first; at most 1,000 are
    returned. Mostly no job process runs then, or runs do not reach it through Redis."""
    return _runs(
        session,
        "WHERE state = 'planned' AND planned_at < UTC_TIMESTAMP() - INTERVAL %s MINUTE"
        " ORDER BY planned_at, job LIMIT 1000",
        minutes,
    )


def is_planned(session: Session) -> bool:
    """Return whether a scheduler is planning the jobs. Return False if there are no jobs, or if the
    next time of a job that is not paused is more than ``LATE_S`` seconds ago."""
    ((number, late),) = session.query(
        "SELECT COUNT(*), COALESCE(SUM(NOT paused AND"
        " next_at < UTC_TIMESTAMP(3) - INTERVAL %s SECOND), 0) FROM job",
        (LATE_S,),
    )
    return bool(number > 0 and late == 0)


def failing(session: Session) -> list[FailingJob]:
    """Return the jobs whose last attempts failed, three or more in a row, ordered by name. The
    three attempts can be of one run. An attempt whose process died counts as failed. Attempts of a
    run that is still to be tried again do not count."""
    rows = session.query(
        "SELECT job, SUM(attempts), MIN(planned_at) FROM job_run"
        " LEFT JOIN (SELECT job, MAX(planned_at) AS at FROM job_run WHERE state = 'done'"
        " GROUP BY job) AS done USING (job)"
        " WHERE state = 'failed' AND (at IS NULL OR planned_at > at)"
        " GROUP BY job HAVING SUM(attempts) >= %s ORDER BY job",
        (FAILING_AFTER,),
    )
    found = []
    for name, times, since in rows:
        (last,) = last_runs(session, job=name, states=("failed",), limit=1)
        found.append(FailingJob(name, int(times), last.detail, since))
    return found


def tally(session: Session) -> dict[str, dict[str, int]]:
    """Return the numbers of runs by job and state. Only runs planned for the last 24 hours are
    counted. A job that has only older runs is included, with an empty dict."""
    found: dict[str, dict[str, int]] = {}
    for name, state, number in session.query(
        "SELECT job, state, COALESCE(SUM(planned_at > UTC_TIMESTAMP() - INTERVAL 1 DAY"
        " AND planned_at <= UTC_TIMESTAMP()), 0) FROM job_run GROUP BY job, state"
    ):
        by_state = found.setdefault(name, {})
        if number:
            by_state[state] = int(number)
    return found


def _runs(session: Session, which: str, *args: object) -> list[RunRow]:
    return [RunRow(*row) for row in session.query(f"SELECT {_RUN} FROM job_run {which}", args)]


def _jobs(session: Session, where: str = "", *args: object) -> list[JobRow]:
    rows = session.query(f"SELECT {_JOB} FROM job {where}", args)
    return [
        JobRow(name, cron, time_zone, bool(paused), at and _aware(at))
        for name, cron, time_zone, paused, at in rows
    ]


def _change(session: Session, attempt: Attempt, change: str, *values: object) -> bool:
    changed = session.execute(
        f"UPDATE job_run SET {change}"
        " WHERE job = %s AND planned_at = %s AND state = 'running' AND holder = %s",
        (*values, *_primary_key(attempt), attempt.holder),
    )
    return changed == 1


def _end_planned(session: Session, attempt: Attempt, state: str, detail: str) -> bool:
    changed = session.execute(
        "UPDATE job_run SET state = %s, ended_at = UTC_TIMESTAMP(3), detail = %s"
        " WHERE job = %s AND planned_at = %s AND state = 'planned' AND attempts = %s",
        (state, _stored(detail), *_primary_key(attempt), attempt.number - 1),
    )
    return changed == 1


def _is_stale(session: Session, attempt: Attempt) -> bool:
    rows = session.query(
        "SELECT 1 FROM job_run WHERE job = %s AND planned_at > %s"
        " AND %s < UTC_TIMESTAMP() - INTERVAL %s SECOND LIMIT 1",
        (*_primary_key(attempt), _naive(attempt.planned_at), STALE_S),
    )
    return bool(rows)


def _primary_key(attempt: Attempt) -> tuple[str, datetime | None]:
    return attempt.job, _naive(attempt.planned_at)


def _stored(text: str | None) -> str | None:
    """Return ``text`` as its column can store it: at most ``TEXT`` characters, with ``?`` for
    characters that UTF-8 cannot encode, and without NUL. None stays None."""
    if text is None:
        return None
    clean = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
    return clean if len(clean) <= TEXT else f"{clean[: TEXT - 1]}…"


def _aware(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC)


def _naive(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC).replace(tzinfo=None)

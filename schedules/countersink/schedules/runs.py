"""Rows of ``job`` and ``job_run``, with every statement that changes them: claim a planned time,
begin, beat, finish, put back and give back a run; pause, resume and run a job; skip a run that
waited for ``STALE_S`` seconds. Reports: last runs, overdue runs, failing jobs (``FAILING_AFTER``),
totals by state.

Schedulers and job processes are equal and know nothing of each other. Each statement changes a row
only in the state in which it was read: advancing ``job.next_at`` plans that time, setting a planned
run to running starts it, and a run that was given back belongs to no process. Times are naive UTC
in the tables, by the database's clock alone, and aware here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from itertools import takewhile
from typing import Final

from countersink.database.session import Session
from countersink.database.sql import marks
from countersink.runtime.limits import MAX_AMOUNT

FAILING_AFTER: Final = 3
"""Failed attempts in a row from which on a job counts as failing."""
ENDED: Final = ("done", "failed")
"""States of a run that began and ended."""
LATE_S: Final = 60
"""Seconds after which an unplanned time means that no scheduler runs."""
TEXT: Final = 1000
"""Characters of the detail of a run."""
STALE_S: Final = 3600
"""Seconds after which a run that never began is skipped if its job has later runs."""
STALE: Final = "it waited for more than an hour, and later runs of this job are planned"
EXHAUSTED: Final = "its process died before the run was over, in the last of {} attempts"
_MAX_ROWS: Final = MAX_AMOUNT
_JOB: Final = "name, cron, time_zone, paused, next_at"
_RUN: Final = "job, planned_at, state, attempts, started_at, ended_at, row_count, detail"


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job.

    Attributes:
        name: of the job.
        cron: the expression, or ``off``.
        time_zone: of the expression.
        paused: nothing is planned until it is resumed.
        next_at: the next time to be planned; None: there is none, or a scheduler has to set it.
    """

    name: str
    cron: str
    time_zone: str
    paused: bool
    next_at: datetime | None


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that is planned and due, or running.

    Attributes:
        job: its name.
        planned_at: its planned time.
        state: ``planned`` or ``running``.
        attempts: number of starts.
        holder: the attempt's text, of the present or last attempt; empty: none.
        heartbeat_at: the last sign of life of a running one.
    """

    job: str
    planned_at: datetime
    state: str
    attempts: int
    holder: str
    heartbeat_at: datetime | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a run, and its holder.

    Attributes:
        job: its name.
        planned_at: its planned time.
        number: from 1; it starts only after ``number - 1`` started attempts.
        holder: a text that no other attempt uses.
    """

    job: str
    planned_at: datetime
    number: int
    holder: str


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
class FailingJob:
    """A job that failed three times in a row or more.

    Attributes:
        job: its name.
        times: failed attempts in a row, of its last runs.
        detail: the reason of the last failure.
        since: when the first of these runs was planned; naive UTC.
    """

    job: str
    times: int
    detail: str | None
    since: datetime


class Begun(Enum):
    """Outcome of the attempt to begin."""

    STARTED = "started"
    """The attempt runs."""
    NOTHING = "nothing"
    """There is no such run, it is over, or another attempt was made or is to be made."""
    BUSY = "busy"
    """Another run of the job is running."""
    STALE = "stale"
    """The run waited for more than an hour, and later runs are planned: it was skipped."""
    EXHAUSTED = "exhausted"
    """All attempts of the run were started, and the process of the last one died: it has failed."""


def clock(session: Session) -> datetime:
    """The time on the database's clock."""
    return _aware(session.query("SELECT UTC_TIMESTAMP(3)")[0][0])


def jobs(session: Session) -> dict[str, JobRow]:
    """All jobs by name."""
    return {row.name: row for row in _jobs(session)}


def configure(
    session: Session,
    name: str,
    *,
    cron: str,
    time_zone: str,
    upcoming: datetime | None,
) -> JobRow | None:
    """Write the times of a job; the scheduler that starts last wins. A time that is due stays due.

    Args:
        session: outside a transaction.
        name, cron, time_zone: of the job.
        upcoming: the next time of this expression; None: there is none, or it is off.

    Returns:
        The job before; None: it is new.
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
    """Plan the run of ``job.next_at``, and advance that; False: the row has changed.

    A time that was planned before, since the database's clock was set back, is only advanced.
    """
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
    """Write another next time; False: the row has changed."""
    changed = session.execute(
        "UPDATE job SET next_at = %s WHERE name = %s AND next_at <=> %s AND cron = %s"
        " AND time_zone = %s AND NOT paused",
        (_naive(to), job.name, _naive(job.next_at), job.cron, job.time_zone),
    )
    return changed == 1


def open_runs(session: Session, *, running: str | None = None) -> list[OpenRun]:
    """The running runs, and the planned runs that are due, the earliest first, at most 1,000; if
    ``running`` names a job, only its running runs.
    """
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
    """Let a silent run be started again; False: it has given a sign of life."""
    changed = session.execute(
        "UPDATE job_run SET state = 'planned', holder = NULL, due_at = NULL"
        " WHERE job = %s AND planned_at = %s AND state = 'running' AND holder = %s"
        " AND heartbeat_at = %s",
        (run.job, _naive(run.planned_at), run.holder, _naive(run.heartbeat_at)),
    )
    return changed == 1


def begin(session: Session, attempt: Attempt, most: int) -> tuple[Begun, OpenRun | None]:
    """Start the attempt, if it is its turn; returns the outcome, and another run of the job that is
    running.

    Args:
        session: outside a transaction.
        attempt: to start.
        most: starts of a run at most.

    Raises:
        StoreError: unknown whether it was started; a repeated call finds out.
    """
    with session.transaction():
        # Processes that start runs of a job take turns: at most one run is running.
        session.query("SELECT 1 FROM job WHERE name = %s FOR UPDATE", (attempt.job,))
        rows = session.query(
            "SELECT state, attempts, COALESCE(holder, '') FROM job_run"
            " WHERE job = %s AND planned_at = %s FOR UPDATE",
            _place(attempt),
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
            (attempt.number, attempt.holder, *_place(attempt)),
        )
    return Begun.STARTED, None


def beat(session: Session, attempt: Attempt) -> bool:
    """Write a sign of life; False: the run is not this attempt's any more."""
    return _change(session, attempt, "heartbeat_at = UTC_TIMESTAMP(3)")


def finish(
    session: Session, attempt: Attempt, state: str, detail: str | None, rows: int | None = None
) -> bool:
    """Write the result of the attempt, ``done`` or ``failed``; False: the run is not this
    attempt's.
    """
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
    """Let a run be started again; False: the run is not this attempt's.

    Args:
        session: outside a transaction.
        attempt: that was started.
        detail: the work so far, or the reason of the failure.
        spent: whether the attempt counts: it failed, and was not stopped.
        pause_s: seconds from now on in which the run is not started; None: no pause.
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
    """Skip a run that has not begun; False: it has."""
    return _end_planned(session, attempt, "skipped", reason)


def pause(session: Session, name: str) -> None:
    """Stop planning a job until it is resumed."""
    session.execute("UPDATE job SET paused = 1 WHERE name = %s", (name,))


def resume(session: Session, name: str) -> None:
    """Plan a paused job again, from its next time on, which a scheduler sets."""
    session.execute("UPDATE job SET paused = 0, next_at = NULL WHERE name = %s AND paused", (name,))


def add(session: Session, name: str) -> datetime | None:
    """Plan a run of a job for now; returns its planned time, or None if a run waits already."""
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
    """The runs planned last, the latest first.

    Args:
        session: outside a transaction.
        job: only this job's.
        states: only in these states.
        limit: number of runs at most.
    """
    conditions = ["job = %s"] if job is not None else []
    conditions += [f"state IN ({marks(states)})"] if states else []
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    values = [*([] if job is None else [job]), *states, limit]
    return _runs(session, f"{where}ORDER BY planned_at DESC, job LIMIT %s", *values)


def overdue(session: Session, minutes: int) -> list[RunRow]:
    """Runs planned more than ``minutes`` ago that have not begun, the earliest first, at most
    1,000: no job process runs, or none gets them, because Redis cannot be reached.
    """
    return _runs(
        session,
        "WHERE state = 'planned' AND planned_at < UTC_TIMESTAMP() - INTERVAL %s MINUTE"
        " ORDER BY planned_at, job LIMIT 1000",
        minutes,
    )


def is_planned(session: Session) -> bool:
    """Whether schedulers plan the jobs: jobs exist, and no time passed unplanned."""
    ((number, late),) = session.query(
        "SELECT COUNT(*), COALESCE(SUM(NOT paused AND"
        " next_at < UTC_TIMESTAMP(3) - INTERVAL %s SECOND), 0) FROM job",
        (LATE_S,),
    )
    return bool(number > 0 and late == 0)


def failing(session: Session, job: str | None = None) -> list[FailingJob]:
    """The jobs, or this job, whose last attempts failed, three or more in a row; an attempt also
    counts if its process died: a run of three attempts is enough.
    """
    names = [job] if job else [n for (n,) in session.query("SELECT DISTINCT job FROM job_run")]
    found = []
    for name in sorted(names):
        ended = last_runs(session, job=name, states=ENDED, limit=FAILING_AFTER)
        failed = list(takewhile(lambda run: run.state == "failed", ended))
        times = sum(run.attempts for run in failed)
        if times >= FAILING_AFTER:
            found.append(FailingJob(name, times, failed[0].detail, failed[-1].planned_at))
    return found


def tally(session: Session) -> dict[str, dict[str, int]]:
    """The runs planned in the last 24 hours, by job and state; for all jobs that have runs."""
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
        (*values, *_place(attempt), attempt.holder),
    )
    return changed == 1


def _end_planned(session: Session, attempt: Attempt, state: str, detail: str) -> bool:
    changed = session.execute(
        "UPDATE job_run SET state = %s, ended_at = UTC_TIMESTAMP(3), detail = %s"
        " WHERE job = %s AND planned_at = %s AND state = 'planned' AND attempts = %s",
        (state, _stored(detail), *_place(attempt), attempt.number - 1),
    )
    return changed == 1


def _is_stale(session: Session, attempt: Attempt) -> bool:
    rows = session.query(
        "SELECT 1 FROM job_run WHERE job = %s AND planned_at > %s"
        " AND %s < UTC_TIMESTAMP() - INTERVAL %s SECOND LIMIT 1",
        (*_place(attempt), _naive(attempt.planned_at), STALE_S),
    )
    return bool(rows)


def _place(attempt: Attempt) -> tuple[str, datetime | None]:
    return attempt.job, _naive(attempt.planned_at)


def _stored(text: str | None) -> str | None:
    """``text`` for its column: shortened, without characters that UTF-8 cannot encode."""
    if text is None:
        return None
    clean = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
    return clean if len(clean) <= TEXT else f"{clean[: TEXT - 1]}…"


def _aware(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC)


def _naive(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC).replace(tzinfo=None)

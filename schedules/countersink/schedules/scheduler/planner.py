"""Plans runs that are due, once each: which missed runs are planned late or left out (``RECENT``),
what a clock set back does, the SQL of ``job`` and ``job_run``, and log lines.

A run is planned by a row in ``job_run`` that is written in one transaction with a lock on the
lease's row and a check of it: a scheduler that was frozen, and wakes after another has taken over,
plans nothing. After the COMMIT the run is enqueued; whatever is lost between the two, or in Redis
later, :mod:`countersink.schedules.scheduler.sweep` finds in the table. Times in the tables are
naive UTC.

Which runs are planned follows from ``planned_to`` in the job's row, and from the database's clock,
read in that transaction: the clocks of the hosts have no say. ``planned_to`` never goes back, but
where the database's own clock did: more than a minute ahead of it, it is set to the clock, or no
run would be planned until that time comes again. Nothing is planned twice: a run is there, or not.
"""

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from countersink.runtime.log import Log
from countersink.runtime.retry import Outage
from countersink.schedules.cron import OFF, Cron, parse
from countersink.schedules.errors import Deposed
from countersink.schedules.history import LEASE
from countersink.schedules.options import SchedulerOptions, Times
from countersink.schedules.report import ScheduleAction
from countersink.schedules.runner.rq import RunQueue
from countersink.store.connection import Session, rerun
from countersink.store.sessions import KeptSession
from countersink.store.sql import NOW_MS
from countersink.stream.errors import StreamError

RECENT: Final = timedelta(seconds=60)
"""How late a run may be planned, by a scheduler that stayed in charge, next to those after it."""
AHEAD: Final = timedelta(seconds=60)
"""How far ahead of the database's clock ``planned_to`` may be."""

Result = TypeVar("Result")


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
class _Known:
    """What this process knows of a job without asking.

    Attributes:
        planned_to: see the table.
        upcoming: the first time after it; None if there is none.
    """

    planned_to: datetime
    upcoming: datetime | None


@dataclass(slots=True)
class RunPlanner:
    """What a scheduler does while it holds one fencing token. For one thread.

    Attributes:
        session: a connection of its own.
        runs: RQ's queue.
        options: the jobs and their times.
        holder: of the lease.
        token: of the lease.
        log: where it says what it does.
        redis_outage: where an enqueue that failed is announced.
    """

    session: KeptSession
    runs: RunQueue
    options: SchedulerOptions
    holder: str
    token: int
    log: Log
    redis_outage: Outage
    _read: tuple[datetime, float] = field(init=False)  # MySQL's clock, and when it was read
    _known: dict[str, _Known] = field(default_factory=dict, init=False)
    _to_log: list[Callable[[], object]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Go by this host's clock until MySQL has told."""
        self._read = datetime.now(UTC), time.monotonic()

    def take_over(self) -> None:
        """Bring the rows of all jobs up to date, and plan the last run that each has missed.

        What was missed is judged by the expression that was in force: one that came with this
        start makes no runs in the past. A job that is new, or was off, has missed nothing.

        Raises:
            Deposed: another is in charge.
            StoreError: some jobs are not settled; call again.
        """
        for name, times in self.options.jobs.items():
            self._settle(name, times)
        active = [name for name, times in self.options.jobs.items() if times.cron is not None]
        gone = self.fenced(lambda session: _drop_jobs(session, self.options.jobs))
        for name in gone:
            self.log(ScheduleAction.CONFIGURED, "a job is not configured any more", job=name)
        left = self.fenced(lambda session: _drop_runs(session, active))
        if left:
            self.log(ScheduleAction.CONFIGURED, "runs of jobs that are off are skipped", runs=left)

    def plan_due(self, name: str) -> None:
        """Plan what is due of a job: every run of the last minute; of older ones, the last alone,
        if none is younger.

        Raises:
            Deposed: another is in charge: nothing was planned.
            StoreError: unknown whether it was planned; call again.
        """
        times = self.options.jobs[name]
        if times.cron is None or not self.is_due(name):
            return
        planned, reached = self.fenced(partial(self._plan, name, times.cron))
        self._learn(name, times.cron, reached)
        for moment in planned:
            self.log(ScheduleAction.PLANNED, "planned", level=logging.DEBUG, job=name, at=moment)
        self._enqueue(name, planned)

    def is_due(self, name: str) -> bool:
        """Whether there is something to plan of a job, as far as this process knows: no query."""
        known, now = self._known.get(name), self.now()
        if known is None:
            return False
        due = known.upcoming is not None and known.upcoming <= now
        return due or known.planned_to > now + AHEAD

    def now(self) -> datetime:
        """The database's clock as it should be by now, aware. From any thread."""
        read, at = self._read
        return read + timedelta(seconds=time.monotonic() - at)

    def read_clock(self) -> None:
        """Ask for the database's clock: somebody may have set it.

        Raises:
            StoreError: MySQL does not serve.
        """
        self._now_in(self.session())

    def fenced(self, work: Callable[[Session], Result]) -> Result:
        """``work`` in a transaction in which this process is in charge.

        Raises:
            Deposed: it is not.
            StoreError: the outcome is unknown.
        """

        def transaction() -> Result:
            self._to_log.clear()  # of an attempt that was rolled back
            session = self.session()
            with session.transaction():
                in_charge(session, self.holder, self.token)
                return work(session)

        done = rerun(transaction)
        for log in self._to_log:
            log()
        return done

    def _log_later(self, action: str, message: str, **fields: Any) -> None:
        """Log a warning once the transaction is committed, which may be run again until then."""
        self._to_log.append(partial(self.log, action, message, level=logging.WARNING, **fields))

    def _now_in(self, session: Session) -> datetime:
        now = _aware(session.query("SELECT UTC_TIMESTAMP(3)")[0][0])
        self._read = now, time.monotonic()
        return now.replace(microsecond=0)

    def _learn(self, name: str, cron: Cron, planned_to: datetime) -> None:
        self._known[name] = _Known(planned_to, cron.after(planned_to))

    def _settle(self, name: str, times: Times) -> None:
        found, reached, missed = self.fenced(partial(self._settle_in, name, times))
        if times.cron is not None and reached is not None:
            self._learn(name, times.cron, reached)
        if found is None:
            self.log(ScheduleAction.CONFIGURED, "a new job", job=name, cron=_text(times.cron))
        elif (found.cron, found.time_zone) != (_text(times.cron), times.time_zone):
            self.log(
                ScheduleAction.CONFIGURED,
                "a job's times changed",
                job=name,
                cron=_text(times.cron),
                time_zone=times.time_zone,
                before=found.cron,
            )
        if missed is not None:
            self.log(ScheduleAction.MISSED, "a missed run is planned now", job=name, at=missed)
            self._enqueue(name, [missed])

    def _settle_in(
        self, name: str, times: Times, session: Session
    ) -> tuple[PlannedJob | None, datetime | None, datetime | None]:
        """In the transaction: what the row was, what it is planned to, and the missed run that was
        planned.
        """
        found = _read_job(session, name)
        now = self._now_in(session)
        wanted = PlannedJob(_text(times.cron), times.time_zone, None)
        planned_to: datetime | None = None
        missed: datetime | None = None
        if times.cron is not None:
            planned_to = now
            if found is not None and found.planned_to is not None:
                planned_to = self._credible(session, name, _aware(found.planned_to), now)
                same = (found.cron, found.time_zone) == (wanted.cron, wanted.time_zone)
                cron = times.cron if same else _stored(found)
                last = None if cron is None else cron.last(now)
                if last is not None and last > planned_to:
                    planned_to = last
                    if self._add_run(session, name, last):
                        missed = last
                if not same:
                    planned_to = max(planned_to, now)
            wanted = replace(wanted, planned_to=_naive(planned_to))
        self._write(session, name, wanted, times.cron, now)
        return found, planned_to, missed

    def _plan(self, name: str, cron: Cron, session: Session) -> tuple[list[datetime], datetime]:
        """In the transaction: what was planned, and what the job is planned to."""
        found = _read_job(session, name)
        if found is None or found.planned_to is None:
            raise Deposed("the job's row was changed by another")
        now = self._now_in(session)
        planned_to = self._credible(session, name, _aware(found.planned_to), now)
        due = list(cron.between(max(planned_to, now - RECENT), now))
        late = cron.last(now - RECENT)
        if late is not None and late > planned_to:
            due = due or [late]
            self._log_later(
                ScheduleAction.LEFT_OUT,
                "runs that are more than a minute late are left out, but for the last",
                job=name,
                since=planned_to,
            )
        planned = [moment for moment in due if self._add_run(session, name, moment)]
        reached = due[-1] if due else planned_to
        row = replace(found, planned_to=_naive(reached))
        self._write(session, name, row, cron, now)
        return planned, reached

    def _credible(
        self, session: Session, name: str, planned_to: datetime, now: datetime
    ) -> datetime:
        """``planned_to``; the database's clock where that is far behind it."""
        if planned_to - now <= AHEAD:
            return planned_to
        # Those that began stay. What was enqueued of the others finds no row, and does nothing;
        # skipped they would keep their times from being planned when they come.
        taken_back = session.execute(
            "DELETE FROM job_run WHERE job = %s AND planned_at > %s AND state = 'planned'",
            (name, _naive(now)),
        )
        self._log_later(
            ScheduleAction.CLOCK,
            "the plan is ahead of the database's clock, which was set back, or was wrong: planning"
            " goes on from that clock",
            job=name,
            ahead_s=round((planned_to - now).total_seconds()),
            taken_back=taken_back,
        )
        return now

    def _add_run(self, session: Session, name: str, moment: datetime) -> bool:
        """Plan a run; False if that run is there already."""
        run = name, _naive(moment)
        if session.query("SELECT 1 FROM job_run WHERE job = %s AND planned_at = %s", run):
            return False
        session.execute(
            "INSERT INTO job_run (job, planned_at, token, state) VALUES (%s, %s, %s, 'planned')",
            (*run, self.token),
        )
        return True

    def _write(
        self, session: Session, name: str, job: PlannedJob, cron: Cron | None, now: datetime
    ) -> None:
        """Make or change the row of a job."""
        upcoming = None
        if cron is not None and job.planned_to is not None:
            upcoming = cron.after(max(now, _aware(job.planned_to)))
        next_at = None if upcoming is None else _naive(upcoming)
        session.execute(
            "REPLACE INTO job (name, cron, time_zone, next_at, planned_to, token)"
            " VALUES (%s, %s, %s, %s, %s, %s)",
            (name, job.cron, job.time_zone, next_at, job.planned_to, self.token),
        )

    def _enqueue(self, name: str, planned: list[datetime]) -> None:
        for moment in planned:
            try:
                self.runs.enqueue(name, moment, 1, self.options.jobs[name].limit_s)
            except StreamError as error:
                self.redis_outage.failed(error)  # the sweep enqueues it
                return
            self.redis_outage.over()


def _text(cron: Cron | None) -> str:
    return OFF if cron is None else cron.text


def _stored(found: PlannedJob) -> Cron | None:
    try:
        return parse(found.cron, found.time_zone)
    except ValueError:
        return None  # written by another version: nothing can be said of what it missed


def _naive(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)


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


def _read_job(session: Session, name: str) -> PlannedJob | None:
    """The row of a job; None if there is none."""
    rows = session.query("SELECT cron, time_zone, planned_to FROM job WHERE name = %s", (name,))
    return PlannedJob(*rows[0]) if rows else None


def _drop_jobs(session: Session, names: Collection[str]) -> list[str]:
    """Delete the rows of all jobs but ``names``; whose they were."""
    known = [name for (name,) in session.query("SELECT name FROM job ORDER BY name")]
    gone = [name for name in known if name not in names]
    for name in gone:
        session.execute("DELETE FROM job WHERE name = %s", (name,))
    return gone


def _drop_runs(session: Session, active: Collection[str]) -> int:
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

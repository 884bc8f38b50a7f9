"""Plans runs when they are due, and again when they failed or got lost (:class:`Sweep`).

A run is planned by a row in ``job_run`` that is written in one transaction with a lock on the
lease's row and a check of it: a scheduler that was frozen, and wakes after another has taken over,
plans nothing. After the COMMIT the run is enqueued; whatever is lost between the two, or in Redis
later, :class:`Sweep` finds in the table.

Which runs are planned follows from ``planned_to`` in the job's row, and from the database's clock,
read in that transaction: the clocks of the hosts have no say. ``planned_to`` never goes back, but
where the database's own clock did: more than a minute ahead of it, it is set to the clock, or no
run would be planned until that time comes again. Nothing is planned twice: a run is there, or not.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

from countersink.runtime.log import Log
from countersink.runtime.retry import Outage
from countersink.schedules.cron import OFF, Cron, parse
from countersink.schedules.errors import Deposed
from countersink.schedules.history import failing
from countersink.schedules.options import SchedulerOptions, Times
from countersink.schedules.report import ScheduleAction
from countersink.schedules.runner.rq import RunQueue
from countersink.schedules.scheduler import plan_sql
from countersink.schedules.scheduler.plan_sql import PlannedJob, Stray
from countersink.store.connection import Session, rerun
from countersink.store.sessions import KeptSession
from countersink.stream.errors import StreamError

RECENT: Final = timedelta(seconds=60)
"""How late a run may be planned, by a scheduler that stayed in charge, next to those after it."""
AHEAD: Final = timedelta(seconds=60)
"""How far ahead of the database's clock ``planned_to`` may be."""

Result = TypeVar("Result")
_NO_LIMIT_S = 3600
"""Time limit of a run whose job is not configured any more."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What this process knows of a job without asking.

    Attributes:
        planned_to: see the table.
        upcoming: the first time after it; None if there is none.
    """

    planned_to: datetime
    upcoming: datetime | None


class RunPlanner:
    """What a scheduler does while it holds one fencing token. For one thread.

    Args:
        session: a connection of its own.
        runs: RQ's queue.
        options: the jobs and their times.
        holder: of the lease.
        token: of the lease.
        log: where it says what it does.
        redis_outage: where an enqueue that failed is announced.
    """

    def __init__(
        self,
        session: KeptSession,
        runs: RunQueue,
        options: SchedulerOptions,
        holder: str,
        token: int,
        log: Log,
        redis_outage: Outage,
    ) -> None:
        self._session = session
        self._runs = runs
        self._jobs = options.jobs
        self._holder = holder
        self._token = token
        self._log = log
        self._outage = redis_outage
        self._read = datetime.now(UTC), time.monotonic()  # until MySQL has told
        self._known: dict[str, _Known] = {}

    def take_over(self) -> None:
        """Bring the rows of all jobs up to date, and plan the last run that each has missed.

        What was missed is judged by the expression that was in force: one that came with this
        start makes no runs in the past. A job that is new, or was off, has missed nothing.

        Raises:
            Deposed: another is in charge.
            StoreError: some jobs are not settled; call again.
        """
        for name, times in self._jobs.items():
            self._settle(name, times)
        active = [name for name, times in self._jobs.items() if times.cron is not None]
        gone = self.fenced(lambda session: plan_sql.drop_jobs(session, self._jobs))
        for name in gone:
            self._log(ScheduleAction.CONFIGURED, "a job is not configured any more", job=name)
        left = self.fenced(lambda session: plan_sql.drop_runs(session, active))
        if left:
            self._log(ScheduleAction.CONFIGURED, "runs of jobs that are off are skipped", runs=left)

    def plan_due(self, name: str) -> None:
        """Plan what is due of a job: every run of the last minute; of older ones, the last alone,
        if none is younger.

        Raises:
            Deposed: another is in charge: nothing was planned.
            StoreError: unknown whether it was planned; call again.
        """
        times = self._jobs[name]
        if times.cron is None or not self.is_due(name):
            return
        planned, reached = self.fenced(partial(self._plan, name, times.cron))
        self._learn(name, times.cron, reached)
        for moment in planned:
            self._log(ScheduleAction.PLANNED, "planned", level=logging.DEBUG, job=name, at=moment)
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
        self._now_in(self._session())

    def fenced(self, work: Callable[[Session], Result]) -> Result:
        """``work`` in a transaction in which this process is in charge.

        Raises:
            Deposed: it is not.
            StoreError: the outcome is unknown.
        """

        def transaction() -> Result:
            session = self._session()
            with session.transaction():
                plan_sql.in_charge(session, self._holder, self._token)
                return work(session)

        return rerun(transaction)

    def _now_in(self, session: Session) -> datetime:
        now = plan_sql.clock(session)
        self._read = now, time.monotonic()
        return now.replace(microsecond=0)

    def _learn(self, name: str, cron: Cron, planned_to: datetime) -> None:
        self._known[name] = _Known(planned_to, cron.after(planned_to))

    def _settle(self, name: str, times: Times) -> None:
        found, reached, missed = self.fenced(partial(self._settle_in, name, times))
        if times.cron is not None and reached is not None:
            self._learn(name, times.cron, reached)
        if found is None:
            self._log(ScheduleAction.CONFIGURED, "a new job", job=name, cron=_text(times.cron))
        elif (found.cron, found.time_zone) != (_text(times.cron), times.time_zone):
            self._log(
                ScheduleAction.CONFIGURED,
                "a job's times changed",
                job=name,
                cron=_text(times.cron),
                time_zone=times.time_zone,
                before=found.cron,
            )
        if missed is not None:
            self._log(ScheduleAction.MISSED, "a missed run is planned now", job=name, at=missed)
            self._enqueue(name, [missed])

    def _settle_in(
        self, name: str, times: Times, session: Session
    ) -> tuple[PlannedJob | None, datetime | None, datetime | None]:
        """In the transaction: what the row was, what it is planned to, and the missed run that was
        planned.
        """
        found = plan_sql.read_job(session, name)
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
                    if plan_sql.add_run(session, name, _naive(last), self._token):
                        missed = last
                if not same:
                    planned_to = max(planned_to, now)
            wanted = replace(wanted, planned_to=_naive(planned_to))
        self._write(session, name, wanted, times.cron, now, new=found is None)
        return found, planned_to, missed

    def _plan(self, name: str, cron: Cron, session: Session) -> tuple[list[datetime], datetime]:
        """In the transaction: what was planned, and what the job is planned to."""
        found = plan_sql.read_job(session, name)
        if found is None or found.planned_to is None:
            raise Deposed("the job's row was changed by another")
        now = self._now_in(session)
        planned_to = self._credible(session, name, _aware(found.planned_to), now)
        due = list(cron.between(max(planned_to, now - RECENT), now))
        late = cron.last(now - RECENT)
        if late is not None and late > planned_to:
            due = due or [late]
            self._log(
                ScheduleAction.LEFT_OUT,
                "runs that are more than a minute late are left out, but for the last",
                level=logging.WARNING,
                job=name,
                since=planned_to,
            )
        planned = [
            moment for moment in due if plan_sql.add_run(session, name, _naive(moment), self._token)
        ]
        reached = due[-1] if due else planned_to
        row = replace(found, planned_to=_naive(reached))
        self._write(session, name, row, cron, now, new=False)
        return planned, reached

    def _credible(
        self, session: Session, name: str, planned_to: datetime, now: datetime
    ) -> datetime:
        """``planned_to``; the database's clock where that is far behind it."""
        if planned_to - now <= AHEAD:
            return planned_to
        taken_back = plan_sql.take_back(session, name, _naive(now))
        self._log(
            ScheduleAction.CLOCK,
            "the plan is ahead of the database's clock, which was set back, or was wrong: planning"
            " goes on from that clock",
            level=logging.WARNING,
            job=name,
            ahead_s=round((planned_to - now).total_seconds()),
            taken_back=taken_back,
        )
        return now

    def _write(
        self,
        session: Session,
        name: str,
        job: PlannedJob,
        cron: Cron | None,
        now: datetime,
        *,
        new: bool,
    ) -> None:
        upcoming = None
        if cron is not None and job.planned_to is not None:
            upcoming = cron.after(max(now, _aware(job.planned_to)))
        next_at = None if upcoming is None else _naive(upcoming)
        plan_sql.write_job(session, name, job, next_at, self._token, new=new)

    def _enqueue(self, name: str, planned: list[datetime]) -> None:
        for moment in planned:
            try:
                self._runs.enqueue(name, moment, 1, self._jobs[name].limit_s)
            except StreamError as error:
                self._outage.failed(error)  # the sweep enqueues it
                return
            self._outage.over()


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


class Sweep:
    """Looks for runs that got lost: planned but not in RQ's hands, left behind, or to be tried
    again. For one thread.

    Everything is in MySQL, so this heals whatever happens to Redis: a run whose enqueue failed or
    was cut off by the planner's death, a queue that was flushed, a process that was killed. An
    attempt that is enqueued once too often starts nothing, so there is nothing to be careful about.

    Args:
        session: the planner's connection.
        planner: for its clock, and for what is fenced.
        runs: RQ's queue.
        options: the settings.
        log: where it says what it found.
        redis_outage: over, when Redis did its part.
    """

    def __init__(
        self,
        session: KeptSession,
        planner: RunPlanner,
        runs: RunQueue,
        options: SchedulerOptions,
        log: Log,
        redis_outage: Outage,
    ) -> None:
        self._session = session
        self._planner = planner
        self._runs = runs
        self._options = options
        self._log = log
        self._redis = redis_outage

    def __call__(self) -> None:
        """Look once.

        Raises:
            Deposed: another is in charge.
            StoreError, StreamError: a server is away; look again later.
        """
        self._planner.read_clock()  # somebody may have set it
        found = plan_sql.strays(self._session(), self._options.attempts)
        if not found and self._redis.lasted_s is None:
            return
        waiting = self._runs.waiting()
        for stray in found:
            if self._is_due(stray):
                self._again(stray, waiting)
        self._redis.over()

    def _is_due(self, stray: Stray) -> bool:
        if stray.alive:
            return False
        if stray.state == "failed":
            # Doubled with every attempt.
            pause = self._options.retry_after_s * 2.0 ** (stray.attempts - 1)
            return self._is_active(stray.job) and stray.over_s >= pause
        return True

    def _is_active(self, job: str) -> bool:
        times = self._options.jobs.get(job)
        return times is not None and times.cron is not None

    def _again(self, stray: Stray, waiting: set[str]) -> None:
        inactive = stray.job not in self._options.jobs
        if stray.state == "running" and (stray.attempts >= self._options.attempts or inactive):
            self._give_up(stray)
            return
        attempt = stray.attempts + 1
        if self._runs.in_hand(stray.job, stray.planned_at, attempt, waiting):
            return
        times = self._options.jobs.get(stray.job)
        limit_s = _NO_LIMIT_S if times is None else times.limit_s
        self._runs.enqueue(stray.job, stray.planned_at, attempt, limit_s)
        why = {
            "planned": "RQ does not have it",
            "running": "its process is gone",
            "failed": "it failed and is tried again",
        }[stray.state]
        self._log(
            ScheduleAction.REQUEUED,
            f"a run is enqueued again: {why}",
            job=stray.job,
            at=stray.planned_at,
            attempt=attempt,
        )

    def _give_up(self, stray: Stray) -> None:
        text = f"its process ended in the midst of it, {stray.attempts} times in all"
        if not self._planner.fenced(partial(_give_up, stray, text)):
            return
        self._log(
            ScheduleAction.RUN_FAILED,
            text,
            level=logging.WARNING,
            job=stray.job,
            at=stray.planned_at,
        )
        for job in failing(self._session(), stray.job):
            self._log(
                ScheduleAction.FAILING,
                "a job failed three times in a row or more: see countersink runs",
                level=logging.ERROR,
                job=job.job,
                times=job.times,
                error=job.error,
            )


def _give_up(stray: Stray, text: str, session: Session) -> bool:
    return plan_sql.give_up(session, stray, text)

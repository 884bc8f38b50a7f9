"""Planning runs: each once, by the scheduler in charge alone, and none forgotten.

A run is planned by a row in ``job_run`` that is written in one transaction with a lock on the
lease's row and a check of it: a scheduler that was frozen, and wakes after another has taken over,
plans nothing. After the COMMIT the run is enqueued; whatever is lost between the two, or in Redis
later, the sweep (:mod:`countersink.schedules.sweep`) finds in the table.

Which runs are planned follows from ``planned_to`` in the job's row, which never goes back: nothing
is planned twice, whatever the clocks of the hosts do.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

from countersink.schedules import plan_sql
from countersink.schedules.cron import OFF, Cron, parse
from countersink.schedules.logs import Action, Log
from countersink.schedules.options import SchedulerOptions, Times
from countersink.schedules.patience import Outage
from countersink.schedules.plan_sql import PlannedJob
from countersink.schedules.queue import Runs
from countersink.schedules.tables import Kept
from countersink.store.connection import Session
from countersink.store.rerun import rerun
from countersink.stream.errors import StreamError

RECENT: Final = timedelta(seconds=60)
"""How late a run may be planned, by a scheduler that stayed in charge, next to those after it."""

Result = TypeVar("Result")


class Planner:
    """What a scheduler does while it holds one fencing token. For one thread.

    Args:
        session: a connection of its own.
        runs: RQ's queue.
        options: the jobs and their times.
        holder: of the lease.
        token: of the lease.
        log: where it says what it does.
        redis_outage: where an enqueue that failed is announced.
        clock: this host's time, aware.
    """

    def __init__(
        self,
        session: Kept,
        runs: Runs,
        options: SchedulerOptions,
        holder: str,
        token: int,
        log: Log,
        redis_outage: Outage,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._session = session
        self._runs = runs
        self._jobs = options.jobs
        self._holder = holder
        self._token = token
        self._log = log
        self._outage = redis_outage
        self._clock = clock
        self._planned_to: dict[str, datetime] = {}

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
            self._log(Action.CONFIGURED, "a job is not configured any more", job=name)
        left = self.fenced(lambda session: plan_sql.drop_runs(session, active))
        if left:
            self._log(Action.CONFIGURED, "runs of jobs that are off are skipped", runs=left)

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
        self._planned_to[name] = reached
        for moment in planned:
            self._log(Action.PLANNED, "planned", level=logging.DEBUG, job=name, at=moment)
        self._enqueue(name, planned)

    def is_due(self, name: str) -> bool:
        """Whether there is something to plan of a job, as far as this process knows."""
        cron, planned_to = self._jobs[name].cron, self._planned_to.get(name)
        if cron is None:
            return False
        upcoming = None if planned_to is None else cron.after(planned_to)
        return upcoming is not None and upcoming <= self._now()

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

    def _now(self) -> datetime:
        return self._clock().astimezone(UTC).replace(microsecond=0)

    def _settle(self, name: str, times: Times) -> None:
        found, reached, missed = self.fenced(partial(self._settle_in, name, times))
        if reached is not None:
            self._planned_to[name] = reached
        if found is None:
            self._log(Action.CONFIGURED, "a new job", job=name, cron=_text(times.cron))
        elif (found.cron, found.time_zone) != (_text(times.cron), times.time_zone):
            self._log(
                Action.CONFIGURED,
                "a job's times changed",
                job=name,
                cron=_text(times.cron),
                time_zone=times.time_zone,
                before=found.cron,
            )
        if missed is not None:
            self._log(Action.MISSED, "a missed run is planned now", job=name, at=missed)
            self._enqueue(name, [missed])

    def _settle_in(
        self, name: str, times: Times, session: Session
    ) -> tuple[PlannedJob | None, datetime | None, datetime | None]:
        """In the transaction: what the row was, what it is planned to, and the missed run that was
        planned.
        """
        found = plan_sql.read_job(session, name)
        now = self._now()
        wanted = PlannedJob(_text(times.cron), times.time_zone, None)
        planned_to: datetime | None = None
        missed: datetime | None = None
        if times.cron is not None:
            planned_to = now
            if found is not None and found.planned_to is not None:
                planned_to = _aware(found.planned_to)
                if planned_to - now > RECENT:
                    self._log(
                        Action.CLOCK,
                        "this host's clock is behind that of the scheduler before it",
                        level=logging.WARNING,
                        job=name,
                        behind_s=round((planned_to - now).total_seconds()),
                    )
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
        self._write(session, name, wanted, times.cron, new=found is None)
        return found, planned_to, missed

    def _plan(self, name: str, cron: Cron, session: Session) -> tuple[list[datetime], datetime]:
        """In the transaction: what was planned, and what the job is planned to."""
        found = plan_sql.read_job(session, name)
        if found is None or found.planned_to is None:
            raise plan_sql.Deposed("the job's row was changed by another")
        planned_to, now = _aware(found.planned_to), self._now()
        due = list(cron.between(max(planned_to, now - RECENT), now))
        late = cron.last(now - RECENT)
        if late is not None and late > planned_to:
            due = due or [late]
            self._log(
                Action.LEFT_OUT,
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
        self._write(session, name, row, cron, new=False)
        return planned, reached

    def _write(
        self, session: Session, name: str, job: PlannedJob, cron: Cron | None, *, new: bool
    ) -> None:
        upcoming = None
        if cron is not None and job.planned_to is not None:
            upcoming = cron.after(max(self._now(), _aware(job.planned_to)))
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

"""The list of jobs (``JOBS``): name, cron by default, time limit, what each does; and what a job is
given and returns.

A job is a function ``def job(context: Context) -> JobOutcome``. It may be killed at any point and
run again: what it has done so far is in MySQL, committed in small transactions. It fails by
raising.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final

from countersink.schedules.options import JobOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a run of a job works with.

    Attributes:
        mysql_url: where the tables are; holds a password, so it is not in ``repr``.
        redis_url: where the streams are, not RQ's queue; not in ``repr`` either.
        options: the jobs' settings.
        stop: true once the run should end soon, in good order; cheap to call, from any thread.
    """

    mysql_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    options: JobOptions
    stop: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a run did.

    Attributes:
        rows: that it moved, deleted or looked at.
        detail: one sentence for people.
        finished: False if it ended before its work was done, since it was to stop; what it did
            stays done, and another run goes on from there.
    """

    rows: int
    detail: str
    finished: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A job in the list: its function, its cron and time limit by default, what it does.

    Attributes:
        path: ``module:function``; the function takes a Context and returns an JobOutcome.
        cron: when it runs by default, in UTC.
        limit_s: seconds that a run may take by default.
        does: one line for people.
    """

    path: str
    cron: str
    limit_s: int
    does: str


Registry = Mapping[str, Kind]

JOBS: Final[Registry] = {
    "compact": Kind(
        path="countersink.schedules.jobs.compaction:job",
        cron="*/10 * * * *",
        limit_s=3600,
        does="moves closed and crowded buckets of the last days into slot 0",
    ),
    "retention": Kind(
        path="countersink.schedules.jobs.retention:job",
        cron="20 3 * * *",
        limit_s=4 * 3600,
        does="compacts all buckets, and rolls up what is older than its counter keeps",
    ),
    "prune": Kind(
        path="countersink.schedules.jobs.retention:prune",
        cron="40 * * * *",
        limit_s=3600,
        does="deletes old guards, runs and dead letters",
    ),
    "verify": Kind(
        path="countersink.schedules.jobs.checks:verification",
        cron="50 4 * * *",
        limit_s=4 * 3600,
        does="compares the tables with the ledger",
    ),
    "alarms": Kind(
        path="countersink.schedules.jobs.checks:alarms",
        cron="*/5 * * * *",
        limit_s=120,
        does="reports a queue that lags or lost entries, dead rows, jobs that do not succeed",
    ),
}
"""Every job of countersink."""


def load(kind: Kind) -> Callable[[Context], JobOutcome]:
    """The job's function, its module imported now.

    Raises:
        ImportError, AttributeError: there is none.
    """
    module, _, name = kind.path.partition(":")
    found: Callable[[Context], JobOutcome] = getattr(import_module(module), name)
    return found

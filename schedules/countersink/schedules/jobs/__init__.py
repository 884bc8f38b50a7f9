"""The list of jobs (``JOBS``): name, default cron, time limit, purpose; argument and result of a
job.

A job is a function ``def job(context: Context) -> JobOutcome``. It may be killed at any point and
run again: its work is in MySQL, committed in small transactions. It fails by raising.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final

from countersink.schedules.options import JobOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Argument of a job: servers, options, stop signal.

    Attributes:
        mysql_url: of the tables; holds a password, so it is not in ``repr``.
        redis_url: of the streams, not of RQ's queue; not in ``repr`` either.
        options: of the jobs.
        stop: true once the run should end soon; cheap to call, from any thread.
    """

    mysql_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    options: JobOptions
    stop: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Result of a run.

    Attributes:
        rows: moved, deleted or read.
        detail: a sentence for people.
        finished: False if the run was stopped before its work was done; that work stays done, and
            another run goes on from there.
    """

    rows: int
    detail: str
    finished: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A job in the list: its function, default cron, default time limit, purpose.

    Attributes:
        path: ``module:function``; the function takes a Context and returns a JobOutcome.
        cron: by default, in UTC.
        limit_s: seconds that a run may take by default.
        does: a line for people.
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
        does="compacts all buckets, and rolls up buckets older than their counter keeps them",
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
        ImportError, AttributeError: the function does not exist.
    """
    module, _, name = kind.path.partition(":")
    found: Callable[[Context], JobOutcome] = getattr(import_module(module), name)
    return found

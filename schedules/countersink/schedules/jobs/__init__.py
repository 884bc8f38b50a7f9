"""The list of all scheduled jobs (``JOBS``): the function, default cron expression, default time
limit and purpose of each. Also the argument and the result of a job's function.

The function of a job is ``def job(context: Context) -> JobOutcome``. Its process may be killed at
any point, and the function may then be called again. So a job keeps its results in MySQL, and
commits them in small transactions. It fails by raising an exception.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final

from countersink.schedules.options import JobOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The argument of a job's function: URLs of servers, options, and the request to stop.

    Attributes:
        mysql_url: the URL of the database. It contains a password, so ``repr`` leaves it out.
        redis_url: the URL of the Redis that has the streams, not of the one that has RQ's queue.
            ``repr`` leaves it out, too.
        options: the options of all jobs.
        stop: returns true once the run should end soon. A call costs little, and any thread may
            call it.
    """

    mysql_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    options: JobOptions
    stop: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job's function.

    Attributes:
        rows: number of rows. For ``compact`` and ``retention``: how many rows fewer the compacted
            keys have, plus the rows that were rolled up. For ``prune``: the deleted rows. For
            ``verify``: the compared rows of counters. For ``alarms``: 0.
        detail: a sentence for people.
        finished: False if the job was stopped before its work was done. The work that was done
            stays, and a later attempt of the run, or a later run, continues it.
    """

    rows: int
    detail: str
    finished: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A job in the list of jobs.

    Attributes:
        path: ``module:function``; the function takes a Context and returns a JobOutcome.
        cron: the default cron expression; its time zone is the scheduler's, by default UTC.
        limit_s: seconds that a run may take by default.
        does: what the job does, in one line for people.
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
"""All scheduled jobs of countersink, by name."""


def load(kind: Kind) -> Callable[[Context], JobOutcome]:
    """Import the module of the job's function, and return the function.

    Raises:
        ImportError: the module cannot be imported.
        AttributeError: the module does not have the function.
    """
    module, _, name = kind.path.partition(":")
    found: Callable[[Context], JobOutcome] = getattr(import_module(module), name)
    return found

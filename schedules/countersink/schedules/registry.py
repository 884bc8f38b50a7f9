"""The jobs there are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from countersink.schedules.context import Context, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A job as it comes.

    Attributes:
        path: ``module:function``; the function takes a Context and returns an Outcome.
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
        path="countersink.schedules.compaction:job",
        cron="*/10 * * * *",
        limit_s=3600,
        does="moves closed and crowded buckets into slot 0",
    ),
    "retention": Kind(
        path="countersink.schedules.retention:job",
        cron="20 3 * * *",
        limit_s=4 * 3600,
        does="rolls up days that are older than their counter's keep_days into months",
    ),
    "prune": Kind(
        path="countersink.schedules.pruning:job",
        cron="40 * * * *",
        limit_s=3600,
        does="deletes guard rows, and runs, that are older than need be",
    ),
    "verify": Kind(
        path="countersink.schedules.verification:job",
        cron="50 4 * * *",
        limit_s=4 * 3600,
        does="holds the tables against the ledger",
    ),
    "alarms": Kind(
        path="countersink.schedules.alarms:job",
        cron="*/5 * * * *",
        limit_s=120,
        does="says that the queue lags, that rows are dead or that a job does not succeed",
    ),
}
"""Every job of countersink."""


def load(kind: Kind) -> Callable[[Context], Outcome]:
    """The job's function, its module imported now.

    Raises:
        ImportError, AttributeError: there is none.
    """
    module, _, name = kind.path.partition(":")
    found: Callable[[Context], Outcome] = getattr(import_module(module), name)
    return found

"""``countersink jobs``."""

from dataclasses import fields
from functools import partial
from typing import Any, Final

import click

from countersink.cli import metrics, settings
from countersink.cli.failures import Misuse
from countersink.cli.metrics_schedules import jobs_health
from countersink.schedules.context import JobOptions
from countersink.schedules.jobs import run
from countersink.schedules.options import JobsOptions
from countersink.schedules.vitals import Vitals
from countersink.worker.logs import set_up, take_down

OF_JOBS: Final[dict[str, Any]] = {field.name: field.default for field in fields(JobOptions)}
OF_PROCESS: Final[dict[str, Any]] = {field.name: field.default for field in fields(JobsOptions)}
MEANINGS: Final[dict[str, str]] = {
    "compact_grace_s": "Seconds after its end at which a bucket counts as closed: late events.",
    "compact_threshold": "Slot rows per key above which an open bucket is compacted, too.",
    "compact_rows": "Slot rows that one transaction moves; up to 8 times that where all is quiet.",
    "compact_share": "Share of the time that compaction, retention and pruning work, up to 1.",
    "ledger_days": "Days that guard rows are kept, against resends and replays.",
    "alarm_lag_s": "Seconds that an event may wait in the queue before it is an alarm.",
    "alarm_dead": "Dead rows that may lie there before it is an alarm.",
    "runs_days": "Days that runs are remembered.",
}


def _tunables(function: settings.Decorated) -> settings.Decorated:
    """Decorator: everything the jobs themselves can be told."""
    for name, default in reversed(OF_JOBS.items()):
        kind = int if isinstance(default, int) else float
        function = settings.number(OF_JOBS, name, kind, MEANINGS[name])(function)
    return function


@click.command("jobs", cls=settings.Command)
@_tunables
@settings.number(OF_PROCESS, "lease_s", float, "Seconds after which a silent run is taken over.")
@settings.number(OF_PROCESS, "renew_every_s", float, "Seconds between two signs of life of a run.")
@settings.number(OF_PROCESS, "wait_s", float, "Seconds that a run waits for the one before it.")
@settings.number(OF_PROCESS, "stop_within_s", float, "Seconds after SIGTERM in which it ends.")
@metrics.options
@settings.log_format
@settings.jobs_redis_url
@settings.redis_url
@settings.mysql_url
def command(
    redis_url: str | None,
    mysql_url: str | None,
    jobs_redis_url: str | None,
    log_format: str,
    metrics_host: str,
    metrics_port: int | None,
    **options: Any,
) -> int:
    """Run the scheduled jobs, one at a time, until stopped.

    Any number may run. SIGTERM tells the run at hand to end in good order; one that does not is
    taken over by another process later. While a server is away it waits, says so, and goes on.
    """
    queue_url = settings.jobs_queue(redis_url, jobs_redis_url)
    try:
        chosen = JobsOptions(
            redis_url=settings.needed(redis_url, "redis"),
            mysql_url=settings.needed(mysql_url, "mysql"),
            jobs_redis_url=queue_url,
            jobs=JobOptions(**{name: options.pop(name) for name in OF_JOBS}),
            **options,
        )
    except ValueError as error:
        raise Misuse(str(error), click.get_current_context()) from error
    vitals = Vitals()
    handler = set_up(log_format)
    try:
        with metrics.served(metrics_host, metrics_port, partial(jobs_health, chosen, vitals)):
            return run(chosen, vitals=vitals)
    finally:
        take_down(handler)

"""``countersink scheduler``."""

from dataclasses import fields
from functools import partial
from typing import Any, Final

import click

from countersink.cli import metrics, settings
from countersink.cli.failures import Misuse
from countersink.cli.metrics_schedules import scheduler_health
from countersink.schedules.cron import parse
from countersink.schedules.options import SchedulerOptions, Times
from countersink.schedules.registry import JOBS
from countersink.schedules.scheduler import run
from countersink.schedules.vitals import Vitals
from countersink.worker.logs import set_up, take_down

DEFAULTS: Final[dict[str, Any]] = {field.name: field.default for field in fields(SchedulerOptions)}


def _times(function: settings.Decorated) -> settings.Decorated:
    """Decorator: the options of every job; the last one stands first in the help."""
    for name, kind in reversed(list(JOBS.items())):
        function = settings.setting(
            f"--{name}-limit-s",
            type=click.IntRange(1, 7 * 86_400),
            default=kind.limit_s,
            show_default=True,
            metavar="SECONDS",
            help=f"How long a run of {name} may take.",
        )(function)
        function = settings.setting(
            f"--{name}-cron",
            default=kind.cron,
            show_default=True,
            metavar="CRON",
            help=f"When {name} runs: it {kind.does}.",
        )(function)
    return function


@click.command("scheduler", cls=settings.Command)
@_times
@settings.setting(
    "--time-zone",
    default="UTC",
    show_default=True,
    metavar="ZONE",
    help="Time zone of the cron expressions: an IANA name.",
)
@settings.number(
    DEFAULTS, "attempts", int, "Times a run is started, if it fails or its process dies."
)
@settings.number(DEFAULTS, "retry_after_s", float, "Seconds to the second attempt; then doubled.")
@settings.number(
    DEFAULTS, "lease_s", float, "Seconds without a word that keep others from planning."
)
@settings.number(DEFAULTS, "renew_every_s", float, "Seconds between two such words.")
@settings.number(
    DEFAULTS, "sweep_every_s", float, "Seconds between two looks for runs that got lost."
)
@settings.number(DEFAULTS, "stop_within_s", float, "Seconds after SIGTERM in which it ends.")
@metrics.options
@settings.log_format
@settings.jobs_redis_url
@settings.redis_url
@settings.mysql_url
def command(
    redis_url: str | None,
    mysql_url: str | None,
    jobs_redis_url: str | None,
    time_zone: str,
    log_format: str,
    metrics_host: str,
    metrics_port: int | None,
    **options: Any,
) -> int:
    """Plan the scheduled jobs until stopped.

    Run two or more for safety: one of them is in charge, and another takes over within 30 seconds
    of its death. A CRON expression has five fields (minute, hour, day of month, month, day of
    week), or six with seconds first; "off" turns a job off. countersink jobs runs what is planned.
    """
    queue_url = settings.jobs_queue(redis_url, jobs_redis_url)
    mysql_url = settings.needed(mysql_url, "mysql")
    try:
        jobs = {
            name: Times(
                cron=parse(options.pop(f"{name}_cron"), time_zone),
                time_zone=time_zone,
                limit_s=options.pop(f"{name}_limit_s"),
            )
            for name in JOBS
        }
        chosen = SchedulerOptions(mysql_url=mysql_url, redis_url=queue_url, jobs=jobs, **options)
    except ValueError as error:
        raise Misuse(str(error), click.get_current_context()) from error
    vitals = Vitals()
    handler = set_up(log_format)
    try:
        with metrics.served(metrics_host, metrics_port, partial(scheduler_health, chosen, vitals)):
            return run(chosen, vitals=vitals)
    finally:
        take_down(handler)

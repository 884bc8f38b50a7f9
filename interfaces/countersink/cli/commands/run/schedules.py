"""``countersink scheduler`` and ``countersink jobs``: flags with help, in which states they are not
ready, and their samples for metrics; defaults are in ``schedules/options.py``."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from typing import Any

import click

from countersink.cli import metrics, settings
from countersink.cli.errors import values_checked
from countersink.metrics.health import Health, probes
from countersink.metrics.table import JOBS_STATES, SCHEDULER_STATES, Sample, Samples, one_of
from countersink.runtime.log import logged
from countersink.schedules.job_process import run as run_jobs
from countersink.schedules.jobs import JOBS
from countersink.schedules.options import JobOptions, JobsOptions, SchedulerOptions, Times, parse
from countersink.schedules.report import ProcessVitals
from countersink.schedules.scheduler import run as run_scheduler


def _times() -> Iterator[Callable[[settings.Decorated], settings.Decorated]]:
    """The options of every job."""
    for name, kind in JOBS.items():
        yield settings.setting(
            f"--{name}-cron",
            default=kind.cron,
            metavar="CRON",
            help=f"When {name} runs: it {kind.does}.",
        )
        yield settings.setting(
            f"--{name}-limit-s",
            type=click.IntRange(1, 7 * 86_400),
            default=kind.limit_s,
            metavar="SECONDS",
            help=f"How long a run of {name} may take.",
        )


@click.command("scheduler", cls=settings.Command)
@settings.together(*_times())
@settings.setting(
    "--time-zone",
    default="UTC",
    metavar="ZONE",
    help="Time zone of the cron expressions: an IANA name.",
)
@settings.numbers(
    SchedulerOptions,
    look_every_s="Seconds between two looks at what is due, at most.",
    stop_within_s="Seconds after SIGTERM within which the scheduler ends.",
)
@metrics.options
@settings.log_format
@settings.urls("jobs_redis_url", "redis_url", "mysql_url")
def scheduler_command(time_zone: str, log_format: str, **options: Any) -> int:
    """Plan the scheduled jobs until stopped.

    Run two or more for safety: all plan, and no run is planned twice. The one that was started last
    says when the jobs run. A CRON expression has five fields (minute, hour, day of month, month,
    day of week), or six with seconds first; "off" turns a job off. countersink jobs runs what is
    planned.
    """
    queue_url, mysql_url = settings.jobs_redis_url(), settings.mysql_url()
    with values_checked():
        jobs = {
            name: Times(
                cron=parse(options.pop(f"{name}_cron"), time_zone),
                time_zone=time_zone,
                limit_s=options.pop(f"{name}_limit_s"),
            )
            for name in JOBS
        }
        chosen = SchedulerOptions(mysql_url=mysql_url, redis_url=queue_url, jobs=jobs, **options)
    vitals = ProcessVitals()
    health = partial(_health, "scheduler", _scheduler_samples, vitals, queue_url, mysql_url)
    with logged(log_format), metrics.served(health):
        return run_scheduler(chosen, vitals=vitals)


@click.command("jobs", cls=settings.Command)
@settings.numbers(
    JobOptions,
    compact_grace_s="Seconds from a bucket's end until it counts as closed, for late events.",
    compact_threshold="Slot rows per key above which an open bucket is also compacted.",
    compact_rows="Slot rows that one transaction moves; up to 8 times as many while nobody waits.",
    compact_share="Share of the time, up to 1, that compaction, retention and pruning work.",
    ledger_days="Days that guards are kept, so that resends and replays do not count twice.",
    alarm_lag_s="Seconds that an event may wait in the queue before there is an alarm.",
    alarm_dead="Dead rows that may exist before there is an alarm.",
    runs_days="Days that ended runs are kept.",
    dead_days="Days that dead letters are kept; 0: until they are retried or dropped.",
)
@settings.numbers(
    JobsOptions,
    attempts="How often a run is started at most, if it fails or its process dies.",
    retry_after_s="Seconds from the first failed attempt to the second; doubled each time.",
    wait_s="Seconds that a run waits for the previous run of its job.",
    stop_within_s="Seconds after SIGTERM within which the process ends.",
)
@metrics.options
@settings.log_format
@settings.urls("jobs_redis_url", "redis_url", "mysql_url")
def jobs_command(log_format: str, **options: Any) -> int:
    """Run the scheduled jobs, one at a time, until stopped.

    Any number of these processes may run. SIGTERM tells the current run to end in good order; if it
    does not, another process takes it over later. While a server is away, the process waits, logs
    that, and goes on.
    """
    queue_url, mysql_url = settings.jobs_redis_url(), settings.mysql_url()
    with values_checked():
        chosen = JobsOptions(
            redis_url=settings.redis_url(),
            mysql_url=mysql_url,
            jobs_redis_url=queue_url,
            jobs=JobOptions(**{each.name: options.pop(each.name) for each in fields(JobOptions)}),
            **options,
        )
    vitals = ProcessVitals()
    health = partial(_health, "jobs", _jobs_samples, vitals, queue_url, mysql_url)
    with logged(log_format), metrics.served(health):
        return run_jobs(chosen, vitals=vitals)


def _scheduler_samples(vitals: ProcessVitals) -> Samples:
    """A scheduler's own figures."""
    yield from one_of("countersink_scheduler_state", SCHEDULER_STATES, vitals.state)
    if vitals.looked is not None:
        yield Sample("countersink_scheduler_last_look_timestamp_seconds", vitals.looked)
    yield Sample("countersink_scheduler_runs_enqueued_total", vitals.runs)


def _jobs_samples(vitals: ProcessVitals) -> Samples:
    """A job process's own figures."""
    yield from one_of("countersink_jobs_state", JOBS_STATES, vitals.state)
    yield Sample("countersink_jobs_runs_started_total", vitals.runs)


def _health(
    process: str,
    samples: Callable[[ProcessVitals], Samples],
    vitals: ProcessVitals,
    redis: str,
    mysql: str,
) -> Health:
    """A process is not ready while it starts, or a server is away."""
    return Health(
        process=process,
        samples=lambda: samples(vitals),
        probes=probes(redis=redis, mysql=mysql),
        moved=lambda: vitals.moved,
        busy=lambda: vitals.state if vitals.state in ("starting", "waiting") else "",
    )

"""The commands that run processes: ``countersink worker``, ``scheduler``, ``jobs`` and ``web``,
with their flags, readiness and metrics (those of ``web``: ``web/endpoints/system.py``).

See ``options.py`` in ``worker/``, ``schedules/`` and ``web/`` for defaults and bounds.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import click

from countersink.cli import metrics, settings
from countersink.cli.commands.operate.info import system_state
from countersink.cli.commands.operate.job_runs import control_job
from countersink.cli.errors import Exit, Failure
from countersink.cli.settings import values_checked
from countersink.metrics.health import Health, probes
from countersink.metrics.table import (
    JOBS_STATES,
    SCHEDULER_STATES,
    WORKER_STATES,
    Sample,
    Samples,
    one_of,
)
from countersink.producers import Producer
from countersink.runtime.log import logged
from countersink.schedules.job_process import run as run_jobs
from countersink.schedules.jobs import JOBS
from countersink.schedules.options import (
    JobOptions,
    JobProcessOptions,
    SchedulerOptions,
    Times,
    parse,
)
from countersink.schedules.report import ProcessVitals
from countersink.schedules.scheduler import run as run_scheduler
from countersink.stream.connection import connect
from countersink.web.options import WebOptions
from countersink.worker import Vitals, WorkerOptions, run

_NOT_READY: Final = ("starting", "waiting", "stopping")
"""States in which a worker is not ready even if both servers answer."""


@click.command("worker", cls=settings.Command)
@settings.one_off("--drain", is_flag=True, help="Stop when all entries in the queue are applied.")
@settings.numbers(
    WorkerOptions,
    batch_entries="Most entries in one read, of all streams of a server together.",
    batch_rows="Rows at which a batch is full.",
    batch_wait_ms="Milliseconds that one read waits for entries.",
    claim_idle_ms="Milliseconds after which pending entries of another worker are taken over.",
    claim_every_s="Seconds between two searches for such entries.",
    consumer_idle_ms="Milliseconds after which an idle consumer is removed.",
    stop_within_s="Seconds after SIGTERM within which the worker ends.",
)
@metrics.options
@settings.log_format
@settings.urls("redis_url", "mysql_url")
def worker_command(**options: Any) -> int:
    """Move increments from Redis into MySQL until stopped.

    Run one worker per core; each takes its own slot. On SIGTERM and Ctrl-C it finishes the current
    batch. If a server does not answer, the worker logs that, waits, and goes on by itself.
    """
    with values_checked():
        chosen = WorkerOptions(
            redis_url=settings.redis_url(), mysql_url=settings.mysql_url(), **options
        )
    vitals = Vitals()

    def log_url(url: str) -> None:
        with logged(chosen.log_format):  # the worker sets up its log later
            metrics.log(url)

    with metrics.served(partial(health, chosen, vitals), log_url):
        return run(chosen, vitals=vitals)


def health(options: WorkerOptions, vitals: Vitals) -> Health:
    """Return the health and metrics of the worker that updates ``vitals``, for the endpoint of
    ``--metrics-port``. The worker is not ready while Redis or MySQL, at the URLs in ``options``,
    does not answer, or while it starts, waits for a server or stops."""
    return Health(
        process="worker",
        samples=lambda: _samples(vitals),
        probes=probes(redis=options.redis_url, mysql=options.mysql_url),
        moved=lambda: vitals.moved,
        busy=lambda: vitals.figures.state if vitals.figures.state in _NOT_READY else "",
    )


def _samples(vitals: Vitals) -> Samples:
    """Yield the metrics of the worker that updates ``vitals``."""
    figures = vitals.figures
    yield from one_of("countersink_worker_state", WORKER_STATES, figures.state)
    if figures.slot is not None:
        yield Sample("countersink_worker_slot", figures.slot)
    outcomes = {
        "applied": figures.entries,
        "duplicate": figures.duplicates,
        "too_old": figures.too_old,
        "lost": figures.lost,
    }
    for outcome, entries in outcomes.items():
        yield Sample("countersink_worker_entries_total", entries, {"outcome": outcome})
    yield Sample("countersink_worker_rows_total", figures.rows, {"outcome": "applied"})
    yield Sample("countersink_worker_rows_total", figures.dead, {"outcome": "dead"})
    yield Sample("countersink_worker_keys_overflown_total", figures.overflown)
    yield Sample("countersink_worker_cells_total", figures.cells)
    yield Sample(
        "countersink_worker_batch_duration_seconds",
        vitals.batch_seconds,
        observations=vitals.batches,
    )
    if figures.last_batch:
        yield Sample("countersink_worker_last_batch_timestamp_seconds", figures.last_batch / 1000)
    yield Sample(
        "countersink_worker_partitions_away", len(figures.away.split(",")) if figures.away else 0
    )
    if figures.last_error_at:
        yield Sample(
            "countersink_worker_last_error_timestamp_seconds", figures.last_error_at / 1000
        )


def _times() -> Iterator[Callable[[settings.Decorated], settings.Decorated]]:
    """Yield the decorators that add two options for each scheduled job: its cron expression
    (``--JOB-cron``) and the most seconds that a run may take (``--JOB-limit-s``)."""
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
            help=f"Longest time that a run of {name} may take.",
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
    look_every_s="Most seconds between two checks for runs that are due.",
    stop_within_s="Seconds after SIGTERM within which the scheduler ends.",
)
@metrics.options
@settings.log_format
@settings.urls("jobs_redis_url", "redis_url", "mysql_url")
def scheduler_command(time_zone: str, log_format: str, **options: Any) -> int:
    """Plan the scheduled jobs until stopped.

    Run two or more schedulers for safety: all of them plan, and no run is planned twice. The
    scheduler that was started last decides when the jobs run. A CRON expression has five fields
    (minute, hour, day of month, month, day of week), or six with seconds first; "off" turns a job
    off. countersink jobs executes the planned runs.
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
    compact_grace_s="Seconds after a bucket's end until it is closed; late events need them.",
    compact_threshold="Rows per key above which an open bucket is also compacted.",
    compact_rows="Rows that one transaction moves; up to 8 times as many if no writer waits.",
    compact_share="Share of the time, up to 1, that compaction, retention and pruning work.",
    ledger_days="Days that guards are kept, so that entries sent again do not count twice.",
    alarm_lag_s="Seconds that an entry may wait in the queue without an alarm.",
    alarm_dead="Dead rows that may exist without an alarm.",
    runs_days="Days that ended runs are kept.",
    dead_days="Days that dead letters are kept; 0: until they are retried or dropped.",
)
@settings.numbers(
    JobProcessOptions,
    attempts="Most starts of a run that fails or whose process dies.",
    retry_after_s="Seconds from the first failed attempt to the second; doubled each time.",
    wait_s="Seconds that a run waits for the previous run of its job.",
    stop_within_s="Seconds after SIGTERM within which the process ends.",
)
@metrics.options
@settings.log_format
@settings.urls("jobs_redis_url", "redis_url", "mysql_url")
def jobs_command(log_format: str, **options: Any) -> int:
    """Run the scheduled jobs, one at a time, until stopped.

    Any number of these processes may run. SIGTERM lets the current run end at a safe point; if it
    does not end in time, another process repeats it later. If a server does not answer, the process
    logs that, waits, and goes on by itself.
    """
    queue_url, mysql_url = settings.jobs_redis_url(), settings.mysql_url()
    with values_checked():
        chosen = JobProcessOptions(
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
    """Yield the metrics of the scheduler that updates ``vitals``."""
    yield from one_of("countersink_scheduler_state", SCHEDULER_STATES, vitals.state)
    if vitals.last_pass is not None:
        yield Sample("countersink_scheduler_last_look_timestamp_seconds", vitals.last_pass)
    yield Sample("countersink_scheduler_runs_enqueued_total", vitals.runs)


def _jobs_samples(vitals: ProcessVitals) -> Samples:
    """Yield the metrics of the job process that updates ``vitals``."""
    yield from one_of("countersink_jobs_state", JOBS_STATES, vitals.state)
    yield Sample("countersink_jobs_runs_started_total", vitals.runs)


def _health(
    process: str,
    samples: Callable[[ProcessVitals], Samples],
    vitals: ProcessVitals,
    redis: str,
    mysql: str,
) -> Health:
    """Return the health and metrics of a scheduler or a job process, for the endpoint of
    ``--metrics-port``. The process is not ready while Redis or MySQL does not answer, or while it
    starts or waits for a server.

    Args:
        process: the command of the process: ``scheduler`` or ``jobs``.
        samples: called with ``vitals``; yields the metrics that only this kind of process has.
        vitals: the state of the process, which the process updates.
        redis: the URL of the Redis for RQ's jobs (``--jobs-redis-url``, else ``--redis-url``).
        mysql: the URL of the database.
    """
    return Health(
        process=process,
        samples=lambda: samples(vitals),
        probes=probes(redis=redis, mysql=mysql),
        moved=lambda: vitals.moved,
        busy=lambda: vitals.state if vitals.state in ("starting", "waiting") else "",
    )


MODULES: Final = ("starlette", "uvicorn", "uvloop", "httptools")
"""Modules that only the extra ``web`` installs."""


def _several(
    flag: str, name: str, metavar: str, help: str
) -> Callable[[settings.Decorated], settings.Decorated]:
    return settings.setting(flag, name, multiple=True, metavar=metavar, help=help)


@click.command("web", cls=settings.Command)
@settings.setting("--host", default="127.0.0.1", help="Address to listen at.")
@settings.numbers(
    WebOptions,
    port="Port to listen at; 0 for any free port.",
)
@settings.setting(
    "--without-keys",
    is_flag=True,
    help="Serve requests without a key, too: anyone may do anything.",
)
@_several(
    "--allowed-host",
    "allowed_hosts",
    "NAME",
    "Host name that clients use, such as counters.example.com; * for any. Repeatable.",
)
@_several(
    "--public-counter",
    "public_counters",
    "PATTERN",
    "Counters to which anyone may add 1 without a key, by pixel, badge or beacon: a name, or a"
    " shell pattern that matches existing counters. Repeatable.",
)
@_several(
    "--hit-visitors",
    "hit_visitors",
    "PATTERN",
    "Counters of different visitors (counter set --unique): their pixels, badges and beacons count"
    " the visitor by a hash of address and user agent. A name or a shell pattern. Repeatable.",
)
@_several(
    "--trusted-proxy",
    "trusted_proxies",
    "ADDRESS",
    "Address or network of a proxy whose X-Forwarded-For and -Proto are trusted. Repeatable.",
)
@_several(
    "--frame-ancestors",
    "frame_ancestors",
    "ORIGIN",
    "Origin of pages that may embed the pages of links in a frame, such as"
    " https://intranet.example.com. Repeatable.",
)
@settings.numbers(
    WebOptions,
    max_body_bytes="Most bytes of a body, before and after decompression.",
    max_counters="Most counters, and most sequences, that one key may use while the server runs.",
    max_items="Most increments in one request.",
    max_amount="Largest amount that one increment may add or subtract.",
    max_ahead_s="Seconds that an event's time may be ahead of this machine's clock.",
    max_age_days="Days that an event's time may be in the past; 0 for no limit.",
    rate_per_key="Most requests per second with one key; 0 for no limit.",
    rate_per_address="Most requests per second without a key from one address; 0 for no limit.",
    failures_per_minute="Wrong keys per minute that one address may send.",
    max_connections="Most connections at once.",
    request_timeout_s="Seconds within which a request must arrive.",
    read_timeout_s="Seconds that a read may take; then the answer is 503.",
    wait_s="Most seconds that a request with ?wait= waits.",
    max_pending_entries="Most entries in the queue that include_pending reads.",
    threads="Most requests that read totals at once, and as many other requests.",
    session_hours="Hours that a login to the dashboard lasts.",
)
@settings.log_format
@settings.urls("redis_url", "mysql_url", "mysql_read_url")
def web_command(log_format: str, **options: Any) -> int:
    """Serve HTTP: increments in, totals out, and the dashboard.

    Every request needs a key. If there is no valid key, the command creates and prints one on a
    terminal; without a terminal it ends, and countersink key create makes a key. On SIGTERM and
    Ctrl-C it answers the open requests and stores accepted increments. Details: docs/http.md.
    """
    missing = [name for name in MODULES if find_spec(name) is None]
    if missing:
        raise Failure(f"countersink web needs {', '.join(missing)}: pip install 'countersink[web]'")
    from countersink.web.errors import CannotServe
    from countersink.web.server import LOG, run

    redis_url, mysql_url = settings.redis_url(), settings.mysql_url()
    options["mysql_read_url"] = settings.option_value("mysql_read_url")
    with values_checked():
        chosen = WebOptions(redis_url=redis_url, mysql_url=mysql_url, **options)
        producing = settings.producer_options(redis_url)
    with (
        logged(log_format) as handler,
        connect(redis_url, client_name="countersink-web-info") as client,
    ):

        def announce(text: str) -> None:
            if log_format == "json":
                LOG("announced", text)
            else:
                handler.write(f"countersink web: {text}\n")

        try:
            return run(
                chosen,
                producer=partial(Producer, redis_url, **asdict(producing)),
                system=partial(system_state, client, mysql_url),
                schedule=partial(control_job, mysql_url),
                announce=announce,
                terminal=sys.stderr.isatty(),
            )
        except CannotServe as error:
            if log_format == "json":
                LOG("cannot_serve", str(error), level=logging.ERROR)
                return Exit.FAILED
            raise Failure(str(error)) from error

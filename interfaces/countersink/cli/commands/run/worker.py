"""``countersink worker``: flags with help, in which states it is not ready (``_NOT_READY``), and
its samples for metrics; defaults and bounds are in ``worker/options.py``."""

from functools import partial
from typing import Any, Final

import click

from countersink.cli import metrics, settings
from countersink.cli.errors import values_checked
from countersink.metrics.health import Health, probes
from countersink.metrics.table import WORKER_STATES, Sample, Samples, one_of
from countersink.runtime.log import logged
from countersink.worker import Vitals, WorkerOptions, run

_NOT_READY: Final = ("starting", "waiting", "stopping")
"""States in which it does not work although both servers answer."""


@click.command("worker", cls=settings.Command)
@settings.one_off("--drain", is_flag=True, help="Stop when everything in the queue is applied.")
@settings.numbers(
    WorkerOptions,
    batch_entries="Entries to read at once from each stream.",
    batch_rows="Rows at which a batch is full.",
    batch_wait_ms="Milliseconds that one read waits for entries.",
    claim_idle_ms="Milliseconds after which another worker's idle entries are taken over.",
    claim_every_s="Seconds between two searches for such entries.",
    consumer_idle_ms="Milliseconds after which an idle consumer is removed.",
    stop_within_s="Seconds after SIGTERM within which the worker always ends.",
)
@metrics.options
@settings.log_format
@settings.urls("redis_url", "mysql_url")
def command(**options: Any) -> int:
    """Move increments from Redis into MySQL until stopped.

    Run one per core; each takes its own slot. On SIGTERM and Ctrl-C it finishes the current batch.
    While a server is away, the worker waits, logs that, and goes on by itself.
    """
    with values_checked():
        chosen = WorkerOptions(
            redis_url=settings.redis_url(), mysql_url=settings.mysql_url(), **options
        )
    vitals = Vitals()

    def said(url: str) -> None:
        with logged(chosen.log_format):  # the worker sets up its log later
            metrics.log(url)

    with metrics.served(partial(health, chosen, vitals), said):
        return run(chosen, vitals=vitals)


def health(options: WorkerOptions, vitals: Vitals) -> Health:
    """The health of a worker that runs with these."""
    return Health(
        process="worker",
        samples=lambda: _samples(vitals),
        probes=probes(redis=options.redis_url, mysql=options.mysql_url),
        moved=lambda: vitals.moved,
        busy=lambda: vitals.figures.state if vitals.figures.state in _NOT_READY else "",
    )


def _samples(vitals: Vitals) -> Samples:
    """Its own figures."""
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

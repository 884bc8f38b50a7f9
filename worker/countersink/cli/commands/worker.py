"""``countersink worker``."""

from dataclasses import fields
from functools import partial
from typing import Any, Final

import click

from countersink.cli import metrics, settings
from countersink.cli.failures import Misuse
from countersink.cli.metrics_worker import health
from countersink.worker import Vitals, WorkerOptions, run

DEFAULTS: Final[dict[str, Any]] = {field.name: field.default for field in fields(WorkerOptions)}


@click.command("worker", cls=settings.Command)
@settings.one_off("--drain", is_flag=True, help="Stop when everything in the queue is applied.")
@settings.number(DEFAULTS, "batch_entries", int, "Entries read at once, from each stream.")
@settings.number(DEFAULTS, "batch_rows", int, "Rows after which a transaction is big enough.")
@settings.number(DEFAULTS, "batch_wait_ms", int, "Milliseconds that one read waits for entries.")
@settings.number(
    DEFAULTS,
    "claim_idle_ms",
    int,
    "Milliseconds after which another worker's entries are taken over.",
)
@settings.number(DEFAULTS, "claim_every_s", float, "Seconds between two looks for such entries.")
@settings.number(
    DEFAULTS, "consumer_idle_ms", int, "Milliseconds after which a silent consumer is forgotten."
)
@settings.number(
    DEFAULTS,
    "stop_within_s",
    float,
    "Seconds after SIGTERM in which the worker ends, come what may.",
)
@metrics.options
@settings.log_format
@settings.redis_url
@settings.mysql_url
def command(
    redis_url: str | None,
    mysql_url: str | None,
    metrics_host: str,
    metrics_port: int | None,
    **options: Any,
) -> int:
    """Move increments from Redis into MySQL until stopped.

    Run one per core; each takes a slot of its own. SIGTERM and Ctrl-C finish the batch at hand.
    While a server is away the worker waits, says so, and goes on by itself.
    """
    redis_url = settings.needed(redis_url, "redis")
    mysql_url = settings.needed(mysql_url, "mysql")
    try:
        chosen = WorkerOptions(redis_url=redis_url, mysql_url=mysql_url, **options)
    except ValueError as error:
        raise Misuse(str(error), click.get_current_context()) from error
    vitals = Vitals()
    said = metrics.log_as(chosen.log_format)
    with metrics.served(metrics_host, metrics_port, partial(health, chosen, vitals), said):
        return run(chosen, vitals=vitals)

"""The flags ``--metrics-port`` and ``--metrics-host``, and the error if that port is taken; names
of metrics are in ``metrics/table.py``, when a process is ready is in its command."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

from countersink.cli import settings
from countersink.cli.errors import Failure
from countersink.metrics.endpoint import Endpoint
from countersink.metrics.health import Health

LOOPBACK: Final = "127.0.0.1"


options: Final = settings.together(
    settings.setting(
        "--metrics-port",
        type=click.IntRange(0, 65_535),
        metavar="PORT",
        expose_value=False,
        callback=settings.note,
        help="Port that serves /metrics, /livez and /readyz; 0 for any free one. By default nothing"
        " is served.",
    ),
    settings.setting(
        "--metrics-host",
        default=LOOPBACK,
        metavar="ADDRESS",
        expose_value=False,
        callback=settings.note,
        help="Address for --metrics-port. Anyone who reaches it can read it without a key.",
    ),
)
"""Decorator: ``--metrics-port`` and ``--metrics-host``, which :func:`served` knows."""


def log(url: str) -> None:
    """Log where metrics are served, to wherever the process logs."""
    logging.getLogger("countersink.metrics").info(
        "metrics and health are served", extra={"action": "metrics", "fields": {"url": url}}
    )


@contextmanager
def served(health: Callable[[], Health], say: Callable[[str], None] = log) -> Iterator[None]:
    """Serve inside the block, if a port is given.

    Args:
        health: makes what to tell.
        say: told the URL.

    Raises:
        Failure: it cannot listen there.
    """
    host, port = settings.noted("metrics_host"), settings.noted("metrics_port")
    if port is None:
        yield
        return
    try:
        endpoint = Endpoint(host, port, health())
    except OSError as error:
        raise Failure(
            f"metrics cannot be served at {host} port {port}: {error.strerror or error}; choose"
            " others with --metrics-host and --metrics-port"
        ) from error
    with endpoint:
        say(f"{endpoint.url}/metrics")
        yield

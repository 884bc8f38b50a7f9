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
from countersink.runtime.log import logged

LOOPBACK: Final = "127.0.0.1"


options: Final = settings.together(
    settings.setting(
        "--metrics-port",
        type=click.IntRange(0, 65_535),
        metavar="PORT",
        help="Port that serves /metrics, /livez and /readyz; 0 for any free one. By default nothing"
        " is served.",
    ),
    settings.setting(
        "--metrics-host",
        default=LOOPBACK,
        metavar="ADDRESS",
        help="Address for --metrics-port. Anyone who reaches it can read it without a key.",
    ),
)
"""Decorator: ``--metrics-port`` and ``--metrics-host``."""


def log(url: str) -> None:
    """Log where metrics are served, to wherever the process logs."""
    logging.getLogger("countersink.metrics").info(
        "metrics and health are served", extra={"action": "metrics", "fields": {"url": url}}
    )


def log_as(log_format: str) -> Callable[[str], None]:
    """:func:`log`, for a process that has not set up its log yet."""

    def say(url: str) -> None:
        with logged(log_format):
            log(url)

    return say


@contextmanager
def served(
    host: str, port: int | None, health: Callable[[], Health], say: Callable[[str], None] = log
) -> Iterator[None]:
    """Serve inside the block, if there is a ``port``.

    Args:
        host: the address to listen at.
        port: None: nothing is served.
        health: makes what to tell.
        say: told the URL.

    Raises:
        Failure: it cannot listen there.
    """
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

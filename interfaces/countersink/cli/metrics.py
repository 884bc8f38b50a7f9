"""The flags ``--metrics-port`` and ``--metrics-host``, and the HTTP endpoint that they open for
metrics and health.

See ``metrics/table.py`` for the names of metrics. The module of each command defines when its
process is ready.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

from countersink.cli import settings
from countersink.cli.errors import Failure
from countersink.metrics import Endpoint
from countersink.metrics.health import Health

LOOPBACK: Final = "127.0.0.1"


options: Final = settings.together(
    settings.setting(
        "--metrics-port",
        type=click.IntRange(0, 65_535),
        metavar="PORT",
        expose_value=False,
        callback=settings.record_option,
        help="Port that serves /metrics, /livez and /readyz; 0 for any free port. By default, they"
        " are not served.",
    ),
    settings.setting(
        "--metrics-host",
        default=LOOPBACK,
        metavar="ADDRESS",
        expose_value=False,
        callback=settings.record_option,
        help="Address for --metrics-port. Anyone who reaches it can read them, without a key.",
    ),
)
"""Decorator that adds ``--metrics-port`` and ``--metrics-host``; :func:`served` reads their
values."""


def log(url: str) -> None:
    """Log the URL at which metrics are served."""
    logging.getLogger("countersink.metrics").info(
        "metrics and health are served", extra={"action": "metrics", "fields": {"url": url}}
    )


@contextmanager
def served(health: Callable[[], Health], say: Callable[[str], None] = log) -> Iterator[None]:
    """Serve metrics and health inside the block; do nothing if ``--metrics-port`` is not given.

    Args:
        health: called once, when the endpoint opens; returns the object from which the endpoint
            reads the metrics and the health of the process.
        say: called with the URL of the metrics, as soon as the endpoint is open.

    Raises:
        Failure: the address or port cannot be used.
    """
    host, port = settings.option_value("metrics_host"), settings.option_value("metrics_port")
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

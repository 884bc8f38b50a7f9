"""``countersink up``."""

from collections.abc import Callable
from pathlib import Path

import click

from countersink.cli import settings
from countersink.producers.statsd.options import PORT as STATSD_PORT
from countersink.web.options import PORT as WEB_PORT


def _port(name: str, usual: int) -> Callable[[settings.Decorated], settings.Decorated]:
    """Decorator: the port of one of the listeners."""
    return settings.setting(
        f"--{name}-port",
        type=click.IntRange(0, 65_535),
        metavar="N",
        help=f"Port of countersink {name}; 0 for a free one.  [default: {usual}, or a free one]",
    )


@click.command("up", cls=settings.Command)
@settings.redis_url
@settings.mysql_url
@settings.setting(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("countersink-data"),
    show_default=True,
    metavar="DIR",
    help="Where the private servers keep their data, between runs too.",
)
@_port("web", WEB_PORT)
@_port("statsd", STATSD_PORT)
def command(
    redis_url: str | None,
    mysql_url: str | None,
    data: Path,
    web_port: int | None,
    statsd_port: int | None,
) -> None:
    """Run everything here: private servers, where no URL is configured, and all processes.

    Redis and MariaDB listen on this machine only, on free ports, with passwords of their own.
    The tables are brought up to date first. A worker, a scheduler, two job processes, the HTTP
    interface with its dashboard and the StatsD listener are started, for this machine only; of
    these and the private servers, what dies is started again. Ctrl-C or SIGTERM stops everything
    that was started here, and nothing else.
    """
    from countersink.cli.up.children import Ports
    from countersink.cli.up.run import run

    run(data, redis_url, mysql_url, Ports.chosen(web_port, statsd_port))

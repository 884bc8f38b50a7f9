"""``countersink up``."""

from pathlib import Path

import click

from countersink.cli import settings


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
def command(redis_url: str | None, mysql_url: str | None, data: Path) -> None:
    """Run everything here: private servers, where no URL is configured, and all processes.

    Redis and MariaDB listen on this machine only, on free ports, with passwords of their own.
    The tables are brought up to date first. A worker, a scheduler and two job processes are
    started; of these and the private servers, what dies is started again. Ctrl-C or SIGTERM stops
    everything that was started here, and nothing else.
    """
    from countersink.cli.up.run import run

    run(data, redis_url, mysql_url)

"""``countersink migrate``: what it prints; the work is in ``store/migrate.py``."""

import click

from countersink.cli import settings
from countersink.cli.output import write_json
from countersink.store.migrate import migrate


@click.command("migrate", cls=settings.Command)
@settings.mysql_url
@settings.output_format("text", "json")
def command(mysql_url: str | None, format: str) -> None:
    """Create the database and its tables, or bring them up to date.

    It is safe to run at any time, also several times at once. It refuses a schema that is newer
    than this program.
    """
    applied = migrate(settings.needed(mysql_url, "mysql"))
    if format == "json":
        write_json({"applied": applied})
        return
    for name in applied:
        click.echo(f"applied {name}")
    click.echo("The schema is up to date.")

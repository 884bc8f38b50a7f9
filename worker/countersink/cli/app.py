"""The ``countersink`` group: its commands, the settings file, and what every error becomes."""

import io
import sys
from typing import Final

import click

from countersink.cli import config_file, exits, failures
from countersink.cli.lazy import Lazy, LazyGroup

COMMANDS: Final[dict[str, Lazy]] = {
    "up": Lazy(
        "countersink.cli.commands.up:command",
        "Run everything here: private servers, where no URL is configured, and all processes.",
    ),
    "migrate": Lazy(
        "countersink.cli.commands.migrate:command",
        "Create the database and its tables, or bring them up to date.",
    ),
    "worker": Lazy(
        "countersink.cli.commands.worker:command",
        "Move increments from Redis into MySQL until stopped.",
    ),
    "scheduler": Lazy(
        "countersink.cli.commands.scheduler:command",
        "Plan the scheduled jobs until stopped.",
    ),
    "jobs": Lazy(
        "countersink.cli.commands.jobs:command",
        "Run the scheduled jobs, one at a time, until stopped.",
    ),
    "web": Lazy(
        "countersink.cli.commands.web:command",
        "Serve HTTP: increments in, totals out, and the dashboard.",
    ),
    "key": Lazy(
        "countersink.cli.commands.key:command",
        "Make keys of the HTTP interface, see them, end them.",
    ),
    "increment": Lazy(
        "countersink.cli.commands.increment:command",
        "Add to a counter, through the same queue as an app.",
    ),
    "totals": Lazy(
        "countersink.cli.commands.totals:command",
        "Show totals: by day, hour or month, by key, by counter, or one figure.",
    ),
    "export": Lazy(
        "countersink.cli.commands.export:command",
        "Write out all totals of counters, for other programs: CSV, NDJSON or Parquet.",
    ),
    "tail": Lazy(
        "countersink.cli.commands.tail:command",
        "Count the lines of a web server's access log.",
    ),
    "statsd": Lazy(
        "countersink.cli.commands.statsd:command",
        "Count what StatsD clients send, until stopped.",
    ),
    "backfill": Lazy(
        "countersink.cli.commands.backfill:command",
        "Count events that were missed, from logs and exports.",
    ),
    "backfills": Lazy(
        "countersink.cli.commands.backfills:command",
        "List backfills, show what they did, take one back.",
    ),
    "runs": Lazy(
        "countersink.cli.commands.runs:command",
        "Show the last runs of the scheduled jobs, and the next ones.",
    ),
    "counter": Lazy(
        "countersink.cli.commands.counter:command",
        "Make counters, see how they count, delete them.",
    ),
    "sequence": Lazy(
        "countersink.cli.commands.sequence:command",
        "Hand out numbers, each one once.",
    ),
    "compact": Lazy(
        "countersink.cli.commands.compact:command",
        "Add up the rows of each key into one, now.",
    ),
    "track": Lazy(
        "countersink.cli.commands.track:command",
        "Keep a table's row count, by triggers, from now on.",
    ),
    "untrack": Lazy(
        "countersink.cli.commands.untrack:command",
        "Stop counting a table's rows: drop the triggers and the counter.",
    ),
    "verify": Lazy(
        "countersink.cli.commands.verify:command",
        "Prove that nothing was lost or doubled in the tables.",
    ),
    "dead": Lazy(
        "countersink.cli.commands.dead:command",
        "List, retry or drop rows that could not be counted.",
    ),
    "spool": Lazy(
        "countersink.cli.commands.spool:command",
        "See and send what dead producers have left on disk.",
    ),
    "info": Lazy(
        "countersink.cli.commands.info:command",
        "Show the backlog, the workers and how far behind they are.",
    ),
    "doctor": Lazy(
        "countersink.cli.commands.doctor:command",
        "Check the servers and their settings, and say what to do.",
    ),
}
"""Every command; its module must define it under the name behind the colon."""


class App(LazyGroup):
    """The group; Ctrl-C ends a command without a word."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that the arguments name, and return what it returns: its exit status."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(exits.INTERRUPTED)


def show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Callback of ``--version``."""
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("countersink")
    except PackageNotFoundError:
        found = "from a source tree that is not installed"
    click.echo(f"countersink {found}")
    ctx.exit()


@click.group(
    cls=App,
    commands_table=COMMANDS,
    context_settings={
        "auto_envvar_prefix": "COUNTERSINK",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
    epilog="Settings come from a flag, else the environment, else countersink.toml: "
    "see docs/configuration.md.",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=config_file.apply,
    envvar="COUNTERSINK_CONFIG",
    show_envvar=True,
    help="Settings file; countersink.toml in the working directory, where there is one.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    allow_from_autoenv=False,
    callback=show_version,
    help="Show the version and exit.",
)
def app() -> None:
    """Counters that are fast to write and exact to read: increments go through Redis into MySQL,
    each one counted exactly once."""


def run(args: list[str] | None = None) -> int:
    """Run the command line ``args`` (default: the process's own) and return its exit status.

    Whatever went wrong was said on stderr in one sentence.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A key that the terminal's encoding lacks is shown escaped, not as an error.
            stream.reconfigure(errors="backslashreplace")
    try:
        result = app.main(args=args, prog_name="countersink", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        return failures.report(error)
    return result if isinstance(result, int) else exits.DONE

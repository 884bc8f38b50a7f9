"""The command line ``countersink``: all commands and the options ``--config`` and ``--version``.

``GROUPS`` lists the commands in the order of ``countersink --help``, with the headings and one-line
texts that the help shows."""

import io
import os
import sys
from importlib import import_module
from typing import Final, NoReturn

import click

from countersink.cli import errors, settings
from countersink.cli.errors import Exit

GROUPS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "Run": (
        "",
        {
            "up": "Run all processes on this machine, and private servers where no URL is"
            " configured.",
            "migrate": "Create the database and its tables, or bring them up to date.",
            "worker": "Move increments from Redis into MySQL until stopped.",
            "scheduler": "Plan the scheduled jobs until stopped.",
            "jobs": "Run the scheduled jobs, one at a time, until stopped.",
            "web": "Serve HTTP: increments in, totals out, and the dashboard.",
        },
    ),
    "Count": (
        "",
        {
            "increment": "Add to a counter, through the same queue as an app.",
            "tail": "Count the lines of a web server's access log.",
            "statsd": "Count the metrics that StatsD clients send, until stopped.",
            "backfill": "Count events that were missed, from logs and exports.",
            "backfills": "List, show and undo backfills.",
            "track": "Keep a table's row count up to date with triggers.",
            "untrack": "Stop counting a table's rows: drop the triggers and the counter.",
            "sequence": "Hand out numbers, each only once.",
        },
    ),
    "Read": (
        "",
        {
            "totals": "Show totals: by day, week, hour, minute, month, key, dimensions or counter,"
            " or one number.",
            "top": "Show the keys of a counter, or values of its dimensions, with the largest"
            " totals.",
            "export": "Export all totals of counters for other programs: CSV, NDJSON or Parquet.",
        },
    ),
    "Check and repair": (
        "operate.",
        {
            "doctor": "Check the servers and their settings, and advise what to do.",
            "verify": "Check that the tables have neither lost nor doubled a count.",
            "dead": "List, retry or drop rows that could not be counted.",
            "spool": "List and send the entries that dead producers left on disk.",
        },
    ),
    "Look after": (
        "operate.",
        {
            "info": "Show the backlog of the queue, its age, and the workers.",
            "partitions": "Show the partitions of the queue, or set their number.",
            "runs": "Show the last runs of the scheduled jobs, and the next ones.",
            "schedule": "List, pause, resume and run the scheduled jobs.",
            "counter": "Make, configure, show and delete counters.",
            "compact": "Compact now: add up the rows of each key in one row.",
            "key": "Create, list and revoke keys of the HTTP interface.",
            "board": "Create, list, show, change and delete boards of the dashboard.",
            "link": "Create, list and revoke links that show a counter or a board without a key.",
            "ops": "Write the files to deploy this version: units, manifests, alerts, rights.",
            "completion": "Print the script by which a shell completes commands and names.",
        },
    ),
}
"""The commands under each heading of ``countersink --help``. A heading has a pair: the package of
its commands' modules, relative to ``countersink.cli.commands`` (empty: that package itself), and
its commands with their help texts of one line. A test compares these with the first lines of the
commands' own help."""

_LOCATIONS: Final = {
    "migrate": "up:migrate_command",
    "worker": "processes:worker_command",
    "scheduler": "processes:scheduler_command",
    "jobs": "processes:jobs_command",
    "web": "processes:web_command",
    "runs": "operate.job_runs:command",
    "schedule": "operate.job_runs:schedule_group",
    "compact": "operate.job_runs:compact_command",
    "track": "track:track_command",
    "untrack": "track:untrack_command",
    "totals": "read:totals_command",
    "top": "read:top_command",
    "export": "read:export_command",
    "dead": "operate.recovery:dead_group",
    "spool": "operate.recovery:spool_group",
    "key": "operate.access:key_group",
    "board": "operate.access:board_group",
    "link": "operate.access:link_group",
    "completion": ".completion:command",
}
"""Where the function of a command is, if not at the usual place: ``module:function``, relative to
``countersink.cli.commands`` as in an import statement. The usual place is the function ``command``
in the module with the name of the command, in the package of its heading."""


class App(settings.DocumentedCommand, click.Group):
    """The group of all commands. It imports a command's module only when that command is called;
    ``countersink --help`` imports none. Ctrl-C ends a command with the status 130, without a
    message.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of ``GROUPS``."""
        return [name for _, commands in GROUPS.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of the command ``cmd_name``, and return the command. None if there is
        no command of this name."""
        for folder, commands in GROUPS.values():
            if cmd_name in commands:
                location = _LOCATIONS.get(cmd_name, f"{folder}{cmd_name}:command")
                module, _, name = location.partition(":")
                command = getattr(import_module(f".{module}", "countersink.cli.commands"), name)
                assert isinstance(command, click.Command)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name of the command that ``args`` begin with, the command, and the arguments
        after the name. Name and command are None if a shell completes an unknown command.

        Raises:
            click.UsageError: there is no such command; the message suggests similar ones.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            names = self.list_commands(ctx)
            raise click.NoSuchCommand(error.command_name, possibilities=names, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings into the help text. Headings and texts come from
        ``GROUPS``, so no command's module is imported."""
        width = max(map(len, self.list_commands(ctx)))
        for heading, (_, commands) in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that the arguments name, and return the result of its function: the exit
        status, or None for 0. After Ctrl-C, raise click's Exit with the status 130. If the reader
        of stdout closed the pipe, raise BrokenPipeError, for which :func:`run` returns 141."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(Exit.INTERRUPTED)
        except BrokenPipeError as error:
            raise BrokenPipeError from error  # click exits with 1 if it has an errno


@click.group(
    cls=App,
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
    callback=settings.apply_file,
    envvar="COUNTERSINK_CONFIG",
    show_envvar=True,
    help="Settings file; by default countersink.toml in the working directory, if it exists.",
)
@click.version_option(
    package_name="countersink",
    prog_name="countersink",
    message="%(prog)s %(version)s",
    allow_from_autoenv=False,
)
def app() -> None:
    """Counters that are fast to write and exact to read: increments go through Redis into MySQL,
    each one counted exactly once."""


def run(args: list[str] | None = None) -> int:
    """Run the command line with the arguments ``args``, and return the exit status. If ``args`` is
    None, the arguments are those of this process.

    No exception is raised: an error is printed on stderr as one sentence (see ``cli/errors.py``).
    Nothing is printed after Ctrl-C, or if the reader of stdout closed the pipe. If a shell runs
    this process to get completions, no error is printed, and the status is 0 even after an error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A key that the terminal's encoding cannot show is escaped.
            stream.reconfigure(errors="backslashreplace")
    urls: set[str] = set()
    try:
        result = app.main(args=args, obj=urls, prog_name="countersink", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        if settings.COMPLETION_VARIABLE in os.environ:  # a shell shows nothing but completions
            return Exit.DONE
        return errors.report(error, urls)
    return result if isinstance(result, int) else Exit.DONE


def main() -> NoReturn:
    """Run the command line with the arguments of this process, and exit with its status (see
    ``Exit`` in ``cli/errors.py``)."""
    _occupy_standard_descriptors()
    sys.exit(run())


def _occupy_standard_descriptors() -> None:
    """Open /dev/null in place of each of the descriptors 0 to 2 that is closed.

    ``countersink totals c >&-``, for example, starts with descriptor 1 closed. The next file or
    connection that the process opens would get the number 1, and the command would write its output
    into that file. With /dev/null in its place, output is discarded. It is opened for writing only,
    so reading from a descriptor 0 that was closed fails.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # open() returns the lowest free number: this one.
            os.open(os.devnull, os.O_WRONLY)
            os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")

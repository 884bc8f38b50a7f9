"""``countersink sequence next|peek|set|reset|list|configure|periods|delete``."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Final

import click

from countersink.cli import output, sequence_view, settings
from countersink.cli.failures import Failure, Misuse
from countersink.cli.sequence_types import NAME, NONE, NUMBER, NUMBER_SETTING, TakesNumbers
from countersink.cli.types import DAY
from countersink.cli.zones import ZONE
from countersink.store import Store, StoreError
from countersink.store.sequences import Sequences
from countersink.store.sequences.boundaries import PERIODS

MOST: Final = 1_000_000
"""Values that one command prints."""


@click.group("sequence", cls=settings.Group)
def command() -> None:
    """Hand out numbers, each one once.

    A sequence needs no making: the first `next` makes it. Any text of up to 255 bytes will do as
    its name; write -- before one that begins with a dash. No number is handed out twice, whoever
    dies on the way; there can be gaps.
    """


@command.command("next", cls=settings.Command)
@click.argument("name", type=NAME)
@settings.one_off(
    "--step", metavar="N", type=NUMBER, help="Add so much.  [default: as configured, else 1]"
)
@settings.one_off(
    "--start",
    metavar="N",
    type=NUMBER,
    help="The value, where there is none yet.  [default: as configured, else the step]",
)
@settings.one_off(
    "--block", metavar="N", type=click.IntRange(1, MOST), help="So many values at once."
)
@settings.output_format("text", "json")
@settings.mysql_url
def next_command(
    name: str,
    step: int | None,
    start: int | None,
    block: int | None,
    format: str,
    mysql_url: str | None,
) -> None:
    """Add, and print the value: nothing else, or with --block one value per line.

    If it fails after it has asked the server, the value may be gone: the next one is another.
    """
    with _sequences(mysql_url) as sequences:
        if block is None:
            values: Sequence[int] = [sequences.next(name, step, start=start)]
        else:
            values = sequences.next_block(name, block, step, start=start)
    if format == "json":
        output.write_json({"sequence": name, "values": list(values)})
    else:
        click.echo("\n".join(map(str, values)))


@command.command("peek", cls=settings.Command)
@click.argument("name", type=NAME)
@settings.one_off("--period", metavar="DAY", type=DAY, help="Of the period in which this day lies.")
@settings.output_format("text", "json")
@settings.mysql_url
def peek_command(name: str, period: date | None, format: str, mysql_url: str | None) -> None:
    """Print the last value that was handed out, without taking one."""
    with _sequences(mysql_url) as sequences:
        value = sequences.peek(name, period=period)
    if value is None:
        when = "" if period is None else f" in the period of {period}"
        raise Failure(
            f"{sequence_view.shown(name)} has no value{when}; countersink sequence periods shows"
            " the periods in which a sequence has one, countersink sequence list all sequences"
        )
    if format == "json":
        output.write_json({"sequence": name, "value": value})
    else:
        click.echo(str(value))


@command.command("set", cls=TakesNumbers)
@click.argument("name", type=NAME)
@click.argument("value", type=NUMBER)
@settings.output_format("text", "json")
@settings.mysql_url
def set_command(name: str, value: int, format: str, mysql_url: str | None) -> None:
    """Make VALUE the last value of the current period: the next one is a step beyond it.

    Set back, it hands out again what it has handed out before.
    """
    with _sequences(mysql_url) as sequences:
        sequences.set(name, value)
    if format == "json":
        output.write_json({"sequence": name, "value": value})
    else:
        click.echo(f"{sequence_view.shown(name)} is at {value}")


@command.command("reset", cls=settings.Command)
@click.argument("names", nargs=-1, type=NAME, metavar="[NAME]...")
@settings.one_off("--all", "everything", is_flag=True, help="All sequences there are.")
@settings.one_off("--yes", is_flag=True, help="Do not ask.")
@settings.output_format("text", "json")
@settings.mysql_url
def reset_command(
    names: Sequence[str], everything: bool, yes: bool, format: str, mysql_url: str | None
) -> None:
    """Let sequences begin again at their start, in the current period.

    Past periods and settings stay. Numbers that were handed out come again. --all asks first on a
    terminal.
    """
    if bool(names) == everything:
        raise Misuse("say which: NAME... or --all", click.get_current_context())
    if everything:
        _ask(yes, "Let all sequences begin again?", "nothing was reset")
    if everything:
        with _sequences(mysql_url) as sequences:
            count = sequences.reset_all()
        if format == "json":
            output.write_json({"reset": count, "last_values": {}})
        else:
            click.echo(f"reset {count:,}")
        return
    last: dict[str, int | None] = {}
    try:
        with _sequences(mysql_url) as sequences:
            for name in dict.fromkeys(names):
                last[name] = sequences.reset(name)
    finally:
        sequence_view.print_reset(last, format)  # where one fails, those before it were reset


@command.command("list", cls=settings.Command)
@click.argument("prefix", type=NAME, default="")
@settings.output_format("table", "json", "csv")
@settings.mysql_url
def list_command(prefix: str, format: str, mysql_url: str | None) -> None:
    """List sequences, or those whose names begin with PREFIX, and where they are.

    The value is the last one of the current period, and - where there is none yet.
    """
    with _sequences(mysql_url) as sequences:
        found = sequences.list(prefix)
    if format == "json":
        output.write_json({"sequences": [sequence_view.document(one) for one in found]})
    elif format == "csv":
        output.write_csv(sequence_view.COLUMNS, [sequence_view.document(one) for one in found])
    else:
        sequence_view.print_list(found)


@command.command("configure", cls=settings.Command)
@click.argument("name", type=NAME)
@settings.one_off(
    "--start",
    metavar="N|none",
    type=NUMBER_SETTING,
    help="First value of each period; none: the step.",
)
@settings.one_off("--step", metavar="N|none", type=NUMBER_SETTING, help="What is added; none: 1.")
@settings.one_off("--minimum", metavar="N|none", type=NUMBER_SETTING, help="No value is below it.")
@settings.one_off("--maximum", metavar="N|none", type=NUMBER_SETTING, help="No value is above it.")
@settings.one_off(
    "--cycle/--no-cycle", default=None, help="At the end begin again, or fail; at first it fails."
)
@settings.one_off(
    "--period",
    type=click.Choice(PERIODS),
    help="Begin again with each of these; none: never, as at first.",
)
@settings.one_off(
    "--time-zone", metavar="ZONE", type=ZONE, help="Whose midnights begin a period; at first UTC."
)
@settings.output_format("table", "json")
@settings.mysql_url
def configure_command(
    name: str,
    format: str,
    mysql_url: str | None,
    **given: int | str | bool | None,
) -> None:
    """Change the settings that are given, and show all of a sequence's.

    They are in force for the next value, whoever asks for it. Period and time zone can only be
    chosen while the sequence has no values.
    """
    changes = {
        option: None if value == NONE and option != "period" else value
        for option, value in given.items()
        if value is not None
    }
    with _sequences(mysql_url) as sequences:
        made = sequences.configure(name, **changes)  # type: ignore[arg-type]
    if format == "json":
        output.write_json(sequence_view.document(made))
    else:
        sequence_view.print_one(made)


@command.command("periods", cls=settings.Command)
@click.argument("name", type=NAME)
@settings.output_format("table", "json", "csv")
@settings.mysql_url
def periods_command(name: str, format: str, mysql_url: str | None) -> None:
    """Show the last value of each period, and their sum."""
    with _sequences(mysql_url) as sequences:
        periods = sequences.periods(name)
        if not periods:
            raise Failure(
                f"{sequence_view.shown(name)} has no value in any period; countersink sequence list"
                " shows all sequences"
            )
    rows = [sequence_view.period_document(period) for period in periods]
    total = sum(period.value for period in periods)
    if format == "json":
        output.write_json({"sequence": name, "periods": rows, "total": total})
    elif format == "csv":
        output.write_csv(sequence_view.PERIOD_COLUMNS, rows)
    else:
        sequence_view.print_periods(rows, total)


@command.command("delete", cls=settings.Command)
@click.argument("name", type=NAME)
@settings.one_off("--yes", is_flag=True, help="Do not ask.")
@settings.output_format("text", "json")
@settings.mysql_url
def delete_command(name: str, yes: bool, format: str, mysql_url: str | None) -> None:
    """Delete a sequence: the values of all its periods, and its settings.

    The next `next` makes it anew, and hands out its numbers again. On a terminal it asks first.
    """
    _ask(yes, f"Delete sequence {sequence_view.shown(name)} for good?", "nothing was deleted")
    with _sequences(mysql_url) as sequences:
        deleted = sequences.delete(name)
    if not deleted:
        raise Failure(f"there is no sequence {sequence_view.shown(name)}")
    if format == "json":
        output.write_json({"sequence": name, "deleted": True})
    else:
        click.echo(f"deleted sequence {sequence_view.shown(name)}")


@contextmanager
def _sequences(mysql_url: str | None) -> Iterator[Sequences]:
    """The sequences; what they refuse is wrong usage."""
    with Store(settings.needed(mysql_url, "mysql")) as store:
        try:
            yield store.sequences
        except StoreError:
            raise  # some of them are ValueErrors too
        except ValueError as error:
            raise Misuse(str(error), click.get_current_context()) from error


def _ask(yes: bool, question: str, otherwise: str) -> None:
    if not yes and sys.stdin.isatty() and not click.confirm(question, err=True):
        raise Failure(otherwise)

"""``countersink sequence``: flags, columns, JSON and texts of its subcommands; what sequences
refuse is worded in ``sequences/``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from functools import partial
from typing import Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Failure, Misuse, values_checked
from countersink.cli.settings import DAY, ZONE, Checked
from countersink.runtime.texts import iso
from countersink.sequences import Sequences
from countersink.sequences.options import DEFAULTS, FIELDS, PERIODS, name_bytes, number
from countersink.sequences.records import Sequence as StoredSequence

MOST: Final = 1_000_000
"""Values that one command prints."""


NONE: Final = "none"
"""What takes a setting away."""


def _name(text: str) -> str:
    name_bytes(text)
    return text


def _number(text: str) -> int:
    return number(settings.whole_number(text), "a number")


def _setting(text: str) -> int | str:
    return NONE if text == NONE else _number(text)


NAME: Final = Checked("name", _name)
NUMBER: Final = Checked("number", _number)
NUMBER_SETTING: Final = Checked("number", _setting)


@click.group("sequence", cls=settings.CommandGroup)
def command() -> None:
    """Hand out numbers, each only once.

    The first `next` makes a sequence. Its name may be any text of up to 255 bytes; write -- before
    a name or a number that begins with a dash. No number is handed out twice, even if a process
    dies; there can be gaps.
    """


@command.command("next", cls=settings.Command)
@click.argument("name", type=NAME)
@settings.one_off(
    "--step", metavar="N", type=NUMBER, help="How much to add.  [default: as configured, else 1]"
)
@settings.one_off(
    "--start",
    metavar="N",
    type=NUMBER,
    help="The first value, if there is none yet.  [default: as configured, else the step]",
)
@settings.one_off(
    "--block", metavar="N", type=click.IntRange(1, MOST), help="How many values to take at once."
)
@settings.of_mysql("text", "json")
def next_command(name: str, step: int | None, start: int | None, block: int | None) -> None:
    """Take the next value and print it alone; with --block, one value per line.

    If the command fails after it has asked the server, the value may be lost: the next call takes
    another.
    """
    with _sequences() as sequences:
        if block is None:
            values: Sequence[int] = [sequences.next(name, step, start=start)]
        else:
            values = sequences.next_block(name, block, step, start=start)
    document = {"sequence": name, "values": list(values)}
    output.write_result(document, "\n".join(map(str, values)))


@command.command("peek", cls=settings.Command)
@click.argument("name", type=NAME)
@settings.one_off(
    "--period", type=DAY, help="Print the value of the period that contains this day."
)
@settings.of_mysql("text", "json")
def peek_command(name: str, period: date | None) -> None:
    """Print the last value that was handed out, without taking one."""
    with _sequences() as sequences:
        value = sequences.peek(name, period=period)
    if value is None:
        when = "" if period is None else f" in the period of {period}"
        raise Failure(
            f"{_shown(name)} has no value{when}; countersink sequence periods shows"
            " the periods in which a sequence has one, countersink sequence list all sequences"
        )
    output.write_result({"sequence": name, "value": value}, str(value))


@command.command("set", cls=settings.Command)
@click.argument("name", type=NAME)
@click.argument("value", type=NUMBER)
@settings.of_mysql("text", "json")
def set_command(name: str, value: int) -> None:
    """Make VALUE the last value of the current period: the next one is a step beyond it.

    A sequence that is set back hands out the same numbers again.
    """
    with _sequences() as sequences:
        sequences.set(name, value)
    document = {"sequence": name, "value": value}
    output.write_result(document, f"{_shown(name)} is at {value}")


@command.command("reset", cls=settings.Command)
@click.argument("names", nargs=-1, type=NAME, metavar="[NAME]...")
@settings.one_off("--all", "everything", is_flag=True, help="Reset all sequences.")
@settings.one_off("--yes", is_flag=True, help="Do not ask.")
@settings.of_mysql("text", "json")
def reset_command(names: Sequence[str], everything: bool, yes: bool) -> None:
    """Restart sequences at their start, in the current period.

    Past periods and settings stay. Numbers that were handed out come again. --all asks
    first, unless --yes is given.
    """
    if bool(names) == everything:
        raise Misuse("say which: NAME... or --all")
    if everything:
        output.confirm(yes, "Let all sequences begin again?", "nothing was reset")
        with _sequences() as sequences:
            count = sequences.reset_all()
        output.write_result({"reset": count, "last_values": {}}, f"reset {count:,}")
        return
    last: dict[str, int | None] = {}
    try:
        with _sequences() as sequences:
            for name in dict.fromkeys(names):
                last[name] = sequences.reset(name)
    finally:
        _print_reset(last)  # where one fails, those before it were reset


@command.command("list", cls=settings.Command)
@click.argument("prefix", type=NAME, default="")
@settings.of_mysql("table", "json", "csv")
def list_command(prefix: str) -> None:
    """List all sequences, or those whose names begin with PREFIX, with their values.

    The value is the last one of the current period, or - if there is none yet.
    """
    with _sequences() as sequences:
        found = sequences.list(prefix)
    rows = list(map(_document, found))
    shown = partial(_print_list, found)
    output.write_result({"sequences": rows}, shown, csv=(_COLUMNS, rows))


@command.command("configure", cls=settings.Command)
@click.argument("name", type=NAME)
@settings.one_off(
    "--start",
    metavar="N|none",
    type=NUMBER_SETTING,
    help="First value of each period; none: the step.",
)
@settings.one_off(
    "--step", metavar="N|none", type=NUMBER_SETTING, help="What each value adds; none: 1."
)
@settings.one_off("--minimum", metavar="N|none", type=NUMBER_SETTING, help="Lowest value.")
@settings.one_off("--maximum", metavar="N|none", type=NUMBER_SETTING, help="Highest value.")
@settings.one_off(
    "--cycle/--no-cycle", default=None, help="At the end, begin again or fail; initially fail."
)
@settings.one_off(
    "--period",
    type=click.Choice(PERIODS),
    help="Period after which values begin again; none: never; initially none.",
)
@settings.one_off(
    "--time-zone", type=ZONE, help="Time zone whose midnights begin a period; initially UTC."
)
@settings.of_mysql("table", "json")
def configure_command(name: str, **given: int | str | bool | None) -> None:
    """Change the given settings of a sequence, and show all its settings.

    Changes apply from the next value on, for every caller. Period and time zone can only be chosen
    while the sequence has no values.
    """
    changes = {
        option: None if value == NONE and option != "period" else value
        for option, value in given.items()
        if value is not None
    }
    with _sequences() as sequences:
        made = sequences.configure(name, **changes)  # type: ignore[arg-type]
    output.write_result(_document(made), partial(_print_one, made))


@command.command("periods", cls=settings.Command)
@click.argument("name", type=NAME)
@settings.of_mysql("table", "json", "csv")
def periods_command(name: str) -> None:
    """Show the last value of each period, and their sum."""
    with _sequences() as sequences:
        periods = sequences.periods(name)
        if not periods:
            raise Failure(
                f"{_shown(name)} has no value in any period; countersink sequence list"
                " shows all sequences"
            )
    rows = [output.document(one, _PERIOD_COLUMNS, period_start=one.start) for one in periods]
    total = sum(period.value for period in periods)
    document = {"sequence": name, "periods": rows, "total": total}
    shown = partial(_print_periods, rows, total)
    output.write_result(document, shown, csv=(_PERIOD_COLUMNS, rows))


@command.command("delete", cls=settings.Command)
@click.argument("name", type=NAME)
@settings.one_off("--yes", is_flag=True, help="Do not ask.")
@settings.of_mysql("text", "json")
def delete_command(name: str, yes: bool) -> None:
    """Delete a sequence: the values of all its periods, and its settings.

    The next `next` makes the sequence again, and hands out its numbers again. The command
    asks first, unless --yes is given.
    """
    output.confirm(yes, f"Delete sequence {_shown(name)} for good?", "nothing was deleted")
    with _sequences() as sequences:
        deleted = sequences.delete(name)
    if not deleted:
        raise Failure(f"there is no sequence {_shown(name)}")
    document = {"sequence": name, "deleted": True}
    output.write_result(document, f"deleted sequence {_shown(name)}")


@contextmanager
def _sequences() -> Iterator[Sequences]:
    """The sequences; what they refuse is wrong usage."""
    store = settings.open_store()
    with values_checked():
        yield store.sequences


_COLUMNS: Final = ("sequence", "value", "period_start", "updated_at", *FIELDS)
"""Of a sequence, in JSON and CSV; empty is what it has not."""
_PERIOD_COLUMNS: Final = ("period_start", "value", "updated_at")
"""Of a period, in JSON and CSV."""


def _document(sequence: StoredSequence) -> output.Row:
    """A sequence as JSON: ``_COLUMNS``."""
    return output.document(sequence, _COLUMNS, sequence=sequence.name, **asdict(sequence.options))


def _print_one(sequence: StoredSequence) -> None:
    """A sequence's settings, for people."""
    options = sequence.options
    facts = {
        "sequence": sequence.name,
        "value": sequence.value,
        "start": "the step" if options.start is None else options.start,
        "step": options.step,
        "minimum": options.minimum,
        "maximum": options.maximum,
        "at the end": "begins again" if options.cycle else "fails",
        "period": options.period,
        "time zone": options.time_zone,
    }
    output.write_facts(facts)


def _print_list(sequences: Sequence[StoredSequence]) -> None:
    """Sequences for people, one line each."""
    columns = ("sequence", ">value", "period", "updated at", "settings")
    rows = (
        (one.name, one.value, one.period_start, iso(one.updated_at), _settings(one))
        for one in sequences
    )
    output.write_rows(columns, rows, otherwise="There are no sequences.")


def _print_periods(rows: Sequence[output.Row], total: int) -> None:
    """Periods for people, one line each, and their sum."""
    cells = [(row["period_start"] or "all time", row["value"], row["updated_at"]) for row in rows]
    if len(rows) > 1:
        cells.append(("all", total, ""))
    output.write_rows(("period", ">value", "updated at"), cells)


def _settings(sequence: StoredSequence) -> str:
    """What is not as it is of a sequence that nobody has configured."""
    options = sequence.options
    said = []
    for name in ("start", "step", "minimum", "maximum"):
        number = getattr(options, name)
        if number != getattr(DEFAULTS, name):
            said.append(f"{name} {number:,}")
    if options.cycle:
        said.append("cycle")
    if options.period != "none":
        said.append(f"by {options.period} in {options.time_zone}")
    return ", ".join(said)


def _print_reset(last: dict[str, int | None]) -> None:
    """Print which sequences were reset, with their last values; nothing if none was."""
    if not last:
        return
    count = sum(value is not None for value in last.values())
    lines = [
        f"{_shown(name)} had no value"
        if value is None
        else f"reset {_shown(name)}, which was at {value}"
        for name, value in last.items()
    ]
    output.write_result({"reset": count, "last_values": last}, "\n".join(lines))


def _shown(name: str) -> str:
    """A name in a sentence."""
    return output.cell(name) or repr(name)

"""``countersink sequence``: flags, columns, JSON and texts of its commands.

See ``sequences/`` for the sequences and their errors.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from functools import partial
from typing import Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Misuse, NotFound
from countersink.cli.settings import values_checked
from countersink.cli.values import DAY, ZONE, Checked, whole_number
from countersink.runtime.texts import iso, plural
from countersink.sequences import Sequences
from countersink.sequences.options import DEFAULTS, FIELDS, PERIODS, name_bytes, number
from countersink.sequences.records import Sequence as StoredSequence

MAX_VALUES: Final = 1_000_000
"""Most values that one command hands out."""
NONE: Final = "none"
"""The value of an option that removes a setting."""


def _name(text: str) -> str:
    name_bytes(text)
    return text


def _number(text: str) -> int:
    return number(whole_number(text), "a number")


def _setting(text: str) -> int | str:
    return NONE if text == NONE else _number(text)


NAME: Final = Checked("sequence", _name)
NUMBER: Final = Checked("number", _number)
NUMBER_SETTING: Final = Checked("number", _setting)


@click.group("sequence", cls=settings.CommandGroup)
def command() -> None:
    """Hand out numbers, each only once.

    The first `next` makes a sequence. Its name may be any text of up to 255 bytes; write -- before
    a name or number that begins with a dash. No number is handed out twice, even if a process dies
    (until you set, reset or delete the sequence, or its period or cycle ends), but some may be
    skipped.
    """


@command.command("next", cls=settings.Command)
@click.argument("name", type=NAME)
@settings.one_off(
    "--step", metavar="N", type=NUMBER, help="Number to add.  [default: as configured, else 1]"
)
@settings.one_off(
    "--start",
    metavar="N",
    type=NUMBER,
    help="The first value of a new sequence or period.  [default: as configured, else the step]",
)
@settings.one_off(
    "--block",
    metavar="N",
    type=click.IntRange(1, MAX_VALUES),
    help="Number of values to take at once.",
)
@settings.mysql_options("text", "json")
def next_command(name: str, step: int | None, start: int | None, block: int | None) -> None:
    """Take the next value and print it; with --block, print one value per line.

    If the command fails after its request to the server, the value may be lost: the next call takes
    another value.
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
@settings.mysql_options("text", "json")
def peek_command(name: str, period: date | None) -> None:
    """Print the last value that was handed out, without taking one."""
    with _sequences() as sequences:
        value = sequences.peek(name, period=period)
    if value is None:
        when = "" if period is None else f" in the period of {period}"
        raise NotFound(
            f"{_shown(name)} has no value{when}: countersink sequence periods shows"
            " the periods with values, countersink sequence list all sequences"
        )
    output.write_result({"sequence": name, "value": value}, str(value))


@command.command("set", cls=settings.Command)
@click.argument("name", type=NAME)
@click.argument("value", type=NUMBER)
@settings.mysql_options("text", "json")
def set_command(name: str, value: int) -> None:
    """Set the last value of the current period: the next value is one step beyond VALUE.

    A sequence that is set to an earlier value hands out the same numbers again.
    """
    with _sequences() as sequences:
        sequences.set(name, value)
    document = {"sequence": name, "value": value}
    output.write_result(document, f"{_shown(name)} is at {value}")


@command.command("reset", cls=settings.Command)
@click.argument("names", nargs=-1, type=NAME, metavar="[NAME]...")
@settings.one_off("--all", "everything", is_flag=True, help="Reset all sequences.")
@settings.one_off("--yes", is_flag=True, help="Do not ask.")
@settings.mysql_options("text", "json")
def reset_command(names: Sequence[str], everything: bool, yes: bool) -> None:
    """Restart sequences at their start, in the current period.

    Past periods and settings stay. Numbers are handed out again. --all asks first, unless --yes is
    given.
    """
    if bool(names) == everything:
        raise Misuse("give NAME... or --all")
    if everything:
        output.confirm(yes, "Restart all sequences?", "nothing was reset")
        with _sequences() as sequences:
            count = sequences.reset_all()
        text = f"reset {plural(count, 'sequence')}"
        output.write_result({"reset": count, "last_values": {}}, text)
        return
    last: dict[str, int | None] = {}
    try:
        with _sequences() as sequences:
            for name in dict.fromkeys(names):
                last[name] = sequences.reset(name)
    finally:
        _print_reset(last)  # also if an error comes after some were reset


@command.command("list", cls=settings.Command)
@click.argument("prefix", type=NAME, default="")
@settings.mysql_options("table", "json", "csv")
def list_command(prefix: str) -> None:
    """List all sequences, or those whose names begin with PREFIX, with their values.

    The value is the last one of the current period, or - if there is none yet.
    """
    with _sequences() as sequences:
        found = sequences.list(prefix)
    rows = list(map(_document, found))
    shown = partial(_print_list, found, prefix)
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
    "--step", metavar="N|none", type=NUMBER_SETTING, help="Difference of two values; none: 1."
)
@settings.one_off("--minimum", metavar="N|none", type=NUMBER_SETTING, help="Lowest value.")
@settings.one_off("--maximum", metavar="N|none", type=NUMBER_SETTING, help="Highest value.")
@settings.one_off(
    "--cycle/--no-cycle", default=None, help="At the end, restart or fail; initially fail."
)
@settings.one_off(
    "--period",
    type=click.Choice(PERIODS),
    help="Period after which values restart; none: never; initially none.",
)
@settings.one_off("--time-zone", type=ZONE, help="Time zone of the periods; initially UTC.")
@settings.mysql_options("table", "json")
def configure_command(name: str, **given: int | str | bool | None) -> None:
    """Change the given settings of a sequence, and show all its settings.

    Changes apply from the next value on, for every caller. Period and time zone can only change
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
@settings.mysql_options("table", "json", "csv")
def periods_command(name: str) -> None:
    """Show the last value of each period, and their sum."""
    with _sequences() as sequences:
        periods = sequences.periods(name)
        if not periods:
            raise NotFound(
                f"{_shown(name)} has no value in any period: countersink sequence list"
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
@settings.mysql_options("text", "json")
def delete_command(name: str, yes: bool) -> None:
    """Delete a sequence: the values of all its periods, and its settings.

    A later `next` makes the sequence again, and hands out its numbers again. The command asks
    first, unless --yes is given.
    """
    output.confirm(yes, f"Delete sequence {_shown(name)} for good?", "nothing was deleted")
    with _sequences() as sequences:
        deleted = sequences.delete(name)
    if not deleted:
        raise NotFound(f"there is no sequence {_shown(name)}")
    document = {"sequence": name, "deleted": True}
    output.write_result(document, f"deleted sequence {_shown(name)}")


@contextmanager
def _sequences() -> Iterator[Sequences]:
    """Yield the :class:`Sequences` of the database at ``--mysql-url``. A ValueError that is raised
    inside the block becomes :class:`Misuse`, unless it is an :class:`ExplainedError`."""
    store = settings.open_store()
    with values_checked():
        yield store.sequences


_COLUMNS: Final = ("sequence", "value", "period_start", "updated_at", *FIELDS)
"""Columns of a sequence in JSON and CSV. A missing value is null in JSON and empty in CSV."""
_PERIOD_COLUMNS: Final = ("period_start", "value", "updated_at")
"""Columns of a period in JSON and CSV."""


def _document(sequence: StoredSequence) -> output.Document:
    """Return a sequence as a JSON document with the members ``_COLUMNS``: its name, last value,
    begin of the current period, time of the last change of the value, and settings."""
    return output.document(sequence, _COLUMNS, sequence=sequence.name, **asdict(sequence.options))


def _print_one(sequence: StoredSequence) -> None:
    """Print the name, the value and the settings of a sequence as text."""
    options = sequence.options
    facts = {
        "sequence": sequence.name,
        "value": sequence.value,
        "start": "the step" if options.start is None else options.start,
        "step": options.step,
        "minimum": options.minimum,
        "maximum": options.maximum,
        "at the end": "restarts" if options.cycle else "fails",
        "period": options.period,
        "time zone": options.time_zone,
    }
    output.write_facts(facts)


def _print_list(sequences: Sequence[StoredSequence], prefix: str) -> None:
    """Print sequences as a table; without any, print a sentence. ``prefix`` is the text with which
    the names of the listed sequences begin, for that sentence; empty if all are listed."""
    columns = ("sequence", ">value", "-period", "-updated at", "settings")
    rows = (
        (one.name, one.value, one.period_start, iso(one.updated_at), _settings(one))
        for one in sequences
    )
    none = f"No sequence begins with {prefix}." if prefix else "There are no sequences."
    output.write_rows(columns, rows, otherwise=none)


def _print_periods(rows: Sequence[output.Document], total: int) -> None:
    """Print the periods of a sequence as a table; if there are several, also ``total``, the sum of
    their values."""
    cells = [(row["period_start"] or "all time", row["value"], row["updated_at"]) for row in rows]
    if len(rows) > 1:
        cells.append(("all", total, ""))
    output.write_rows(("period", ">value", "updated at"), cells)


def _settings(sequence: StoredSequence) -> str:
    """Return the settings of a sequence that differ from the defaults, as text; empty if none does.
    The time zone is named only if the sequence has a period."""
    options = sequence.options
    changed = []
    for name in ("start", "step", "minimum", "maximum"):
        number = getattr(options, name)
        if number != getattr(DEFAULTS, name):
            changed.append(f"{name} {number:,}")
    if options.cycle:
        changed.append("cycle")
    if options.period != "none":
        changed.append(f"by {options.period} in {options.time_zone}")
    return ", ".join(changed)


def _print_reset(last: dict[str, int | None]) -> None:
    """Print the result of a reset; nothing if ``last`` is empty. ``last`` has the names of the
    sequences that were reset, each with its value before that, or None if it had no value."""
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
    """Return the name of a sequence for use in a sentence, with control characters escaped. The
    empty name becomes two quotes, ``''``."""
    return output.display(name) or repr(name)

"""Flags that ``tail`` and ``backfill`` share (``--input-format``, ``--log-format``, ``--envelope``,
``--time-zone``, ``--where``, ``--dimension``, ``--visitor``, ``--allow-rejects``), and parsing of
their values, with their errors. The flags of ``countersink backfill`` with their help, and the
errors for those that exclude each other."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, cast

import click

from countersink.backfill import formats
from countersink.backfill.options import INPUT_FORMATS, BackfillOptions, Recipe
from countersink.cli import settings
from countersink.cli.errors import Misuse, values_checked
from countersink.cli.settings import COUNTER, DAY, DIMENSION, SECONDS, TEXT, ZONE, Checked, Finite
from countersink.logs import template
from countersink.logs.formats.detection import ENVELOPES
from countersink.logs.template import Condition, Operator
from countersink.logs.times import UNITS

_CONDITION: Final = re.compile(r"(.+?)\s*(!=|!~|=|~)\s*(.*)", re.DOTALL)


Option = Callable[[settings.Decorated], settings.Decorated]


class _Conditions(Checked[Condition]):
    """Conditions; several in one text are divided by spaces, and quoted as in a shell."""

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """The conditions of a variable."""
        try:
            return shlex.split(rv)
        except ValueError as error:
            raise click.BadParameter(f"{rv!r}: {error}") from None


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is not a condition such as status=200, status!=404, path~/blog/* or"
            " agent!~*bot*"
        )
    return Condition(found[1].strip(), cast(Operator, found[2]), found[3])


CONDITION: Final = _Conditions("condition", _condition)


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many lines may be rejected: a number, or a part of those that were read.

    Attributes:
        lines: so many.
        percent: or so many of a hundred.
    """

    lines: int = 0
    percent: float | None = None

    def covers(self, rejected: int, read: int) -> bool:
        """Whether ``rejected`` lines of ``read`` are allowed."""
        if self.percent is None:
            return rejected <= self.lines
        return rejected * 100 <= self.percent * read


def _allowance(text: str) -> Allowance:
    if re.fullmatch(r"[0-9]{1,18}", text):
        return Allowance(lines=int(text))
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?%", text) and float(text[:-1]) <= 100:
        return Allowance(percent=float(text[:-1]))
    raise ValueError(f"{text!r} is neither a number of lines, such as 20, nor a part, such as 1%")


allow_rejects: Final = settings.setting(
    "--allow-rejects",
    type=Checked("allowance", _allowance),
    metavar="N|P%",
    help="End with 0, not with 3, if at most N lines are rejected, or P% of the lines.",
)
"""Decorator: how many lines may be rejected."""


def _fields(text: str) -> tuple[str, ...]:
    fields = tuple(field.strip() for field in text.split(",")) if text else ()
    if not all(fields) or len(set(fields)) < len(fields):
        raise ValueError(f"{text!r}: give fields, each once, divided by commas: host,agent")
    return fields


_FIELDS: Final = Checked("fields", _fields)


def options(formats: Sequence[str], option: Callable[..., Option]) -> Option:
    """Decorator: what lines are, and which of them count, for a command that reads these formats;
    each option is made by ``option``: a setting, or a one-off."""
    return settings.together(
        option(
            "--input-format",
            type=click.Choice(formats),
            default="auto",
            help="Format of the lines; auto detects it from the first lines of a log.",
        ),
        option(
            "--log-format",
            type=TEXT,
            default="",
            help="Format of the lines, as the server's configuration has it: Apache's"
            " '%h %l %u %t \"%r\" %>s %b', or nginx's '$remote_addr - $remote_user"
            " [$time_local] …'.",
        ),
        option(
            "--envelope",
            type=click.Choice(ENVELOPES),
            help="What wraps each line: docker's or Kubernetes' log file (cri), a prefix of syslog"
            " or docker compose, or quotes."
            " --input-format auto detects it.",
        ),
        option(
            "--time-zone",
            type=ZONE,
            help="Time zone of times that have none: an IANA name. By default they are rejected.",
        ),
        option(
            "--where",
            type=CONDITION,
            multiple=True,
            metavar="FIELD=VALUE",
            help="Count only lines that match; repeatable. Also !=, and ~ and !~ for shell"
            " patterns.",
        ),
        option(
            "--dimension",
            type=DIMENSION,
            multiple=True,
            metavar="NAME=FIELD",
            help="A dimension of the counter, and the field that holds its value; repeatable."
            " Stands in the place of a key.",
        ),
        option(
            "--visitor",
            type=_FIELDS,
            metavar="FIELD[,FIELD]",
            help="The fields that say who the visitor is, such as host,agent, for a counter of"
            " different visitors (counter set --unique); hashed here.",
        ),
    )


_DEFAULTS: Final = BackfillOptions(counter="", sources=())

_MAX_SOURCE_NAME: Final = 255
"""Characters; the width of the column."""


def _delimiter(text: str) -> str:
    text = "\t" if text in (r"\t", "tab") else text
    if len(text) != 1 or text in '"\r\n\0':
        raise ValueError(
            rf"{text!r} is not one character that can stand between columns, such as ; or \t"
        )
    return text


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"{text!r} has a column without a name; give them as day,key,total")
    return names


def _source_name(text: str) -> str:
    if not text.strip() or len(text) > _MAX_SOURCE_NAME:
        raise ValueError(f"a source's name has 1 to {_MAX_SOURCE_NAME} characters")
    return text


_COLUMNS: Final = Checked("columns", _columns)
_DELIMITER: Final = Checked("character", _delimiter)
_SOURCE_NAME: Final = Checked("name", _source_name)


def _texts(metavar: str, **meanings: str) -> Option:
    """Options that take a text, with their help."""
    return settings.together(
        *(
            settings.one_off(
                f"--{name.replace('_', '-')}", type=TEXT, metavar=metavar, default="", help=help
            )
            for name, help in meanings.items()
        )
    )


def _flags(**meanings: str) -> Option:
    """Flags, with their help."""
    return settings.together(
        *(
            settings.one_off(f"--{name.replace('_', '-')}", is_flag=True, help=help)
            for name, help in meanings.items()
        )
    )


_WHAT: Final = (
    settings.one_off("--counter", type=COUNTER, help="The counter to add to, or to correct."),
    _texts(
        "COLUMN",
        counter_column="csv and ndjson: where each line's counter is, instead of --counter; one run"
        " per counter.",
    ),
    settings.one_off(
        "--mode",
        type=click.Choice(["add", "reconcile"]),
        default="add",
        help="See above: add if none of the events arrived.",
    ),
    _flags(dry_run="Read everything, say what would change, change nothing."),
)
_READING: Final = (
    options(INPUT_FORMATS, settings.one_off),
    _texts(
        "TEMPLATE",
        key="The key, with {field} for fields, as in '{host}{path}'.  [default: {path}, for logs]",
    ),
    _texts(
        "COLUMN",
        key_column="csv and JSON: where the key is, a column or a path such as a.b.0 or /a/b/0.",
        amount_column="csv and JSON: where the amount is, as in --key-column; by default each line"
        " counts 1.",
    ),
    _texts(
        "CHARACTER",
        decimal_point="What stands before the fraction of an amount, which must be 0: a point or a"
        " comma.",
        thousands="What stands between groups of three digits of an amount, such as . or a comma.",
    ),
    _texts("TEXT", comment="csv: what comment lines begin with, such as #."),
    settings.one_off(
        "--time-column",
        type=TEXT,
        multiple=True,
        metavar="COLUMN",
        help="csv and JSON: where the time is, as in --key-column; detected in JSON logs."
        " Repeatable, for example for a date and a time of day: the texts are joined with a space.",
    ),
    settings.one_off(
        "--delimiter",
        type=_DELIMITER,
        default=_DEFAULTS.recipe.delimiter,
        metavar="CHARACTER",
        help=r"csv: what separates columns; \t is a tab.",
    ),
    settings.one_off(
        "--columns",
        type=_COLUMNS,
        metavar="NAME,…",
        help="csv: the names of the columns of a file without a header.",
    ),
    settings.one_off(
        "--time-format",
        type=TEXT,
        metavar="FORMAT",
        default=_DEFAULTS.recipe.time_format,
        help=f"auto (ISO 8601, or the log's own), {', '.join(UNITS)}, or a format of strptime.",
    ),
    settings.one_off(
        "--exclude-key-glob",
        "exclude_keys",
        type=TEXT,
        multiple=True,
        metavar="PATTERN",
        help="Leave out keys that match, such as '*.css'; repeatable.",
    ),
    settings.one_off("--strip-query", is_flag=True, help="Cut each key before its first ?."),
    settings.one_off("--from", "start", type=DAY, help="First day, inclusive."),
    settings.one_off(
        "--to", "end", type=DAY, help="Last day, inclusive; both are days of the counter."
    ),
)
_DOING: Final = (
    settings.one_off(
        "--source-name",
        "name",
        type=_SOURCE_NAME,
        metavar="NAME",
        help="Name that distinguishes these sources from others that begin with the same lines.",
    ),
    _flags(
        count_repeats="Count also a source with many lines of another one; remembered for that"
        " source.",
        delete_missing="reconcile only: set keys that no source has to zero.",
    ),
    settings.one_off(
        "--grace",
        "grace_s",
        type=SECONDS,
        default=_DEFAULTS.grace_s,
        metavar="SECONDS",
        help="reconcile only: how long ago a day must have ended.",
    ),
    settings.one_off(
        "--wait",
        "wait_s",
        type=SECONDS,
        default=_DEFAULTS.wait_s,
        metavar="SECONDS",
        help="reconcile only: how long to wait for entries in the queue.",
    ),
    settings.setting(
        "--jobs",
        type=click.IntRange(1, 256),
        default=_DEFAULTS.jobs,
        metavar="N",
        help="Number of child processes that read big sources.",
    ),
    settings.setting(
        "--rate",
        type=Finite(1),
        metavar="N",
        help="Most lines to read per second, to spare live traffic.",
    ),
    settings.setting(
        "--max-rejects",
        type=click.IntRange(0),
        metavar="N",
        help="End the run if more lines than this are rejected; by default 100,000.",
    ),
    allow_rejects,
    settings.one_off(
        "--rejects",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="File for rejected lines: a new one, or one that a backfill wrote.",
    ),
)


backfill_options: Final = settings.together(
    click.argument("sources", metavar="SOURCE...", nargs=-1, required=True),
    *_WHAT,
    *_READING,
    *_DOING,
)
"""Decorator: the sources and everything that makes :class:`BackfillOptions`."""


def read(given: dict[str, Any]) -> BackfillOptions:
    """What was asked for.

    Args:
        given: the parameters of :func:`options`, by their names.

    Raises:
        click.UsageError: it makes no sense; nothing was connected to or read.
    """
    log_format = given["log_format"]
    if log_format:
        if settings.given("input_format"):
            raise Misuse("--log-format and --input-format both say what a line is: give one")
        given["input_format"] = "log-format"
    if bool(given["counter"]) == bool(given["counter_column"]):
        raise Misuse(
            "give --counter, or --counter-column: one of the two says which counter counts"
        )
    if settings.given("key") and not given["key"]:
        raise Misuse("an empty --key names no field: path, status, '{host}{path}' …")
    times = given.pop("time_column")
    given |= {"time_column": "".join(times[:1]), "more_time_columns": times[1:]}
    given |= {"key": template.canonical(given["key"]), "dimensions": given.pop("dimension")}
    said = {"counter": ""} | {name: value for name, value in given.items() if value is not None}
    recipe = {each.name: said.pop(each.name) for each in fields(Recipe) if each.name in said}
    found = BackfillOptions(recipe=Recipe(**recipe), **said)
    _check(found)
    return found


_RECONCILE_ONLY: Final = {
    "delete_missing": "--delete-missing",
    "grace_s": "--grace",
    "wait_s": "--wait",
}


def _check(options: BackfillOptions) -> None:
    """Refuse what makes no sense, before anything is connected or read."""
    if options.mode == "add":
        for parameter, flag in _RECONCILE_ONLY.items():
            if settings.given(parameter):
                raise Misuse(
                    f"{flag} is for --mode reconcile: to add never takes anything from a total,"
                    " nor waits"
                )
    if options.mode == "reconcile" and options.recipe.dimensions:
        raise Misuse(
            "--dimension is for --mode add: a reconcile sets keys to what the sources say, and a"
            " counter with dimensions has none"
        )
    if options.mode == "reconcile" and options.recipe.visitor:
        raise Misuse("--visitor is for --mode add: a reconcile sets totals, and no visitors")
    if options.recipe.counter_column and options.rejects is not None:
        raise Misuse("--rejects is for one counter: give --counter in place of --counter-column")
    with values_checked():
        formats.check(options.recipe)

"""The flags of ``countersink backfill``, and the errors of their values and combinations. ``tail``
uses some of them, too: ``--input-format`` to ``--visitor``, and ``--allow-rejects``."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, cast

import click

from countersink.backfill import formats
from countersink.backfill.options import INPUT_FORMATS, BackfillOptions, Recipe
from countersink.cli import settings, values
from countersink.cli.errors import Misuse
from countersink.logs import template
from countersink.logs.formats.detection import ENVELOPES
from countersink.logs.template import Condition, Operator
from countersink.logs.times import UNITS
from countersink.runtime.texts import DayName, NamedRange

_CONDITION: Final = re.compile(r"(.+?)\s*(!=|!~|=|~)\s*(.*)", re.DOTALL)
Option = Callable[[settings.Decorated], settings.Decorated]


class _Conditions(values.Checked[Condition]):
    """The type of the conditions of ``--where``. In an environment variable or in
    ``countersink.toml``, spaces separate conditions, and quotes work as in a shell."""

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return the texts of the conditions in ``rv``: the text of an environment variable or of a
        key in the file. Raise click.BadParameter if it cannot be split, as with an open quote."""
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
    """Most lines that may be rejected with exit status 0: the number ``lines`` if ``percent`` is
    None, else ``percent`` per cent of the lines that were read."""

    lines: int = 0
    percent: float | None = None

    def covers(self, rejected: int, read: int) -> bool:
        """Return whether ``rejected`` of ``read`` lines are allowed."""
        if self.percent is None:
            return rejected <= self.lines
        return rejected * 100 <= self.percent * read


def _allowance(text: str) -> Allowance:
    if re.fullmatch(r"[0-9]{1,18}", text):
        return Allowance(lines=int(text))
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?%", text) and float(text[:-1]) <= 100:
        return Allowance(percent=float(text[:-1]))
    raise ValueError(f"{text!r} is neither a number of lines such as 20 nor a share such as 1%")


allow_rejects: Final = settings.setting(
    "--allow-rejects",
    type=values.Checked("allowance", _allowance),
    metavar="N|P%",
    help="End with 0, not with 3, if at most N lines, or P% of the lines, are rejected.",
)
"""Decorator that adds ``--allow-rejects``."""


def _fields(text: str) -> tuple[str, ...]:
    fields = tuple(field.strip() for field in text.split(",")) if text else ()
    if not all(fields) or len(set(fields)) < len(fields):
        raise ValueError(f"{text!r}: give different fields, divided by commas, as host,agent")
    return fields


_FIELDS: Final = values.Checked("fields", _fields)


def options(formats: Sequence[str], option: Callable[..., Option]) -> Option:
    """Decorator that adds the options that describe the format of lines and select the lines to
    count. ``formats`` are the choices of ``--input-format``. Each option is made by ``option``:
    ``settings.setting`` for ``tail``, ``settings.one_off`` for ``backfill``."""
    return settings.together(
        option(
            "--input-format",
            type=click.Choice(formats),
            default="auto",
            help="Format of the lines; auto: detected from the first lines"
            + (", or from the name (.csv, .ndjson, .jsonl)." if "csv" in formats else "."),
        ),
        option(
            "--log-format",
            type=values.TEXT,
            default="",
            help="Format of the lines, as in the configuration of the web server: Apache's"
            " '%h %l %u %t \"%r\" %>s %b', or nginx's '$remote_addr - $remote_user"
            " [$time_local] …'.",
        ),
        option(
            "--envelope",
            type=click.Choice(ENVELOPES),
            help="Wrapper of each line: docker's or Kubernetes' log file (cri), a prefix of syslog"
            " or docker compose, or quotes. --input-format auto detects it.",
        ),
        option(
            "--time-zone",
            type=values.ZONE,
            help="Time zone of times without one: an IANA name. By default they are rejected.",
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
            type=values.DIMENSION,
            multiple=True,
            metavar="NAME=FIELD",
            help="A dimension of the counter, and the field with its value; repeatable. In place of"
            " a key.",
        ),
        option(
            "--visitor",
            type=_FIELDS,
            metavar="FIELD[,FIELD]",
            help="The fields that identify the visitor, such as host,agent, for a counter of"
            " different visitors (counter set --unique); hashed on this machine.",
        ),
    )


_DEFAULTS: Final = BackfillOptions(counter="", sources=())
_MAX_SOURCE_NAME: Final = 255
"""Most characters in a source's name: as many as the database column holds."""


def _delimiter(text: str) -> str:
    text = "\t" if text in (r"\t", "tab") else text
    if len(text) != 1 or text in '"\r\n\0':
        raise ValueError(
            rf"{text!r} is not one character that can separate columns, such as ; or \t"
        )
    return text


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"{text!r} has a column without a name; give names such as day,key,total")
    return names


def _source_name(text: str) -> str:
    if not text.strip() or len(text) > _MAX_SOURCE_NAME:
        raise ValueError(f"a source's name has 1 to {_MAX_SOURCE_NAME} characters")
    return text


_COLUMNS: Final = values.Checked("columns", _columns)
_DELIMITER: Final = values.Checked("character", _delimiter)
_SOURCE_NAME: Final = values.Checked("name", _source_name)


def _each(meanings: dict[str, str], **given: Any) -> Option:
    """Decorator that adds one-off options. ``meanings``: help texts by parameter name. ``given``:
    other arguments of click's option, the same for all."""
    return settings.together(
        *(
            settings.one_off(f"--{name.replace('_', '-')}", help=help, **given)
            for name, help in meanings.items()
        )
    )


def _texts(metavar: str, **meanings: str) -> Option:
    return _each(meanings, type=values.TEXT, metavar=metavar, default="")


def _flags(**meanings: str) -> Option:
    return _each(meanings, is_flag=True)


_TARGET: Final = (
    settings.one_off("--counter", type=values.COUNTER, help="Counter to add to, or to correct."),
    _texts(
        "COLUMN",
        counter_column="csv and ndjson: column with each line's counter, in place of --counter; one"
        " run per counter.",
    ),
    settings.one_off(
        "--mode",
        type=click.Choice(["add", "reconcile"]),
        default="add",
        help="See above: add if none of the events was counted live.",
    ),
    _flags(dry_run="Read the sources and show what would change, without changing it."),
)
_FORMAT: Final = (
    options(INPUT_FORMATS, settings.one_off),
    _texts(
        "TEMPLATE",
        key="The key, with {field} for fields, as in '{host}{path}'.  [default: {path}, for logs]",
    ),
    _texts(
        "COLUMN",
        key_column="csv and JSON: the key's column, or its path such as a.b.0 or /a/b/0.",
        amount_column="csv and JSON: the amount's column or path; by default each line counts 1.",
    ),
    _flags(count_lines="Each line counts 1, although a column such as total probably has amounts."),
    _texts(
        "CHARACTER",
        decimal_point="Decimal separator of amounts, whose fraction must be 0: a point or a comma.",
        thousands="Thousands separator of amounts, such as a point or a comma.",
    ),
    _texts("TEXT", comment="csv: prefix of comment lines, such as #."),
    settings.one_off(
        "--time-column",
        type=values.TEXT,
        multiple=True,
        metavar="COLUMN",
        help="csv and JSON: the time's column or path; detected in JSON logs. Repeatable, such as"
        " for a date and a time of day: the texts are joined with a space.",
    ),
    settings.one_off(
        "--delimiter",
        type=_DELIMITER,
        default=_DEFAULTS.recipe.delimiter,
        metavar="CHARACTER",
        help=r"csv: separator of columns; \t is a tab.",
    ),
    settings.one_off(
        "--columns",
        type=_COLUMNS,
        metavar="NAME,…",
        help="csv: names of the columns of a file without a header.",
    ),
    settings.one_off(
        "--time-format",
        type=values.TEXT,
        metavar="FORMAT",
        default=_DEFAULTS.recipe.time_format,
        help=f"auto (ISO 8601, or the log's own), {', '.join(UNITS)}, or a format of strptime.",
    ),
    settings.one_off(
        "--exclude-key-glob",
        "exclude_keys",
        type=values.TEXT,
        multiple=True,
        metavar="PATTERN",
        help="Leave out keys that match this shell pattern, such as '*.css'; repeatable.",
    ),
    _flags(strip_query="Cut each key before its first ?. The field {path} never has a query."),
    settings.one_off(
        "--from",
        "start",
        type=values.FIRST_DAY,
        metavar="DAY|WEEK",
        help="First day, in the counter's time zone: 2026-11-21, yesterday, or a week, 2026-W48.",
    ),
    settings.one_off("--to", "end", type=values.LAST_DAY, metavar="DAY|WEEK", help="Last day."),
)
_RUN: Final = (
    settings.one_off(
        "--source-name",
        "name",
        type=_SOURCE_NAME,
        metavar="NAME",
        help="Name that distinguishes these sources from others with the same first lines.",
    ),
    _flags(
        count_repeats="Also count a source with many lines of another source; remembered for that"
        " source.",
        delete_missing="reconcile only: set keys to zero that no source has.",
    ),
    settings.one_off(
        "--grace",
        "grace_s",
        type=values.SECONDS,
        default=_DEFAULTS.grace_s,
        metavar="SECONDS",
        help="reconcile only: time that must have passed since the end of a day.",
    ),
    settings.one_off(
        "--wait",
        "wait_s",
        type=values.SECONDS,
        default=_DEFAULTS.wait_s,
        metavar="SECONDS",
        help="reconcile only: longest wait for entries in the queue.",
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
        type=values.Finite(1),
        metavar="N",
        help="Most lines read per second, to spare live traffic.",
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
        help="File for rejected lines: new, or written by an earlier backfill.",
    ),
)


backfill_options: Final = settings.together(
    click.argument("sources", metavar="SOURCE...", nargs=-1, required=True),
    *_TARGET,
    *_FORMAT,
    *_RUN,
)
"""Decorator that adds the argument SOURCE... and the options of :class:`BackfillOptions`."""


def read(given: dict[str, Any]) -> BackfillOptions:
    """Return the options of a backfill. ``given`` has the values of :data:`backfill_options`,
    without ``--allow-rejects``, by their parameters' names; this function changes the dict.

    Raises:
        click.UsageError: options exclude each other, one is missing, or a value is wrong."""
    log_format = given["log_format"]
    if log_format:
        if settings.is_given("input_format"):
            raise Misuse("--log-format and --input-format exclude each other: give one of them")
        given["input_format"] = "log-format"
    if bool(given["counter"]) == bool(given["counter_column"]):
        raise Misuse("give --counter or --counter-column, one of the two")
    if settings.is_given("key") and not given["key"]:
        raise Misuse("an empty --key names no field; give one such as path or '{host}{path}'")
    times = given.pop("time_column")
    given |= {"time_column": "".join(times[:1]), "more_time_columns": times[1:]}
    given |= {"key": template.canonical(given["key"]), "dimensions": given.pop("dimension")}
    start, end = given["start"], given["end"]
    if isinstance(start, DayName) or isinstance(end, DayName):
        given |= {"start": None, "end": None, "days": NamedRange(start, end)}
    chosen = {"counter": ""} | {name: value for name, value in given.items() if value is not None}
    recipe = {each.name: chosen.pop(each.name) for each in fields(Recipe) if each.name in chosen}
    options = BackfillOptions(recipe=Recipe(**recipe), **chosen)
    _check(options)
    return options


_RECONCILE: Final = {"delete_missing": "--delete-missing", "grace_s": "--grace", "wait_s": "--wait"}


def _check(options: BackfillOptions) -> None:
    """Raise Misuse for options that exclude each other or are wrong, before a source is read."""
    if options.count_lines and options.recipe.amount_column:
        raise Misuse("--count-lines and --amount-column exclude each other: give one of them")
    if options.mode == "add":
        for parameter, flag in _RECONCILE.items():
            if settings.is_given(parameter):
                raise Misuse(
                    f"{flag} is for --mode reconcile: add never lowers a total, and never waits"
                )
    if options.mode == "reconcile" and options.recipe.dimensions:
        raise Misuse(
            "--dimension is for --mode add: a reconcile sets the totals of keys, and a counter with"
            " dimensions has no keys"
        )
    if options.mode == "reconcile" and options.recipe.visitor:
        raise Misuse("--visitor is for --mode add: a reconcile sets totals, but not visitors")
    if options.recipe.counter_column and options.rejects is not None:
        raise Misuse("--rejects is for one counter: give --counter in place of --counter-column")
    with settings.values_checked():
        formats.check(options.recipe)

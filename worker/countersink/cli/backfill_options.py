"""What ``countersink backfill`` can be told, and which of it makes no sense together."""

from pathlib import Path
from typing import Any, Final, NoReturn

import click
from click.core import ParameterSource

from countersink.backfill import formats
from countersink.backfill.options import Options
from countersink.backfill.recipe import INPUT_FORMATS, Recipe
from countersink.cli import settings
from countersink.cli.backfill_types import CONDITION, DELIMITER, SOURCE_NAME
from countersink.cli.failures import Misuse
from countersink.cli.types import COUNTER, DAY, SECONDS, TEXT, Finite
from countersink.cli.zones import ZONE

DEFAULTS: Final = Options(counter="", sources=())

_WHAT: Final = (
    settings.one_off(
        "--counter", type=COUNTER, required=True, help="The counter to add to, or to correct."
    ),
    settings.one_off(
        "--mode",
        type=click.Choice(["add", "reconcile"]),
        default="add",
        show_default=True,
        help="See above: add if none of them arrived.",
    ),
    settings.one_off(
        "--dry-run", is_flag=True, help="Read everything, say what would change, change nothing."
    ),
)
_READING: Final = (
    settings.one_off(
        "--input-format",
        type=click.Choice(INPUT_FORMATS),
        default="combined",
        show_default=True,
        help="What a line is.",
    ),
    settings.one_off(
        "--key",
        type=TEXT,
        metavar="TEMPLATE",
        default="",
        help="The key, with {field} for fields, as in '{host}{path}'.  [default: {path}, of logs]",
    ),
    settings.one_off(
        "--key-column",
        type=TEXT,
        metavar="COLUMN",
        default="",
        help="Where the key is, of csv and JSON: a column, or a path as a.b.0 or /a/b/0.",
    ),
    settings.one_off(
        "--time-column",
        type=TEXT,
        metavar="COLUMN",
        default="",
        help="The same for the time; nginx-json finds it by itself.",
    ),
    settings.one_off(
        "--amount-column",
        type=TEXT,
        metavar="COLUMN",
        default="",
        help="The same for the amount; without it each line counts 1.",
    ),
    settings.one_off(
        "--delimiter",
        type=DELIMITER,
        default=DEFAULTS.recipe.delimiter,
        show_default=True,
        metavar="CHARACTER",
        help=r"csv: what stands between columns; \t is a tab.",
    ),
    settings.one_off(
        "--time-format",
        type=TEXT,
        metavar="FORMAT",
        default=DEFAULTS.recipe.time_format,
        show_default=True,
        help="auto (ISO 8601, or the log's own), unix, unix-ms, or as of strptime.",
    ),
    settings.one_off(
        "--time-zone",
        type=ZONE,
        metavar="ZONE",
        help="Of times that come without one: an IANA name. Without it they are rejected.",
    ),
    settings.one_off(
        "--where",
        type=CONDITION,
        multiple=True,
        metavar="FIELD=VALUE",
        help="Only lines like this; repeatable. Also !=, and ~ and !~ for shell patterns.",
    ),
    settings.one_off(
        "--exclude-key-glob",
        type=TEXT,
        multiple=True,
        metavar="PATTERN",
        help="Leave out keys like this, such as '*.css'; repeatable.",
    ),
    settings.one_off("--strip-query", is_flag=True, help="End keys before their ?."),
    settings.one_off("--from", "start", type=DAY, metavar="DAY", help="First day, inclusive."),
    settings.one_off(
        "--to", "end", type=DAY, metavar="DAY", help="Last day, inclusive; of the counter's days."
    ),
)
_DOING: Final = (
    settings.one_off(
        "--source-name",
        type=SOURCE_NAME,
        metavar="NAME",
        help="Tells these sources from others that begin with the same lines.",
    ),
    settings.one_off(
        "--delete-missing", is_flag=True, help="reconcile only: keys that no source has go to zero."
    ),
    settings.one_off(
        "--grace",
        type=SECONDS,
        default=DEFAULTS.grace_s,
        show_default=True,
        metavar="SECONDS",
        help="reconcile only: how long a day must be over.",
    ),
    settings.one_off(
        "--wait",
        type=SECONDS,
        default=DEFAULTS.wait_s,
        show_default=True,
        metavar="SECONDS",
        help="reconcile only: how long to wait for what is in the queue.",
    ),
    settings.setting(
        "--jobs",
        type=click.IntRange(0, 256),
        default=DEFAULTS.jobs,
        show_default=True,
        metavar="N",
        help="Let so many job processes (countersink jobs) count big files; without any, it is"
        " done here.",
    ),
    settings.setting(
        "--rate",
        type=Finite(1),
        metavar="N",
        help="Lines per second at most, for the sake of live traffic.",
    ),
    settings.setting(
        "--max-rejects",
        type=click.IntRange(0),
        metavar="N",
        help="End when more lines than this are rejected; 100,000 if not given.",
    ),
    settings.one_off(
        "--rejects",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Where to write rejected lines: a new file, or one of these.  [default:"
        " backfill-RUN-rejects.ndjson]",
    ),
)


def options(function: settings.Decorated) -> settings.Decorated:
    """Decorator: the sources and everything that makes :class:`Options`."""
    for decorate in reversed((*_WHAT, *_READING, *_DOING)):
        function = decorate(function)
    return click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)(function)


def read(given: dict[str, Any]) -> Options:
    """What was asked for.

    Args:
        given: the parameters of :func:`options`, by their names.

    Raises:
        click.UsageError: it makes no sense; nothing was connected to or read.
    """
    found = Options(
        recipe=Recipe(
            time_zone=given.pop("time_zone") or "",
            exclude_keys=given.pop("exclude_key_glob"),
            **{name: given.pop(name) for name in _OF_RECIPE},
        ),
        name=given.pop("source_name") or "",
        grace_s=given.pop("grace"),
        wait_s=given.pop("wait"),
        **given,
    )
    _check(found)
    return found


_OF_RECIPE: Final = (
    "input_format",
    "key",
    "key_column",
    "time_column",
    "amount_column",
    "delimiter",
    "time_format",
    "where",
    "strip_query",
    "start",
    "end",
)
_RECONCILE_ONLY: Final = {
    "delete_missing": "--delete-missing",
    "grace": "--grace",
    "wait": "--wait",
}


def _check(options: Options) -> None:
    """Refuse what makes no sense, before anything is connected or read."""
    if options.mode == "add":
        for parameter, flag in _RECONCILE_ONLY.items():
            if _given(parameter):
                _refuse(
                    f"{flag} is for --mode reconcile: to add never takes anything from a total,"
                    " nor waits"
                )
    if options.dry_run and _given("jobs"):
        _refuse("--dry-run counts nothing, so --jobs has nothing to do: give one of the two")
    if options.sources.count("-") > 1:
        _refuse("- is standard input, which can be read only once")
    if options.rejects == Path("-"):
        _refuse(
            "--rejects takes a file; afterwards `countersink backfills show RUN --rejects` prints"
            " them"
        )
    try:
        formats.check(options.recipe)
    except ValueError as error:
        _refuse(str(error))


def _given(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source is ParameterSource.COMMANDLINE


def _refuse(why: str) -> NoReturn:
    raise Misuse(why, click.get_current_context())

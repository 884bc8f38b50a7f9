"""Options of all commands: order of flag, environment, ``countersink.toml`` and default, names of
variables, URLs, connections, and types of values with their error messages; limits of names are in
``runtime/limits.py``.

A *setting* describes an installation (URLs, sizes, formats) and is also an environment variable
``COUNTERSINK_<COMMAND>_<OPTION>`` and a key in the file. A *one-off* describes one run
(``--from``, ``--drain``) and is a flag only: it must not linger in an environment.

``countersink.toml`` holds settings for all commands at the top, and a table for each command::

    redis_url = "redis://queue.internal:6379/0"

    [worker]
    batch_entries = 500

    [dead.list]
    format = "json"
"""

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from countersink.cli.errors import Misuse, remember_url
from countersink.runtime import limits
from countersink.runtime.dimensions import check_name
from countersink.runtime.texts import read_day, read_edge

if TYPE_CHECKING:
    import redis

    from countersink.counting.totals.selection import Last
    from countersink.database.session import Session
    from countersink.producers.options import Options as ProducerOptions
    from countersink.store import Store

T = TypeVar("T")
Parent: TypeAlias = click.Context | None
Decorated = Callable[..., Any]
"""A command's function, before or after click has attached an option to it."""


class Setting(click.Option):
    """An option that is a setting. ``<VARIABLE>_FILE`` names a file that holds its value."""

    def variable(self, ctx: click.Context) -> str:
        """The name of its environment variable."""
        assert self.name is not None
        if isinstance(self.envvar, str):
            return self.envvar
        return f"{ctx.auto_envvar_prefix}_{self.name.upper()}"

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """The value from the variable or from the file that ``<VARIABLE>_FILE`` names."""
        variable = self.variable(ctx)
        value = os.environ.get(variable)
        file = os.environ.get(f"{variable}_FILE")
        if value and file:
            raise click.UsageError(f"{variable} and {variable}_FILE are both set: unset one", ctx)
        return _from_file(f"{variable}_FILE", file, ctx) if file else value or None

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, Any]
    ) -> tuple[Any, ParameterSource]:
        """The value, and where it is from. Several in the file are divided as in the variable."""
        value, source = super().consume_value(ctx, opts)
        if self.multiple and isinstance(value, str):
            value = self.type.split_envvar_value(value)
        return value, source


class SharedSetting(Setting):
    """A setting of all commands, such as a URL."""

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        """The value at the top of the file, else the default."""
        top = ctx.find_root().default_map or {}
        found = top.get(self.name or "")
        # click calls this with the option's own default for help; a URL shows none.
        return found if isinstance(found, str) else super().get_default(ctx, call=call)


class Command(click.Command):
    """A command that refuses keys of its table in the file that are no settings of it."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Parent = None, **extra: Any
    ) -> click.Context:
        """click's context, after the check."""
        known = [str(p.name) for p in self.params if isinstance(p, Setting)]
        _check_table(parent, info_name, known)
        return super().make_context(info_name, args, parent, **extra)


class CommandGroup(click.Group):
    """A group that refuses, in its table in the file, what is not one of its commands' tables."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order in which they were defined."""
        return list(self.commands)

    def make_context(
        self, info_name: str | None, args: list[str], parent: Parent = None, **extra: Any
    ) -> click.Context:
        """click's context, after the check."""
        _check_table(parent, info_name, list(self.commands), tables=True)
        return super().make_context(info_name, args, parent, **extra)


def _check_table(
    parent: click.Context | None, name: str | None, allowed: list[str], *, tables: bool = False
) -> None:
    table = (parent.default_map or {}).get(name or "") if parent else None
    for key, value in (table or {}).items():
        if key not in allowed:
            raise click.UsageError(_unknown(f"[{name}]", key, allowed), parent)
        if isinstance(value, dict) is not tables:
            wanted = "a table" if tables else "text, a number or true/false"
            raise click.UsageError(f"[{name}]: {key} must be {wanted}", parent)


def setting(*names: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """Decorator: an option that is a setting; its default is shown where there is one."""
    return _option(*names, cls=Setting, show_envvar=True, **attributes)


def one_off(*names: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """Decorator: an option of one run, which neither environment nor file can set; its default is
    shown where there is one.
    """
    return _option(*names, allow_from_autoenv=False, **attributes)


def _option(*names: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    shown = attributes.get("default") not in (None, "")
    return click.option(*names, show_default=shown, **attributes)


def together(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """Decorator: these, of which the first stands first in the help."""

    def decorated(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


URLS: Final = {
    "redis_url": "The queue: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
    " (valkey for redis in each).",
    "mysql_url": "The database: mysql://user:password@host:3306/database.",
    "mysql_read_url": "Replicas of the database to read totals from.  [default: --mysql-url]",
    "jobs_redis_url": "The queue of the scheduled jobs: redis://, rediss://, unix:// or"
    " redis+sentinel://.  [default: --redis-url]",
}
"""Settings of all commands, with their help. They stand at the top of the file."""


def urls(*names: str) -> Callable[[Decorated], Decorated]:
    """Decorator: options for these of :data:`URLS`; :func:`noted` tells their values."""
    return together(
        *(
            click.option(
                f"--{name.replace('_', '-')}",
                cls=SharedSetting,
                metavar="URL",
                envvar=f"COUNTERSINK_{name.upper()}",
                show_envvar=True,
                expose_value=False,
                callback=_note_url,
                help=URLS[name],
            )
            for name in names
        )
    )


def numbers(options: type, **meanings: str) -> Callable[[Decorated], Decorated]:
    """Decorator: numbers that a process can be told, with their help; types and defaults are those
    of ``options``, a dataclass.
    """
    from dataclasses import fields

    found = {each.name: each for each in fields(options)}
    return together(
        *(
            setting(
                f"--{name.replace('_', '-')}",
                type=float if found[name].type in (float, "float") else int,
                default=found[name].default,
                metavar="SECONDS" if name.endswith("_s") else "N",
                help=help,
            )
            for name, help in meanings.items()
        )
    )


log_format: Final = setting(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Format of the log on stderr: for people or for machines.",
)
"""Decorator: ``--log-format``."""


def output_format(*choices: str) -> Callable[[Decorated], Decorated]:
    """Decorator: ``--format``, always the output's; the first choice is the default. Where CSV is
    among them, ``--spreadsheet``, too. :func:`noted` tells both.
    """
    format = setting(
        "--format",
        type=click.Choice(choices),
        default=choices[0],
        expose_value=False,
        callback=note,
        help="How to print the result.",
    )
    if "csv" not in choices:
        return format
    spreadsheet = one_off(
        "--spreadsheet",
        is_flag=True,
        expose_value=False,
        callback=note,
        help="CSV for people: put ' before cells that a spreadsheet would run as a formula.",
    )
    return lambda function: format(spreadsheet(function))


def of_mysql(*choices: str) -> Callable[[Decorated], Decorated]:
    """Decorator: ``--format`` and ``--mysql-url``, for a command that prints what the database
    has: :func:`open_store` opens it, :mod:`countersink.cli.output` prints.
    """
    return together(output_format(*choices), urls("mysql_url"))


def of_redis(*choices: str) -> Callable[[Decorated], Decorated]:
    """Decorator: the same with ``--redis-url``."""
    return together(output_format(*choices), urls("redis_url"))


def note(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Callback: note the value for :func:`noted`."""
    context.meta[f"countersink.{parameter.name}"] = value
    return value


def _note_url(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Callback: the same for a URL, whose password no message may show."""
    if value is not None:
        remember_url(value)
    return note(context, parameter, value)


def noted(name: str) -> Any:
    """The value of an option of the current command that is noted, such as ``format`` or a URL;
    None: there is none."""
    context = click.get_current_context(silent=True)
    return context and context.meta.get(f"countersink.{name}")


def given(parameter: str) -> bool:
    """Whether an option of the current command was given; a default is not."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source not in (None, ParameterSource.DEFAULT)


EXAMPLES: Final = {
    "redis": "redis://localhost:6379/0",
    "mysql": "mysql://user:password@localhost:3306/countersink",
}


def open_tables() -> "Session":
    """A session of the database at ``--mysql-url``, whose tables are up to date, until the command
    ends."""
    from countersink.database.sessions import open_tables

    return click.get_current_context().with_resource(open_tables(mysql_url()))


def open_store() -> "Store":
    """The store at ``--mysql-url``, with its replicas at ``--mysql-read-url``, until the command
    ends."""
    from countersink.store import Store

    store = Store(mysql_url(), read_url=noted("mysql_read_url"))
    return click.get_current_context().with_resource(store)


def open_queue(client_name: str) -> "redis.Redis":
    """A client of Redis at ``--redis-url`` until the command ends; connects when first used."""
    from countersink.stream.connection import connect

    client: redis.Redis = connect(redis_url(), client_name=client_name)
    click.get_current_context().call_on_close(client.close)
    return client


def mysql_url() -> str:
    """The URL of the database; wrong usage if none is configured."""
    return _configured("mysql")


def redis_url() -> str:
    """The URL of the queue; wrong usage if none is configured."""
    return _configured("redis")


def _configured(server: str) -> str:
    if url := noted(f"{server}_url"):
        return str(url)
    raise Misuse(
        f"no {server} URL is configured: set COUNTERSINK_{server.upper()}_URL "
        f"(such as {EXAMPLES[server]}) or pass --{server}-url"
    )


def jobs_redis_url() -> str:
    """The URL of the Redis for the scheduled jobs; wrong usage if there is none.

    Raises:
        StreamMisconfigured: it is a cluster.
    """
    from countersink.stream.connection import check_single

    url = str(noted("jobs_redis_url") or redis_url())
    check_single(url)
    return url


def producer_options(redis_url: str) -> "ProducerOptions":
    """The settings ``COUNTERSINK_PRODUCER_*`` of a command's producer. Signals are for the command.

    Raises:
        ValueError: one cannot be used; the message names it.
    """
    from dataclasses import replace

    from countersink.producers.options import URL_VARIABLE, from_environment

    environment = {name: value for name, value in os.environ.items() if URL_VARIABLE not in name}
    _, options = from_environment({**environment, URL_VARIABLE: redis_url})
    return replace(options, handle_sigterm=False)


def _from_file(variable: str, path: str, ctx: click.Context) -> str:
    try:
        value = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise click.UsageError(f"{variable}: cannot read {path}: {reason}", ctx) from error
    if not value:
        raise click.UsageError(f"{variable}: {path} is empty", ctx)
    return value


DEFAULT_PATH: Final = Path("countersink.toml")
Settings: TypeAlias = dict[str, "str | Settings"]


def apply_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Callback of ``--config``: make the file's settings the defaults of every command."""
    path = Path(value) if value else DEFAULT_PATH
    if not value and not path.exists():
        return
    assert isinstance(ctx.command, click.Group)
    ctx.default_map = _load(path, ctx.command.list_commands(ctx))


def _load(path: Path, commands: list[str]) -> Settings:
    """The settings of the file at ``path``, each as text, ``-`` in names turned to ``_``.

    Raises:
        click.UsageError: it cannot be read, is not TOML, or names no setting of ours at its top.
    """
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} is not valid TOML: {error}") from error
    settings = _texts(raw, str(path))
    for name, value in settings.items():
        if isinstance(value, str) and name not in URLS:
            raise click.UsageError(_unknown(str(path), name, list(URLS)))
        if not isinstance(value, str) and name not in commands:
            raise click.UsageError(
                _unknown(str(path), f"[{name}]", [f"[{each}]" for each in commands])
            )
    return settings


def _unknown(where: str, name: str, allowed: list[str]) -> str:
    """The sentence for a name in the file that is no setting, with the nearest that is one."""
    near = difflib.get_close_matches(name, allowed, 1)
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(allowed) or 'nothing'}"
    return f"{where}: {name} is not a setting; {hint}"


def _texts(table: Mapping[str, object], where: str) -> Settings:
    settings: Settings = {}
    for raw_name, value in table.items():
        name = raw_name.replace("-", "_")
        if isinstance(value, Mapping):
            settings[name] = _texts(value, f"{where} [{raw_name}]")
        elif isinstance(value, bool):
            settings[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            settings[name] = str(value)
        else:
            raise click.UsageError(
                f"{where}: {raw_name} must be text, a number or true/false, "
                f"not {type(value).__name__}"
            )
    return settings


class Checked(click.ParamType[T]):
    """Text turned into a value by a function whose ValueError says what is allowed."""

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """The value; wrong usage with the reason otherwise."""
        try:
            return self._read(_utf8(value if isinstance(value, str) else str(value)))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Finite(click.FloatRange):
    """A number in a range, which ``nan`` and ``inf`` are not."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number; wrong usage otherwise."""
        if not math.isfinite(click.FLOAT.convert(value, param, ctx)):
            self.fail(f"{value} is no finite number", param, ctx)
        return float(super().convert(value, param, ctx))


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it is no UTF-8; is the terminal set to another encoding?") from None
    return text


def _dimension(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not NAME=VALUE, such as country=DE")
    return check_name(name), value


def whole_number(text: str) -> int:
    """The number in decimal digits, with a sign or without; ValueError for other texts."""
    if re.fullmatch(r"[+-]?[0-9]{1,40}", text) is None:
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _amount(text: str) -> int:
    return limits.check_amount(whole_number(text))


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not ISO 8601, such as 2026-11-21T08:00:00+01:00") from None
    if moment.utcoffset() is None:
        raise ValueError(
            f"{text!r} has no time zone, and guessing one would count into the wrong day: "
            "add Z or an offset, such as +01:00"
        )
    limits.minute_of(moment)
    return moment


def _last(text: str) -> "Last":
    from countersink.counting.totals.selection import Last

    return Last.of(text)


def _zone(name: str) -> str:
    from countersink.counting.counters import buckets

    return buckets.zone(name).key


def _name(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


TEXT: Final = Checked("text", str)
NAME: Final = Checked("name", _name)
SECONDS: Final = Finite(0, 10**9)
COUNTER: Final = Checked("counter", limits.check_counter)
KEY: Final = Checked("key", limits.check_key)
DIMENSION: Final = Checked("dimension", _dimension)
AMOUNT: Final = Checked("amount", _amount)
MOMENT: Final = Checked("time", _moment)
DAY: Final = Checked("day", read_day)
EDGE: Final = Checked("day or time", read_edge)
LAST: Final = Checked("window", _last)
ZONE: Final = Checked("zone", _zone)

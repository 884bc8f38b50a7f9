"""Options of commands: the kinds of options and the names of their environment variables, the file
``countersink.toml``, URLs and connections. See ``values.py`` for the types of their values.

The value of an option comes from the flag, else from the environment, else from the file, else it
is the default.

A *setting* describes an installation (URLs, sizes, formats). It is also an environment variable
``COUNTERSINK_<COMMAND>_<OPTION>`` (``COUNTERSINK_<OPTION>`` if commands share it) and a key in the
file. A *one-off* describes a single call of a command (``--from``, ``--drain``). It is a flag only:
a variable would apply to later calls, too.

At its top, the file has the settings that all commands share. A table for each command follows::

    redis_url = "redis://queue.internal:6379/0"

    [worker]
    batch_entries = 500

    [dead.list]
    format = "json"
"""

import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from countersink.cli.errors import Misuse
from countersink.runtime.errors import ExplainedError
from countersink.runtime.log import Log, logged
from countersink.runtime.texts import did_you_mean

if TYPE_CHECKING:
    import redis

    from countersink.database.session import Session
    from countersink.producers.options import Options as ProducerOptions
    from countersink.store import Store

T = TypeVar("T")


Parent: TypeAlias = click.Context | None


Decorated = Callable[..., Any]
"""The type of a command's function, before or after click has attached options to it."""


_EXAMPLES: Final = Path(__file__).with_name("examples.toml")


class Setting(click.Option):
    """An option that can also be set by an environment variable or in ``countersink.toml``. The
    variable ``<VARIABLE>_FILE`` may instead name a file that contains the value."""

    def variable(self, ctx: click.Context) -> str:
        """Return the name of the option's environment variable."""
        assert self.name is not None
        if isinstance(self.envvar, str):
            return self.envvar
        return f"{ctx.auto_envvar_prefix}_{self.name.upper()}"

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value in the option's environment variable, or in the file that
        ``<VARIABLE>_FILE`` names. None if both variables are unset or empty.

        Raises:
            click.UsageError: both variables are set, or the file is empty or cannot be read.
        """
        variable = self.variable(ctx)
        value = os.environ.get(variable)
        file = os.environ.get(f"{variable}_FILE")
        if value and file:
            raise click.UsageError(f"{variable} and {variable}_FILE are both set: unset one", ctx)
        return _from_file(f"{variable}_FILE", file, ctx) if file else value or None

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, Any]
    ) -> tuple[Any, ParameterSource]:
        """Return the value of the option, and click's name of its source. If the option may be
        given several times, a text in ``countersink.toml`` is split into values by the option's
        type (by default at white space), as a text in an environment variable is."""
        value, source = super().consume_value(ctx, opts)
        if self.multiple and isinstance(value, str):
            value = self.type.split_envvar_value(value)
        return value, source


class SharedSetting(Setting):
    """A setting that all commands share, such as a URL."""

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        """Return the value at the top of ``countersink.toml``, else the option's own default.
        ``call``: whether a default that is a function is called."""
        top = ctx.find_root().default_map or {}
        found = top.get(self.name or "")
        # For help, click shows the default that this returns.
        return found if isinstance(found, str) else super().get_default(ctx, call=call)


_NAMES_OF_TOP: Final = ("--limit", "-n")
"""Names that other programs have for the option ``--top``."""


class DocumentedCommand(click.Command):
    """A command or group whose help shows its examples, which are in ``examples.toml``."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples of this command into the help text, then its epilog."""
        examples = tomllib.loads(_EXAMPLES.read_text("utf-8"))
        with formatter.section("Examples"):
            for arguments in examples.get(ctx.command_path.partition(" ")[2], ()):
                formatter.write(f"{'':{formatter.current_indent}}countersink {arguments}\n")
        super().format_epilog(ctx, formatter)


class Command(DocumentedCommand):
    """A command. Its table in ``countersink.toml`` may contain only settings of this command."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Parent = None, **extra: Any
    ) -> click.Context:
        """Check the command's table in ``countersink.toml``, then return click's context of the
        call.

        Raises:
            click.UsageError: the arguments are wrong, a key of the table is not a setting of this
                command, or the value of a key is a table.
        """
        known = [str(p.name) for p in self.params if isinstance(p, Setting)]
        _check_table(parent, info_name, known)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and return those that no parameter took. If ``--limit`` or
        ``-n`` is an unknown option, and the command has ``--top``, the error suggests ``--top``.
        Print a warning on stderr for each environment variable ``COUNTERSINK_…`` that nothing
        reads, even if the arguments are wrong, but not while a shell asks for completions."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name in _NAMES_OF_TOP and any(p.name == "top" for p in self.params):
                name = error.option_name
                raise click.UsageError(
                    f"No such option {name!r}. Did you mean '--top'?", ctx
                ) from None
            raise
        finally:
            if not ctx.resilient_parsing:
                _warn_of_variables(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and return what its function returns. A LookupError of the function is
        raised again. If it is an error of ours, such as UnknownCounter, and an existing name is
        similar to the unknown one, the error gets the note "did you mean …?"."""
        try:
            return super().invoke(ctx)
        except LookupError as error:
            from countersink.cli.completion import suggest

            suggest(ctx, error)
            raise


class CommandGroup(DocumentedCommand, click.Group):
    """A group of commands, such as ``countersink dead``. Its table in ``countersink.toml`` may
    contain only tables of its commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order in which they are defined."""
        return list(self.commands)

    def make_context(
        self, info_name: str | None, args: list[str], parent: Parent = None, **extra: Any
    ) -> click.Context:
        """Check the group's table in ``countersink.toml``, then return click's context of the call.

        Raises:
            click.UsageError: the arguments are wrong, or the table contains anything besides tables
                of the group's commands.
        """
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


_OTHER_VARIABLES: Final = ("CONFIG", "DEBUG", "KEY", "MYSQLD", "REDIS_SERVER")
"""Ends of the names of variables that are not options of a command. ``KEY`` is for the clients in
the documentation."""


_SERVICE_LINK: Final = re.compile(
    r"\w+_(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT_\d+_\w+=|PORT=\w+://)"
)
"""Begin of the variables that Kubernetes sets for a Service such as ``countersink-web``."""


def _warn_of_variables(ctx: click.Context) -> None:
    """Print a warning on stderr for each environment variable of :func:`_unread_variables`. With
    ``--log-format json``, each warning is a line of the JSON log, otherwise text."""
    for name, hint in _unread_variables(ctx):
        text = f"{name} is not a setting" + (f"; {hint}" if hint else "")
        if ctx.params.get("log_format") == "json":
            log = Log(logging.getLogger("countersink.cli"))
            with logged("json"):
                log("unknown_variable", text, level=logging.WARNING, variable=name)
        else:
            click.echo(f"countersink: {text}", err=True)


def _unread_variables(ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the name of each environment variable ``COUNTERSINK_…`` that nothing reads, and the
    question "did you mean …?" with a similar variable; the question is empty if none is similar.
    Left out are variables that Kubernetes sets for a Service, and those with the prefix of another
    command: that command checks them when it runs, because only its module knows its settings."""
    root = ctx.find_root()
    prefix = f"{root.auto_envvar_prefix}_"
    known = {prefix + name.upper() for name in (*_OTHER_VARIABLES, *URLS)} | {*_variables(ctx)}
    others: set[str] = set()
    own = ctx
    while (group := own.parent) is not None and isinstance(group.command, click.Group):
        for name in group.command.list_commands(group):
            others.add(f"{group.auto_envvar_prefix}_{name}_".replace("-", "_").upper())
        others.discard(f"{own.auto_envvar_prefix}_")
        own = group
    given = [name for name in sorted(os.environ) if name.startswith(prefix)]
    if any(name.startswith(f"{prefix}PRODUCER_") for name in given):
        from countersink.producers.options import PREFIX, Options

        known |= {PREFIX + name.upper() for name in Options.__dataclass_fields__}
    for name in given:
        if not (
            name.removesuffix("_FILE") in known
            or name.startswith(tuple(others))
            or _SERVICE_LINK.match(f"{name}={os.environ[name]}")
        ):
            # Settings of this command first.
            suggest = partial(did_you_mean, name, similarity=0.7, prefix=prefix)
            yield name, suggest(known) or suggest(_variables(root))


def _variables(ctx: click.Context) -> Iterator[str]:
    """Yield the names of the environment variables of a command's settings. For a group, these
    include the variables of all its commands, whose modules are imported."""
    yield from (each.variable(ctx) for each in ctx.command.params if isinstance(each, Setting))
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            command = ctx.command.get_command(ctx, name)
            assert command is not None
            yield from _variables(click.Context(command, parent=ctx, info_name=name))


def setting(*names: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """Decorator that adds a setting: an option that can also be set by an environment variable or
    in ``countersink.toml``. The help shows its default, if it has one. ``names`` and ``attributes``
    are the arguments of :func:`click.option`."""
    return _option(*names, cls=Setting, show_envvar=True, **attributes)


def one_off(*names: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """Decorator that adds an option for a single call of the command: neither the environment nor
    the file can set it. The help shows its default, if it has one. ``names`` and ``attributes`` are
    the arguments of :func:`click.option`."""
    return _option(*names, allow_from_autoenv=False, **attributes)


def _option(*names: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    shown = attributes.get("default") not in (None, "")
    return click.option(*names, show_default=shown, **attributes)


def together(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """Decorator that adds several options. The help shows them in this order."""

    def decorated(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


URLS: Final = {
    "redis_url": "The queue: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
    " (valkey for redis in each).",
    "mysql_url": "The database: mysql://user:password@host:3306/database.",
    "mysql_read_url": "Replicas of the database, for reading totals.  [default: --mysql-url]",
    "jobs_redis_url": "The queue of the scheduled jobs: redis://, rediss://, unix:// or"
    " redis+sentinel://.  [default: --redis-url]",
}
"""The help text of each setting that all commands share. These settings are at the top of
``countersink.toml``."""


def urls(*names: str) -> Callable[[Decorated], Decorated]:
    """Decorator that adds the options ``names`` of :data:`URLS`. :func:`option_value` returns their
    values; they are not arguments of the command's function."""
    return together(
        *(
            click.option(
                f"--{name.replace('_', '-')}",
                cls=SharedSetting,
                metavar="URL",
                envvar=f"COUNTERSINK_{name.upper()}",
                show_envvar=True,
                expose_value=False,
                callback=_record_url,
                help=URLS[name],
            )
            for name in names
        )
    )


def numbers(options: type, **meanings: str) -> Callable[[Decorated], Decorated]:
    """Decorator that adds a setting for each of ``meanings``; its values are numbers.

    Args:
        options: a dataclass; its fields of the same names determine types and defaults.
        meanings: the help text of each setting, by the setting's name, such as ``batch_entries``.
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
"""Decorator that adds ``--log-format``."""


def output_format(*choices: str) -> Callable[[Decorated], Decorated]:
    """Decorator that adds ``--format``, whose default is the first choice. If ``csv`` is a choice,
    it adds ``--spreadsheet`` as well. :func:`option_value` returns their values."""
    format = setting(
        "--format",
        type=click.Choice(choices),
        default=choices[0],
        expose_value=False,
        callback=record_option,
        help="Format of the result.",
    )
    if "csv" not in choices:
        return format
    spreadsheet = one_off(
        "--spreadsheet",
        is_flag=True,
        expose_value=False,
        callback=record_option,
        help="CSV for people: put ' before cells that a spreadsheet would run as a formula.",
    )
    return lambda function: format(spreadsheet(function))


def mysql_options(*choices: str) -> Callable[[Decorated], Decorated]:
    """Decorator that adds ``--format`` with ``choices`` (see :func:`output_format`) and
    ``--mysql-url``, for a command that prints data of the database."""
    return together(output_format(*choices), urls("mysql_url"))


def redis_options(*choices: str) -> Callable[[Decorated], Decorated]:
    """Decorator that adds ``--format`` with ``choices`` (see :func:`output_format`) and
    ``--redis-url``."""
    return together(output_format(*choices), urls("redis_url"))


@contextmanager
def values_checked() -> Iterator[None]:
    """Turn a ValueError that is raised inside the block into :class:`Misuse` (exit status 2) with
    the same message. An :class:`ExplainedError` stays as it is."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, ExplainedError):
            raise
        raise Misuse(str(error)) from error


def known_urls() -> set[str]:
    """Return the URLs that this call of the command uses. Messages leave out the passwords in
    them. The result is the set itself, not a copy: callers may add URLs to it."""
    return click.get_current_context().ensure_object(set)


def record_option(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Store the value of an option for :func:`option_value`, and return the value. It is the
    callback of a few options, such as ``--format``, so click calls it with their values."""
    context.meta[f"countersink.{parameter.name}"] = value
    return value


def _record_url(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Store a URL, or None, for :func:`option_value`, and return it. From then on, messages do not
    show its password. It is the callback of URL options, so click calls it with their values."""
    if value is not None:
        known_urls().add(value)
    return record_option(context, parameter, value)


def option_value(name: str) -> Any:
    """Return the value of an option of the current command that :func:`record_option` stored: a
    format, ``spreadsheet``, a URL, the host or port of metrics. None for any other option, and if
    the command has no value for it or no command runs."""
    context = click.get_current_context(silent=True)
    return context and context.meta.get(f"countersink.{name}")


def shared_value(context: click.Context, name: str) -> str | None:
    """Return the value of a setting of :data:`URLS`, such as ``mysql_url``; None if it is not set.
    If the command in ``context`` lacks its flag, use the environment, else the file."""
    option = SharedSetting([f"--{name.replace('_', '-')}"], envvar=f"COUNTERSINK_{name.upper()}")
    value = context.meta.get(f"countersink.{name}") or option.consume_value(context, {})[0]
    return value if isinstance(value, str) else None


def is_given(parameter: str) -> bool:
    """Return whether the user has given the current command's option with the Python name
    ``parameter``: by flag, environment or file. False for defaults and URLs at the file's top."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source not in (None, ParameterSource.DEFAULT)


DATA: Final = Path("countersink-data")
"""Default directory of `countersink up`."""
ENVIRONMENT_FILE: Final = "environment.sh"
"""Name of the shell file in that directory that sets the URLs."""
EXAMPLES: Final = {
    "redis": "redis://localhost:6379/0",
    "mysql": "mysql://user:password@localhost:3306/countersink",
}


def open_tables() -> "Session":
    """Return a session of the database at ``--mysql-url``. It is closed when the command ends.

    Raises:
        Misuse: no URL is configured.
        SchemaMismatch: the tables are missing, or not of the version that this program needs.
        StoreError: MySQL does not answer, or refuses.
    """
    from countersink.database.sessions import open_tables

    return click.get_current_context().with_resource(open_tables(mysql_url()))


def open_store() -> "Store":
    """Return the :class:`Store` of the database at ``--mysql-url``. The store connects at its first
    use, and is closed when the command ends. With ``--mysql-read-url``, it reads totals from a
    replica that has all committed transactions. If no replica has them, it uses ``--mysql-url``.

    Raises:
        Misuse: no URL is configured.
        Misconfigured: a URL cannot be used.
    """
    from countersink.store import Store

    store = Store(mysql_url(), read_url=option_value("mysql_read_url"))
    return click.get_current_context().with_resource(store)


def open_queue(client_name: str) -> "redis.Redis":
    """Return a client of the Redis at ``--redis-url``. It connects when it sends its first Redis
    command, and is closed when this command ends. ``client_name`` is its name in CLIENT LIST.

    Raises:
        Misuse: no URL is configured.
        StreamMisconfigured: the URL cannot be used.
    """
    from countersink.stream.connection import connect

    client: redis.Redis = connect(redis_url(), client_name=client_name)
    click.get_current_context().call_on_close(client.close)
    return client


def mysql_url() -> str:
    """Return the URL of the database: ``--mysql-url`` of the current command.

    Raises:
        Misuse: no URL is configured.
    """
    return _configured("mysql")


def redis_url() -> str:
    """Return the URL of the Redis that has the queue: ``--redis-url`` of the current command.

    Raises:
        Misuse: no URL is configured.
    """
    return _configured("redis")


def _configured(server: str) -> str:
    if url := option_value(f"{server}_url"):
        return str(url)
    file = DATA / ENVIRONMENT_FILE
    raise Misuse(
        f"no {server} URL is configured: set COUNTERSINK_{server.upper()}_URL "
        f"(such as {EXAMPLES[server]}) or pass --{server}-url"
        + (f"; `. {file}` sets that of `countersink up`" if file.exists() else "")
    )


def jobs_redis_url() -> str:
    """Return the URL of the Redis that has RQ's queue of scheduled jobs: ``--jobs-redis-url``, or
    else ``--redis-url``.

    Raises:
        Misuse: no URL is configured.
        StreamMisconfigured: it is the URL of a Redis Cluster.
    """
    from countersink.stream.connection import check_single

    url = str(option_value("jobs_redis_url") or redis_url())
    check_single(url)
    return url


def producer_options(redis_url: str) -> "ProducerOptions":
    """Return the options for the producer that a command runs for the queue at ``redis_url``. They
    come from the environment variables ``COUNTERSINK_PRODUCER_*``, except that the producer does
    not handle SIGTERM: the command does.

    Raises:
        ValueError: a value is wrong; a variable and its ``_FILE`` are set; or a file is unreadable.
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


COMPLETION_VARIABLE: Final = "_COUNTERSINK_COMPLETE"
"""Name of the environment variable by which a shell asks for completions."""


DEFAULT_PATH: Final = Path("countersink.toml")


Settings: TypeAlias = dict[str, "str | Settings"]


def apply_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Make the settings in a file the defaults of all commands. ``value`` is the file's path, from
    ``--config``; if None, ``countersink.toml`` in the current directory is read, if it exists.

    Raises:
        click.UsageError: the file cannot be used, as :func:`_load` says.
    """
    path = Path(value) if value else DEFAULT_PATH
    if not value and not path.exists():
        return
    assert isinstance(ctx.command, click.Group)
    ctx.default_map = _load(path, ctx.command.list_commands(ctx))


def _load(path: Path, commands: list[str]) -> Settings:
    """Return the settings in the file at ``path``. Values become texts, and tables become dicts. In
    names of values ``-`` becomes ``_``, in names of tables ``_`` becomes ``-``. ``commands``: the
    names that tables at the top may have.

    Raises:
        click.UsageError: the file cannot be read, is not TOML, has unknown names at its top, or has
            a value that is neither text nor a number, true or false.
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
    """Return the message for an unknown name in ``where``: the file or a table of it. The message
    suggests the most similar allowed name. If none is similar, it lists all allowed names."""
    hint = did_you_mean(name, allowed) or f"allowed: {', '.join(allowed) or 'nothing'}"
    return f"{where}: {name} is not a setting; {hint}"


def _texts(table: Mapping[str, object], where: str) -> Settings:
    settings: Settings = {}
    for raw_name, value in table.items():
        name = raw_name.replace("-", "_")
        if isinstance(value, Mapping):
            settings[name.replace("_", "-")] = _texts(value, f"{where} [{raw_name}]")
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

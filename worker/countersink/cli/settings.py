"""Options that are settings: flag, else environment, else ``countersink.toml``, else default.

A *setting* describes an installation (URLs, sizes, formats) and is also an environment variable
``COUNTERSINK_<COMMAND>_<OPTION>`` and a key in the file. A *one-off* describes one run
(``--from``, ``--drain``) and is a flag only: it must not linger in an environment.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from countersink.cli.config_file import unknown
from countersink.cli.types import Url

Decorated = Callable[..., Any]
"""A command's function, before or after click has attached an option to it."""


class Setting(click.Option):
    """An option that is a setting. ``<VARIABLE>_FILE`` names a file that holds its value."""

    shared = False
    """Whether it belongs to all commands: at the top of the file, no command in its variable."""

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


class SharedSetting(Setting):
    """A setting of all commands, such as a URL."""

    shared = True

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        """The value at the top of the file, else the default."""
        top = ctx.find_root().default_map or {}
        found = top.get(self.name or "")
        # click calls this with the option's own default for help; a URL shows none.
        return found if isinstance(found, str) else super().get_default(ctx, call=call)


class Command(click.Command):
    """A command that refuses keys of its table in the file that are no settings of it."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """click's context, after the check."""
        _check_table(
            parent, info_name, [str(p.name) for p in self.params if isinstance(p, Setting)]
        )
        return super().make_context(info_name, args, parent, **extra)


class Group(click.Group):
    """A group that refuses, in its table in the file, what is not one of its commands' tables."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order in which they were defined."""
        return list(self.commands)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
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
            raise click.UsageError(unknown(f"[{name}]", key, allowed), parent)
        if isinstance(value, dict) is not tables:
            wanted = "a table" if tables else "text, a number or true/false"
            raise click.UsageError(f"[{name}]: {key} must be {wanted}", parent)


def setting(*names: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """Decorator: an option that is a setting."""
    return click.option(*names, cls=Setting, show_envvar=True, **attributes)


def one_off(*names: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """Decorator: an option of one run, which neither environment nor file can set."""
    return click.option(*names, allow_from_autoenv=False, **attributes)


def redis_url(function: Decorated) -> Decorated:
    """Decorator: ``--redis-url``."""
    return click.option(
        "--redis-url",
        cls=SharedSetting,
        type=Url(),
        envvar="COUNTERSINK_REDIS_URL",
        show_envvar=True,
        help="The queue: redis://, rediss:// or unix://.",
    )(function)


def mysql_url(function: Decorated) -> Decorated:
    """Decorator: ``--mysql-url``."""
    return click.option(
        "--mysql-url",
        cls=SharedSetting,
        type=Url(),
        envvar="COUNTERSINK_MYSQL_URL",
        show_envvar=True,
        help="The database: mysql://user:password@host:3306/database.",
    )(function)


def jobs_redis_url(function: Decorated) -> Decorated:
    """Decorator: ``--jobs-redis-url``."""
    return click.option(
        "--jobs-redis-url",
        cls=SharedSetting,
        type=Url(),
        envvar="COUNTERSINK_JOBS_REDIS_URL",
        show_envvar=True,
        help="The queue of the scheduled jobs: a single Redis.  [default: --redis-url]",
    )(function)


def jobs_queue(redis_url: str | None, jobs_redis_url: str | None) -> str:
    """The URL of the Redis for the scheduled jobs; wrong usage if there is none, or a cluster."""
    url = jobs_redis_url or needed(redis_url, "redis")
    if url.startswith("redis+cluster:"):
        raise click.UsageError(
            "the scheduled jobs cannot use a Redis Cluster, since RQ cannot: set"
            " COUNTERSINK_JOBS_REDIS_URL to the URL of a single Redis",
            click.get_current_context(silent=True),
        )
    return url


def number(
    defaults: Mapping[str, Any], name: str, kind: type, help: str
) -> Callable[[Decorated], Decorated]:
    """Decorator: a number that a process can be told, with its default among ``defaults``."""
    seconds = name.endswith("_s")
    return setting(
        f"--{name.replace('_', '-')}",
        type=kind,
        default=defaults[name],
        show_default=True,
        metavar="SECONDS" if seconds else "N",
        help=help,
    )


def log_format(function: Decorated) -> Decorated:
    """Decorator: ``--log-format``."""
    return setting(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Logs, on stderr: for people or for machines.",
    )(function)


def output_format(*choices: str) -> Callable[[Decorated], Decorated]:
    """Decorator: ``--format``, always the output's; the first choice is the default."""
    return setting(
        "--format",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="How to print the result.",
    )


_EXAMPLES: Final = {
    "redis": "redis://localhost:6379/0",
    "mysql": "mysql://user:password@localhost:3306/countersink",
}


def needed(url: str | None, server: str) -> str:
    """``url``, or wrong usage when no ``server`` (``redis`` or ``mysql``) was configured."""
    if url:
        return url
    raise click.UsageError(
        f"no {server} URL is configured: set COUNTERSINK_{server.upper()}_URL "
        f"(such as {_EXAMPLES[server]}) or pass --{server}-url",
        click.get_current_context(silent=True),
    )


def _from_file(variable: str, path: str, ctx: click.Context) -> str:
    try:
        value = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise click.UsageError(f"{variable}: cannot read {path}: {reason}", ctx) from error
    if not value:
        raise click.UsageError(f"{variable}: {path} is empty", ctx)
    return value

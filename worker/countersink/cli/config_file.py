"""``countersink.toml``: settings for all commands at the top, and a table for each command.

::

    redis_url = "redis://queue.internal:6379/0"

    [worker]
    batch_entries = 500

    [dead.list]
    format = "json"
"""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import click

from countersink.cli.lazy import LazyGroup

DEFAULT_PATH: Final = Path("countersink.toml")
SHARED: Final = ("redis_url", "mysql_url", "jobs_redis_url")
"""Settings that stand at the top of the file, outside any command's table."""

Settings: TypeAlias = dict[str, "str | Settings"]


def apply(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Callback of ``--config``: make the file's settings the defaults of every command."""
    path = Path(value) if value else DEFAULT_PATH
    if not value and not path.exists():
        return
    ctx.default_map = load(path, ctx.command)


def load(path: Path, group: click.Command) -> Settings:
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
    tables = list(group.table) if isinstance(group, LazyGroup) else []
    for name, value in settings.items():
        if isinstance(value, str) and name not in SHARED:
            raise click.UsageError(unknown(str(path), name, SHARED))
        if not isinstance(value, str) and name not in tables:
            raise click.UsageError(unknown(str(path), f"[{name}]", [f"[{t}]" for t in tables]))
    return settings


def unknown(where: str, name: str, allowed: tuple[str, ...] | list[str]) -> str:
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

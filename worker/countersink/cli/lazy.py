"""A click group that imports a command's module only when that command is named."""

from importlib import import_module
from typing import NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command lives.

    Attributes:
        path: ``module:attribute``.
        help: its line in ``countersink --help``; a test holds it equal to the command's own.
    """

    path: str
    help: str


class LazyGroup(click.Group):
    """A group over a table of names; ``--help`` of the group imports none of them."""

    def __init__(self, *args: object, commands_table: dict[str, Lazy], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.table = commands_table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the table's order: the order in which a new user needs them."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None when there is none of that name."""
        lazy = self.table.get(cmd_name)
        if lazy is None:
            return None
        module, _, attribute = lazy.path.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self.table.items()])

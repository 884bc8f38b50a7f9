"""The generated pages of the documents: one for each command, and a table in docs/configuration.md.

``python -m tests.cli.reference`` writes the table, and a test fails when it is not up to date. The
pages of the commands are written when the documents are built (docs/conf.py).
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields

import click

from countersink.cli.app import app
from countersink.cli.settings import Setting, SharedSetting
from countersink.producers.options import PREFIX, Options
from tests.support.processes import PROJECT

BEGIN = "<!-- generated: python -m tests.cli.reference -->"
END = "<!-- end of the generated part -->"
WIDTH = 68
"""Columns of a literal block in a manual page on a terminal of 80."""
CONFIGURATION = PROJECT / "docs" / "configuration.md"


def commands(
    command: click.Command = app, path: tuple[str, ...] = ("countersink",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that call it, groups before what is in them."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1])
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


def context_of(path: tuple[str, ...], command: click.Command) -> click.Context:
    """A context as click makes it for the command that these words call."""
    settings = app.context_settings
    context = click.Context(
        app if len(path) > 1 else command,
        info_name=path[0],
        terminal_width=WIDTH,
        **{name: value for name, value in settings.items() if name != "max_content_width"},
    )
    for word in path[1:-1]:
        context = click.Context(app, info_name=word, parent=context)
    if len(path) > 1:
        context = click.Context(command, info_name=path[-1], parent=context)
    return context


def variables() -> set[str]:
    """Every variable that sets something."""
    found = {f"COUNTERSINK_{name}_URL" for name in ("REDIS", "MYSQL", "MYSQL_READ", "JOBS_REDIS")}
    for path, command in commands():
        words = "_".join(path[1:]).upper().replace("-", "_")
        for option in settings_of(path, command):
            found.add(f"COUNTERSINK_{words}_{option.name}".upper())
    return found | {PREFIX + name.upper() for name in Options.__dataclass_fields__}


def help_of(path: tuple[str, ...], command: click.Command) -> str:
    """What ``--help`` prints on a terminal that is as wide as a block of a manual page."""
    text = context_of(path, command).get_help()
    return "\n".join(line.rstrip() for line in text.splitlines())


def command_pages() -> dict[str, tuple[str, str]]:
    """The description and the text of a page for each command, by the page's name.

    The commands of a group are parts of the group's page.
    """
    pages: dict[str, tuple[str, str]] = {}
    for path, command in commands():
        name = "-".join(path[:2])
        help_block = f"```text\n{help_of(path, command)}\n```\n"
        if len(path) > 2:
            description, text = pages[name]
            pages[name] = description, f"{text}\n## {' '.join(path)}\n\n{help_block}"
        else:
            description = command.get_short_help_str(limit=200).rstrip(".")
            pages[name] = description, f"# {' '.join(path)}\n\n{help_block}"
    return pages


def settings_of(path: tuple[str, ...], command: click.Command) -> list[Setting]:
    """The options of a command that are settings of its own."""
    return [
        option
        for option in command.params
        if isinstance(option, Setting) and not isinstance(option, SharedSetting)
    ]


def settings_table() -> str:
    """docs/configuration.md: the settings of producers."""
    rows = [
        (f"`{field.name}`", f"`{PREFIX}{field.name.upper()}`", _shown(field.default), meaning)
        for field, meaning in zip(fields(Options), _meanings(), strict=True)
    ]
    return _table(("argument", "variable", "default", "meaning"), rows)


def configuration_page() -> str:
    """docs/configuration.md with its generated part made anew."""
    before, begin, rest = CONFIGURATION.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{CONFIGURATION} has no generated part"
    assert end, f"{CONFIGURATION} has no end of the generated part"
    return f"{before}{BEGIN}\n\n{settings_table()}\n\n{END}{after}"


def _meanings() -> list[str]:
    """The ``Attributes`` of the docstring of Options, in order."""
    text = re.sub(r"\s+", " ", (Options.__doc__ or "").partition("Attributes:")[2]).strip()
    text = text.replace("``", "`")
    names = "|".join(field.name for field in fields(Options))
    return [part.strip() for part in re.split(rf"(?:^|(?<=\. ))(?:{names}): ", text)[1:]]


def _shown(value: object) -> str:
    if value is None or value is False or value == "":
        return "off" if value is False else "none"
    return f"`{value}`" if value is not True else "on"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines: list[Sequence[str]] = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Write the generated part of docs/configuration.md."""
    CONFIGURATION.write_text(configuration_page(), "utf-8")
    sys.stdout.write("docs/configuration.md is up to date\n")


if __name__ == "__main__":
    main()

"""The generated parts of docs/cli.md and docs/configuration.md.

``python -m tests.cli.reference`` writes them; a test fails when they are not as it would write.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import click

from countersink.cli.app import app
from countersink.cli.settings import Setting, SharedSetting
from countersink.producers.options import PREFIX, Options
from tests.support.processes import PROJECT

BEGIN = "<!-- generated: python -m tests.cli.reference -->"
END = "<!-- end of the generated part -->"
WIDTH = 78
"""What click makes of a terminal of 80 columns."""
PAGES = {"cli": PROJECT / "docs" / "cli.md", "configuration": PROJECT / "docs" / "configuration.md"}


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


def help_of(path: tuple[str, ...], command: click.Command) -> str:
    """What ``--help`` prints on a terminal of 80 columns."""
    text = context_of(path, command).get_help()
    return "\n".join(line.rstrip() for line in text.splitlines())


def reference() -> str:
    """docs/cli.md: the help of every command."""
    parts = []
    for path, command in commands():
        parts.append(f"### {' '.join(path)}\n\n```text\n{help_of(path, command)}\n```")
    return "\n\n".join(parts)


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


GENERATED = {"cli": reference, "configuration": settings_table}


def page(name: str) -> str:
    """The page as it should be: what stands there, with the generated part made anew."""
    text = PAGES[name].read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGES[name]} has no generated part"
    assert end, f"{PAGES[name]} has no end of the generated part"
    return f"{before}{BEGIN}\n\n{GENERATED[name]()}\n\n{END}{after}"


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
    """Write the generated parts into the pages."""
    os.chdir(PROJECT)
    for name, path in PAGES.items():
        Path(path).write_text(page(name), "utf-8")
    sys.stdout.write("docs/cli.md and docs/configuration.md are up to date\n")


if __name__ == "__main__":
    main()

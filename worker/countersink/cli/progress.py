"""How far a long command is, on stderr: a bar on a terminal, else a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

import click

from countersink.cli import output

LINE_EVERY_S: Final = 10.0
REDRAW_EVERY_S: Final = 0.1

T = TypeVar("T")
Rows = Callable[[int, int], None]
"""Told how many rows are done, and about how many there are."""


@contextmanager
def rows(command: str, doing: str) -> Iterator[Rows]:
    """Shows how many rows are done.

    Args:
        command: its name, for the lines.
        doing: what the bar says that is going on.
    """
    if not sys.stderr.isatty():
        line = at_most_every(LINE_EVERY_S, partial(_line, command), at_once=False)
        yield lambda done, about: line((done, about))
        return
    with _bar(doing) as shown:
        redraw = at_most_every(REDRAW_EVERY_S, shown)
        yield lambda done, about: redraw((done, about))


@contextmanager
def looking(command: str, doing: str) -> Iterator[Callable[[str], None]]:
    """Shows what is being looked at, in the words that the yielded function is given.

    Args:
        command: its name, for the lines.
        doing: what stands before the words on a terminal.
    """
    if not sys.stderr.isatty():
        yield at_most_every(LINE_EVERY_S, partial(_words, command), at_once=False)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True, markup=False)
    with Progress(
        SpinnerColumn(), text, TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda words: bar.update(task, description=f"{doing} {words}")


def say(notice: str) -> None:
    """A line on stderr, above the bar if there is one."""
    click.echo(f"countersink: {output.cell(notice)}", err=True)


def at_most_every(
    seconds: float, show: Callable[[T], object], *, at_once: bool = True
) -> Callable[[T], None]:
    """``show``, called not more often than this; at first ``at_once``, or when they have passed."""
    since = -seconds if at_once else time.monotonic()

    def shown(state: T) -> None:
        nonlocal since
        now = time.monotonic()
        if now - since >= seconds:
            since = now
            show(state)

    return shown


def _words(command: str, words: str) -> None:
    click.echo(f"countersink {command}: {words}", err=True)


def _line(command: str, state: tuple[int, int]) -> None:
    click.echo(f"countersink {command}: {_share(*state):.0%}, {_rows(*state)}", err=True)


def _share(done: int, about: int) -> float:
    # About is an estimate of the server's: what is not known to be the end is not shown as such.
    return min(done / max(about, 1), 0.99)


def _rows(done: int, about: int) -> str:
    return f"{done:,} of about {max(about, done):,} rows"


@contextmanager
def _bar(doing: str) -> Iterator[Callable[[tuple[int, int]], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        # Not the text itself: names of tables can look like markup, or like a field.
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[rows]}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True, markup=False)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(doing, total=1.0, rows="")

        def show(state: tuple[int, int]) -> None:
            bar.update(task, completed=_share(*state), rows=_rows(*state))

        yield show

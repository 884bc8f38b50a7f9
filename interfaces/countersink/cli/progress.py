"""Progress of long commands, a bar on a terminal (nothing elsewhere), notices on stderr, and the
stop at SIGINT or SIGTERM with its exit status."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import click

from countersink.cli import output
from countersink.cli.errors import Exit
from countersink.runtime.process import Stop

Show = Callable[[float | None, str], object]
"""Told the share that is done, up to 1 (None: it is not known), and words beside it."""


@contextmanager
def bar(doing: str) -> Iterator[Show]:
    """A bar on stderr, where that is a terminal; ``doing``: the words before it."""
    if not sys.stderr.isatty():
        yield lambda share, words: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        # Names of tables and files can look like markup.
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    console = Console(stderr=True, markup=False)
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task(doing, total=None, words="")

        def show(share: float | None, words: str) -> None:
            total = None if share is None else 1.0
            display.update(task, total=total, completed=share or 0.0, words=words)

        yield show


@contextmanager
def rows(doing: str) -> Iterator[Callable[[int, int], object]]:
    """The same for rows: the yielded function is told how many are done, and about how many there
    are."""
    with bar(doing) as show:

        def rows_done(done: int, about: int) -> None:
            # "about" is the server's estimate: the end is not known before it is reached
            share = min(done / max(about, 1), 0.99)
            show(share, f"{done:,} of about {max(about, done):,} rows")

        yield rows_done


def say(notice: str) -> None:
    """A line on stderr, above the bar if there is one."""
    click.echo(f"countersink: {output.cell(notice)}", err=True)


class StopRequest(Stop):
    """Whether, and by which signal, the process was asked to stop. Calling it tells."""

    status: int | None = None
    """The exit status of a command that ended because of it; None: it was not asked."""

    def __call__(self) -> bool:
        """Whether it was asked."""
        return self.requested


@contextmanager
def stopped_by_signals() -> Iterator[StopRequest]:
    """What SIGINT and SIGTERM ask for, while the context is open; a second one ends at once."""
    asked = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if asked():
            sys.exit(128 + number)
        asked.status = Exit.INTERRUPTED if number == signal.SIGINT else Exit.TERMINATED
        asked.request()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

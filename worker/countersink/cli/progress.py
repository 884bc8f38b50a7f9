"""Progress of long commands on stderr: its texts, bar or line, how often; and the stop at SIGINT or
SIGTERM with its exit status."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from countersink.cli import output
from countersink.cli.errors import Exit
from countersink.runtime.process import Stop

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from countersink.backfill.options import Progress

LINE_EVERY_S: Final = 10.0
REDRAW_EVERY_S: Final = 0.1
JSON_EVERY_S: Final = 1.0

T = TypeVar("T")
Show = Callable[[T], object]
Rows = Callable[[int, int], object]
"""Told how many rows are done, and about how many there are."""

_DOING: Final = {"waiting": "waiting for what is in the queue"}
"""What a backfill does, where its own word says too little."""


@contextmanager
def share(
    command: str, doing: str, described: Callable[[T], tuple[float, str]]
) -> Iterator[Show[T]]:
    """Shows which share is done.

    Args:
        command: its name, for the lines.
        doing: what the bar says that is going on.
        described: the share of what is done, up to 1, and what is said beside it.
    """
    if not sys.stderr.isatty():
        yield _lines_of(command, lambda state: "{:.0%}, {}".format(*described(state)))
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    with _bar(
        doing,
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[words]}", markup=False),
        TimeElapsedColumn(),
        total=1.0,
        words="",
    ) as update:

        def show(state: T) -> None:
            done, words = described(state)
            update(completed=done, words=words)

        yield _at_most_every(REDRAW_EVERY_S, show)


@contextmanager
def rows(command: str, doing: str) -> Iterator[Rows]:
    """Shows how many rows are done; ``command`` and ``doing`` as for :func:`share`."""

    def described(state: tuple[int, int]) -> tuple[float, str]:
        done, about = state
        # "about" is the server's estimate: what is not known to be the end is not shown as such
        return min(done / max(about, 1), 0.99), f"{done:,} of about {max(about, done):,} rows"

    with share(command, doing, described) as show:
        yield lambda done, about: show((done, about))


@contextmanager
def looking(command: str, doing: str) -> Iterator[Show[str]]:
    """Shows what is being looked at, in the words that the yielded function is given.

    Args:
        command: its name, for the lines.
        doing: what stands before the words on a terminal.
    """
    if not sys.stderr.isatty():
        yield _lines_of(command, str)
        return
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    with _bar(doing, TimeElapsedColumn(), before=SpinnerColumn()) as update:
        yield lambda words: update(description=f"{doing} {words}")


@contextmanager
def backfill(*, as_json: bool) -> Iterator[Show["Progress"]]:
    """Shows how far a backfill is; as JSON it is a line ``{"progress": {…}}`` each second, on a
    terminal too.
    """
    pace = _Pace()
    if as_json:
        yield _at_most_every(JSON_EVERY_S, partial(_say_json, pace))
        return
    if not sys.stderr.isatty():
        yield _lines_of("backfill", lambda state: ", ".join(pace.words(state)))
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    with _bar(
        "reading",
        BarColumn(bar_width=30),
        TextColumn("{task.fields[share]}"),
        TextColumn("{task.fields[lines]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        share="",
        lines="",
        left="",
    ) as update:

        def show(state: "Progress") -> None:
            rate, left = pace.of(state)
            share = _share_read(state) if state.doing == "reading" else None
            update(
                description=_DOING.get(state.doing, state.doing),
                # Without a known end, and while it waits, the bar only moves to and fro.
                total=None if share is None else 1.0,
                completed=share or 0.0,
                share="" if share is None else f"{share:4.0%}",
                lines=_lines(state, rate),
                left=_left(left) if share is not None and left else "",
            )

        yield _at_most_every(REDRAW_EVERY_S, show)


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


class _Pace:
    """Lines per second and seconds left of a backfill, since it was first asked."""

    def __init__(self) -> None:
        self._begun = 0.0
        self._first: Progress | None = None

    def of(self, state: "Progress") -> tuple[float | None, float | None]:
        """Lines per second, and seconds left; None: not known."""
        now = time.monotonic()
        if self._first is None:
            self._begun, self._first = now, state
        took = now - self._begun
        if took <= 0:
            return None, None
        left = None
        if state.size is not None and state.done > self._first.done:
            left = max(state.size - state.done, 0) * took / (state.done - self._first.done)
        return (state.lines - self._first.lines) / took, left

    def words(self, state: "Progress") -> list[str]:
        """How far it is, for a line."""
        rate, left = self.of(state)
        words = [_DOING.get(state.doing, state.doing)]
        if state.doing == "reading":
            share = _share_read(state)
            if share is not None:
                words.append(f"{share:.0%}")
            words.append(_lines(state, rate))
            if left:
                words.append(_left(left))
        return words


def _say_json(pace: _Pace, state: "Progress") -> None:
    rate, left = pace.of(state)
    figures = {
        **asdict(state),
        "lines_per_s": None if rate is None else round(rate),
        "seconds_left": None if left is None else round(left),
    }
    click.echo(json.dumps({"progress": figures}), err=True)


def _share_read(state: "Progress") -> float | None:
    return None if state.size is None else min(state.done / max(state.size, 1), 1.0)


def _lines(state: "Progress", rate: float | None) -> str:
    text = f"{state.lines:,} lines"
    if rate is not None:
        text += f" ({rate:,.0f}/s)"
    if state.rejected:
        text += f", {state.rejected:,} rejected"
    if state.jobs:
        text += f", {state.jobs:,} jobs"
    return text


def _left(seconds: float) -> str:
    return f"about {output.ago(max(seconds, 1.0))} left"


def _lines_of(command: str, words: Callable[[T], str]) -> Show[T]:
    """A line with these words now and then."""

    def say(state: T) -> None:
        click.echo(f"countersink {command}: {words(state)}", err=True)

    return _at_most_every(LINE_EVERY_S, say, at_once=False)


def _at_most_every(seconds: float, show: Show[T], *, at_once: bool = True) -> Show[T]:
    """``show``, called not more often than this; at first ``at_once``, or when they have passed."""
    since = -seconds if at_once else time.monotonic()

    def shown(state: T) -> None:
        nonlocal since
        now = time.monotonic()
        if now - since >= seconds:
            since = now
            show(state)

    return shown


@contextmanager
def _bar(
    doing: str, *columns: "ProgressColumn", before: "ProgressColumn | None" = None, **fields: Any
) -> Iterator[Callable[..., None]]:
    """A line of a terminal: ``doing`` with these columns behind it; the yielded function changes
    what of it is given.
    """
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    # Not the text itself: names of tables and files can look like markup, or like a field.
    described = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True, markup=False)
    first = (described,) if before is None else (before, described)
    with Progress(*first, *columns, console=console, transient=True) as bar:
        yield partial(bar.update, bar.add_task(doing, **{"total": None, **fields}))

"""How far a backfill is, on stderr: a bar on a terminal, else lines; JSON for machines."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

import click

from countersink.backfill.options import Progress
from countersink.cli import output
from countersink.cli.progress import LINE_EVERY_S, REDRAW_EVERY_S, at_most_every

JSON_EVERY_S: Final = 1.0

Show = Callable[[Progress], object]

_DOING: Final = {
    "reading": "reading",
    "waiting": "waiting for what is in the queue",
    "correcting": "correcting",
}


@contextmanager
def shown(*, as_json: bool) -> Iterator[Show]:
    """Shows progress; as JSON it is a line ``{"progress": {…}}`` each second, on a terminal too."""
    pace = _Pace()
    if as_json:
        yield at_most_every(JSON_EVERY_S, lambda state: _json(state, pace))
    elif not sys.stderr.isatty():
        yield at_most_every(LINE_EVERY_S, lambda state: _line(state, pace), at_once=False)
    else:
        with _bar(pace) as show:
            yield at_most_every(REDRAW_EVERY_S, show)


class _Pace:
    """Lines per second and seconds left, since it was first asked."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self._first = Progress(doing="")

    def of(self, state: Progress) -> tuple[float | None, float | None]:
        """Lines per second, and seconds left; None: not known."""
        now = time.monotonic()
        if self._begun is None:
            self._begun, self._first = now, state
        took = now - self._begun
        if took <= 0:
            return None, None
        left = None
        if state.size is not None and state.done > self._first.done:
            left = max(state.size - state.done, 0) * took / (state.done - self._first.done)
        return (state.lines - self._first.lines) / took, left


def _json(state: Progress, pace: _Pace) -> None:
    rate, left = pace.of(state)
    figures = {
        **asdict(state),
        "lines_per_s": None if rate is None else round(rate),
        "seconds_left": None if left is None else round(left),
    }
    click.echo(json.dumps({"progress": figures}), err=True)


def _line(state: Progress, pace: _Pace) -> None:
    click.echo(f"countersink backfill: {', '.join(_words(state, pace))}", err=True)


def _words(state: Progress, pace: _Pace) -> list[str]:
    rate, left = pace.of(state)
    words = [_DOING.get(state.doing, state.doing)]
    if state.doing == "reading":
        share = _share(state)
        if share is not None:
            words.append(f"{share:.0%}")
        words.append(_lines(state, rate))
        if left:
            words.append(_left(left))
    return words


def _share(state: Progress) -> float | None:
    return None if state.size is None else min(state.done / max(state.size, 1), 1.0)


def _lines(state: Progress, rate: float | None) -> str:
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


@contextmanager
def _bar(pace: _Pace) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        # Not the text itself: names of files can look like markup, or like a field.
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[share]}"),
        TextColumn("{task.fields[lines]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    console = Console(stderr=True, markup=False)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None, share="", lines="", left="")

        def show(state: "_Progress") -> None:
            rate, left = pace.of(state)
            share = _share(state) if state.doing == "reading" else None
            bar.update(
                task,
                description=_DOING.get(state.doing, state.doing),
                # Without a known end, and while it waits, the bar only moves to and fro.
                total=None if share is None else 1.0,
                completed=share or 0.0,
                share="" if share is None else f"{share:4.0%}",
                lines=_lines(state, rate),
                left=_left(left) if share is not None and left else "",
            )

        yield show


_Progress = Progress

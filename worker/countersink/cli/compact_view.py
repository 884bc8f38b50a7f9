"""What ``countersink compact`` shows: a progress bar, then what was done."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from countersink.cli.output import ago, cell, console, table, write_json
from countersink.cli.progress import LINE_EVERY_S, REDRAW_EVERY_S, at_most_every
from countersink.cli.text import printable
from countersink.schedules.compaction import Compacted
from countersink.schedules.places import BUSY, OVERFLOWING, UNKNOWN, Place
from countersink.store.buckets import label_text

Progress = Callable[[Compacted], object]

_NAMED: Final = 10
"""Places named; the others are counted."""


@contextmanager
def progress() -> Iterator[Progress]:
    """Shows on stderr how far it is: a bar on a terminal, else a line now and then."""
    if sys.stderr.isatty():
        with _bar() as shown:
            yield at_most_every(REDRAW_EVERY_S, shown)
    else:
        yield at_most_every(LINE_EVERY_S, _line, at_once=False)


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("compacting"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[rows]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task("compacting", total=1.0, rows="")

        def show(done: Compacted) -> None:
            bar.update(task, completed=done.share_done, rows=_rows(done))

        yield show


def _line(done: Compacted) -> None:
    click.echo(f"countersink compact: {done.share_done:.0%}, {_rows(done)}", err=True)


def _rows(done: Compacted) -> str:
    return f"{done.rows_before:,} rows became {done.rows_after:,}"


def write(done: Compacted) -> None:
    """The result as one JSON document."""
    write_json(
        {
            "rows_before": done.rows_before,
            "rows_after": done.rows_after,
            "ranges": done.ranges,
            "seconds": round(done.seconds, 3),
            "busy": _places(done.busy),
            "overflowing": _places(done.overflowing),
            "unknown": _places(done.unknown),
        }
    )


def _places(places: Sequence[Place]) -> list[dict[str, object]]:
    return [
        {"counter": place.counter, "bucket": label_text(place.bucket), "key": _key(place)}
        for place in places
    ]


def _key(place: Place) -> str | None:
    return None if place.key is None else place.key.decode("utf-8", "surrogateescape")


def show(done: Compacted) -> None:
    """The result for people."""
    if done.rows_before:
        found = table({"rows before": True, "rows after": True, "time": True})
        found.add_row(cell(done.rows_before), cell(done.rows_after), ago(done.seconds))
        console().print(found)
    elif not (done.busy or done.overflowing):
        click.echo(f"There was nothing to compact ({ago(done.seconds)}).")
    for places, what in (
        (done.busy, BUSY),
        (done.overflowing, OVERFLOWING),
        (done.unknown, UNKNOWN),
    ):
        if places:
            click.echo(f"{what[0].upper()}{what[1:]}: {len(places):,}")
            for place in places[:_NAMED]:
                key = _key(place)
                bucket = f"  {place.counter} {label_text(place.bucket)}"
                click.echo(bucket if key is None else f"{bucket} '{printable(key)}'")
            if len(places) > _NAMED:
                click.echo(f"  and {len(places) - _NAMED:,} more: --format json names all")

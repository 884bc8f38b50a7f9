"""Printing results: one JSON document, CSV, or a table for people."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import click

from countersink.cli.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = Mapping[str, object]

_AT_ONCE: Final = 1000
"""Rows that are written at once."""
_BY_RICH: Final = 500
"""Rows of a table up to which rich lays it out."""
_BAR: Final = 40
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def write_json(document: object) -> None:
    """One JSON document on stdout, in ASCII: every key survives every terminal and locale."""
    click.echo(json.dumps(document))


def write_json_list(document: Row, name: str, rows: Iterable[Row]) -> None:
    """The same, with ``rows`` as its last member: they are read one by one, for they may be
    millions."""
    before = json.dumps(document)[:-1] + (", " if document else "")
    click.echo(f"{before}{json.dumps(name)}: [", nl=False)
    each = (json.dumps(row) for row in rows)
    first = True
    while some := list(islice(each, _AT_ONCE)):
        click.echo(("" if first else ", ") + ", ".join(some), nl=False)
        first = False
    click.echo("]}")


def write_csv(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """RFC 4180 with a header line; text that a spreadsheet would run as a formula gets a ``'``."""
    from countersink.reads.layout import csv_text

    for some in csv_text(columns, rows):
        click.echo(some, nl=False)


def console() -> "Console":
    """Where tables go: stdout, no markup, and wide enough for anything when it is not a screen."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            # rich would exit with 1 here; the command line has a status of its own for this.
            raise BrokenPipeError

    found = Plain(highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        # Colours and folding are for screens; whoever reads a pipe wants lines.
        found = Plain(highlight=False, markup=False, emoji=False, width=1000, no_color=True)
    return found


def table(columns: Mapping[str, bool]) -> "Table":
    """An empty table; ``columns`` says of each whether it holds numbers."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, numeric in columns.items():
        made.add_column(name, justify="right" if numeric else "left", overflow="fold")
    return made


def write_table(table: "Table") -> None:
    """A table of :func:`table` on stdout. A long one is laid out here, the same but for folding and
    colours: rich takes a millisecond for each row.
    """
    if table.row_count <= _BY_RICH:
        console().print(table)
        return
    columns = {str(column.header): column.justify == "right" for column in table.columns}
    _write_long(columns, [list(map(str, column.cells)) for column in table.columns])


def write_rows(columns: Mapping[str, bool], rows: Sequence[Sequence[str]]) -> None:
    """A table of these rows on stdout; ``columns`` as for :func:`table`, as many as each row has.

    For tables that can be long: rich would take hundreds of bytes and some microseconds for each
    row that it is only told of.
    """
    if len(rows) > _BY_RICH:
        _write_long(columns, list(zip(*rows, strict=True)))
        return
    made = table(columns)
    for row in rows:
        made.add_row(*row)
    write_table(made)


def _write_long(columns: Mapping[str, bool], cells: Sequence[Sequence[str]]) -> None:
    """A table, column by column: most have few different values, each of which is padded once."""
    padded = []
    for (header, numeric), values in zip(columns.items(), cells, strict=True):
        different = {header, *values}
        width = max(map(_width, different))
        pads = {text: _padded(text, width, not numeric) for text in different}
        padded.append(map(pads.__getitem__, chain((header,), values)))
    lines = map("  ".join, zip(*padded, strict=True))
    while some := list(islice(lines, _AT_ONCE)):
        click.echo("\n".join(some))


def _padded(text: str, width: int, left: bool) -> str:
    pad = " " * (width - _width(text))
    return text + pad if left else pad + text


def _width(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cell(value: object) -> str:
    """A value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def bar(value: int, largest: int) -> str:
    """A bar of up to 40 characters, in eighths of one; empty for nothing and below."""
    if value <= 0 or largest <= 0:
        return ""
    eighths = max(1, round(8 * _BAR * value / largest))
    full, rest = divmod(eighths, 8)
    return _EIGHTHS[8] * full + (_EIGHTHS[rest] if rest else "")


def iso(moment: datetime | None) -> str | None:
    """ISO 8601 in UTC to the millisecond, ending in Z; None stays None."""
    from countersink.reads import layout

    return layout.iso(moment)


def iso_ms(ms: int) -> str:
    """Unix ms as ISO 8601; a number that is no time we can write stays a number."""
    try:
        return iso(datetime.fromtimestamp(ms / 1000, UTC)) or ""
    except (OverflowError, ValueError, OSError):
        return str(ms)


def ago(seconds: float) -> str:
    """A duration for people: ``250 ms``, ``12 s``, ``3 min``, ``5.0 h``, ``2.1 d``."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"

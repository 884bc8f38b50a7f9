"""Printing results: JSON, CSV, tables for people, the yes or no before deletions (its words are the
command's), times and durations as text, and escaping of control characters. Progress of long
commands, a bar on a terminal (nothing elsewhere), notices on stderr, and the stop at SIGINT or
SIGTERM with its exit status.

Keys come from whoever can reach a counted URL: they may hold escape sequences that rewrite a
terminal's screen. What a spreadsheet makes of them is :mod:`countersink.reads.formats`'s matter.
"""

import json
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from itertools import islice
from types import FrameType
from typing import Any, Final

import click

from countersink.cli import settings
from countersink.cli.errors import Exit, Failure, Misuse
from countersink.runtime.process import Stop
from countersink.runtime.texts import iso

Row = Mapping[str, object]
Columns = Sequence[str]
"""Headings of a table; one with ``>`` before it is of numbers, which stand at the right."""

_AT_ONCE: Final = 1000
"""Rows that are written at once."""
_BAR: Final = 40
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def write_json(document: object) -> None:
    """One JSON document on stdout, in ASCII: every key survives every terminal and locale."""
    click.echo(json.dumps(document))


def write_result(
    document: Row,
    people: str | Callable[[], object],
    csv: tuple[Columns, Iterable[Row]] = ((), ()),
    last: tuple[str, Iterable[Row]] | None = None,
) -> None:
    """The result as ``--format`` says.

    Args:
        document: for JSON.
        people: the text for people, or what prints it for them.
        csv: columns and rows.
        last: the name and rows of the document's last member: they are read one by one, for they
            may be millions.
    """
    format = settings.noted("format")
    if format == "json":
        _write_json_list(document, *last) if last else write_json(document)
    elif format == "csv":
        write_csv(*csv)
    elif isinstance(people, str):
        click.echo(people)
    else:
        people()


def document(record: object, names: Iterable[str], **others: object) -> dict[str, Any]:
    """Members for JSON and CSV: of these ``names`` those in ``others``, else the attributes of
    ``record``; times are ISO 8601 in UTC.
    """
    return {
        name: _plain(others[name] if name in others else getattr(record, name)) for name in names
    }


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return iso(value)
    return str(value) if isinstance(value, date) else value


def _write_json_list(document: Row, name: str, rows: Iterable[Row]) -> None:
    before = json.dumps(document)[:-1] + (", " if document else "")
    click.echo(f"{before}{json.dumps(name)}: [", nl=False)
    each = (json.dumps(row) for row in rows)
    first = True
    while some := list(islice(each, _AT_ONCE)):
        click.echo(("" if first else ", ") + ", ".join(some), nl=False)
        first = False
    click.echo("]}")


def write_csv(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """RFC 4180 with a header line; with ``--spreadsheet`` no text is a formula."""
    from countersink.reads.formats import csv_text

    for some in csv_text(columns, rows, spreadsheet=bool(settings.noted("spreadsheet"))):
        click.echo(some, nl=False)


def confirm(yes: bool, question: str, otherwise: str) -> None:
    """Ask, unless ``yes``; Failure, which says what was not done, after a no, Misuse where nobody
    can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Misuse("there is no terminal to ask on: --yes does it without asking")
    if not click.confirm(question, err=True):
        raise Failure(otherwise)


def write_facts(values: Mapping[str, object]) -> None:
    """A table on stdout of two columns without a heading: names, and what they stand for."""
    click.echo(facts(values))


def facts(values: Mapping[str, object]) -> str:
    """The same as text."""
    rows = [(name, cell(value)) for name, value in values.items()]
    return "\n".join(_lines(("", ""), rows)).partition("\n")[2]


def write_rows(columns: Columns, rows: Iterable[Sequence[object]], *, otherwise: str = "") -> None:
    """A table of these rows on stdout, each value as :func:`cell` shows it; without any the
    sentence ``otherwise``.
    """
    cells = [tuple(map(cell, row)) for row in rows]
    if otherwise and not cells:
        click.echo(otherwise)
        return
    lines = _lines(columns, cells)
    while some := list(islice(lines, _AT_ONCE)):
        click.echo("\n".join(some))


def write_documents(columns: Columns, documents: Iterable[Row], *, otherwise: str = "") -> None:
    """A table on stdout of the members of these documents that ``columns`` names."""
    names = [name.removeprefix(">") for name in columns]
    rows = ([each[name] for name in names] for each in documents)
    write_rows(columns, rows, otherwise=otherwise)


def table(columns: Columns, rows: Iterable[Sequence[object]]) -> str:
    """A table as text, each value as :func:`cell` shows it."""
    return "\n".join(_lines(columns, [tuple(map(cell, row)) for row in rows]))


def _lines(columns: Columns, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table, column by column: most have few different values, each of which is padded once."""
    padded = []
    for number, name in enumerate(columns):
        texts = [name.removeprefix(">"), *(row[number] for row in rows)]
        width = max(map(_width, set(texts)))
        pads = {text: _padded(text, width, not name.startswith(">")) for text in set(texts)}
        padded.append(map(pads.__getitem__, texts))
    return ("  ".join(cells).rstrip() for cells in zip(*padded, strict=True))


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


def few(names: Sequence[str], most: int = 5) -> str:
    """The first of these names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def bar(value: int, largest: int) -> str:
    """A bar of up to 40 characters, in eighths of one; empty for nothing and below."""
    if value <= 0 or largest <= 0:
        return ""
    eighths = max(1, round(8 * _BAR * value / largest))
    full, rest = divmod(eighths, 8)
    return _EIGHTHS[8] * full + (_EIGHTHS[rest] if rest else "")


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


def printable(text: str) -> str:
    """``text`` with control, format and other invisible characters as ``\\x1b`` or ``\\u202e``.

    Backslashes are doubled where one is needed to tell an escape from the same letters as they
    are, so that two different keys never look alike because of this.
    """
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character == "\\":
        return "\\\\"
    # Cc control, Cf format (bidirectional overrides, zero width), Cs surrogate, Co private,
    # Cn unassigned, Zl and Zp line and paragraph separators.
    if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


Show = Callable[[float | None, str], object]
"""Told the share that is done, up to 1 (None: it is not known), and words beside it."""


@contextmanager
def progress_bar(doing: str) -> Iterator[Show]:
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
def progress_of_rows(doing: str) -> Iterator[Callable[[int, int], object]]:
    """The same for rows: the yielded function is told how many are done, and about how many there
    are."""
    with progress_bar(doing) as show:

        def rows_done(done: int, about: int) -> None:
            # "about" is the server's estimate: the end is not known before it is reached
            share = min(done / max(about, 1), 0.99)
            show(share, f"{done:,} of about {max(about, done):,} rows")

        yield rows_done


def say(notice: str) -> None:
    """A line on stderr, above the bar if there is one."""
    click.echo(f"countersink: {cell(notice)}", err=True)


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

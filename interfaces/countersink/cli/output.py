"""Output of commands: results as JSON, CSV or tables, escaped control characters, progress bars,
notices on stderr. Also the question before a deletion, and the handling of SIGINT and SIGTERM.

Keys come from anyone who can request a counted URL. They may contain escape sequences that rewrite
a terminal's screen, so control characters are escaped. See ``reads/formats.py`` for the escaping of
formulas in CSV.
"""

import json
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from functools import partial
from itertools import islice, zip_longest
from shutil import get_terminal_size
from types import FrameType
from typing import Any, Final

import click

from countersink.cli import settings
from countersink.cli.errors import Exit, Failure, Misuse
from countersink.runtime.process import Stop
from countersink.runtime.texts import iso, plural

Document = Mapping[str, object]
"""A JSON object: values by names of members. A table or a CSV file has one line for each
document."""
Columns = Sequence[str]
"""Headings of a table. ``>`` before a heading aligns its column to the right, for numbers. ``-``
before that marks a column that a narrow terminal may leave out; the last one is left out first.
``~`` marks a column of keys: a narrow terminal shows long words without their middle."""

_CHUNK_LINES: Final = 1000
"""Number of lines that are written to stdout in one call."""
_BAR: Final = 40
"""Length of the longest bar, in characters; shorter on a narrow terminal."""
_NARROWEST: Final = 20
"""Width of a column below which its texts are not wrapped."""
_PIPED_KEY: Final = 60
"""Widest column of keys in a pipe; longer keys shift the rest of their line."""
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def write_json(document: object) -> None:
    """Write a JSON document to stdout, in ASCII, which every terminal and locale can show."""
    click.echo(json.dumps(document))


def write_result(
    document: Document,
    people: str | Callable[[], object],
    csv: tuple[Columns, Iterable[Document]] = ((), ()),
    last: tuple[str, Iterable[Document]] | None = None,
) -> None:
    """Write the result of a command to stdout, in the format that ``--format`` names.

    Args:
        document: the result as JSON.
        people: the result for people, for the formats ``table`` and ``text``: the text, or a
            function that prints it.
        csv: the columns and the lines of the result as CSV; left out by commands without CSV.
        last: the name and the items of a list that becomes the last member of the JSON document.
            There may be millions of items: they are read while earlier ones are written.
    """
    format = settings.option_value("format")
    if format == "json":
        _write_json_list(document, *last) if last else write_json(document)
    elif format == "csv":
        write_csv(*csv)
    elif isinstance(people, str):
        click.echo(people)
    else:
        people()


def document(record: object, names: Iterable[str], **others: object) -> dict[str, Any]:
    """Return a JSON document with the members ``names``. Each value comes from the argument of that
    name in ``others``, or else from the attribute of that name of ``record``. Dates and times
    become text: ISO 8601, times in UTC."""
    return {
        name: _plain(others[name] if name in others else getattr(record, name)) for name in names
    }


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return iso(value)
    return str(value) if isinstance(value, date) else value


def _write_json_list(document: Document, name: str, rows: Iterable[Document]) -> None:
    before = json.dumps(document)[:-1] + (", " if document else "")
    click.echo(f"{before}{json.dumps(name)}: [", nl=False)
    texts = (json.dumps(row) for row in rows)
    first = True
    while chunk := list(islice(texts, _CHUNK_LINES)):
        click.echo(("" if first else ", ") + ", ".join(chunk), nl=False)
        first = False
    click.echo("]}")


def write_csv(columns: Sequence[str], rows: Iterable[Document]) -> None:
    """Write CSV (RFC 4180) with a header line to stdout. With ``--spreadsheet``, cells that a
    spreadsheet would run as formulas are escaped."""
    from countersink.reads.formats import csv_text

    for part in csv_text(columns, rows, spreadsheet=bool(settings.option_value("spreadsheet"))):
        click.echo(part, nl=False)


def confirm(yes: bool, question: str, otherwise: str) -> None:
    """Ask a question, and return if the user answers yes. Does not ask if ``yes`` is set.

    Raises:
        Failure: the answer is no; ``otherwise`` is the message.
        Misuse: stdin is no terminal, so that nobody can answer.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Misuse("this needs a confirmation, and there is no terminal: give --yes")
    if not click.confirm(question, err=True):
        raise Failure(otherwise)


def write_facts(values: Mapping[str, object]) -> None:
    """Write a table with two columns, names and values, to stdout. It has no headings."""
    click.echo(facts(values))


def facts(values: Mapping[str, object]) -> str:
    """Return a table with two columns, names and values, as text. It has no headings."""
    rows = [(name, display(value)) for name, value in values.items()]
    return "\n".join(_lines(("", ""), rows)).partition("\n")[2]


def write_rows(columns: Columns, rows: Iterable[Sequence[object]], *, otherwise: str = "") -> None:
    """Write a table to stdout, with each value as :func:`display` shows it. If there are no rows,
    write the sentence ``otherwise`` instead or, if that is empty, only the headings."""
    cells = [tuple(map(display, row)) for row in rows]
    if otherwise and not cells:
        click.echo(otherwise)
        return
    lines = _lines(columns, cells)
    while chunk := list(islice(lines, _CHUNK_LINES)):
        click.echo("\n".join(chunk))


def write_documents(columns: Columns, rows: Iterable[Document], *, otherwise: str = "") -> None:
    """Write a table of documents to stdout, as :func:`write_rows` does. The headings ``columns``,
    without the marks ``>``, ``-`` and ``~``, are the names of the members that are shown."""
    names = [name.lstrip("~->") for name in columns]
    lines = ([each[name] for name in names] for each in rows)
    write_rows(columns, lines, otherwise=otherwise)


def table(columns: Columns, rows: Iterable[Sequence[object]]) -> str:
    """Return a table as text, with each value as :func:`display` shows it."""
    return "\n".join(_lines(columns, [tuple(map(display, row)) for row in rows]))


def _lines(columns: Columns, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table whose cells are texts already. The headings come first. If columns
    are left out, their names come last. Equal texts of a column are wrapped and padded once."""
    heads = [name.lstrip("~->") for name in columns]
    texts = [(head, *(row[number] for row in rows)) for number, head in enumerate(heads)]
    widths = _fitted(columns, list(map(set, texts)))
    padded = []
    for number, width in widths.items():
        pad = partial(_padded, width=width, left=">" not in columns[number])
        most = width if terminal_width() < sys.maxsize else sys.maxsize
        pads = {text: list(map(pad, wrapped(text, most))) for text in set(texts[number])}
        padded.append(map(pads.__getitem__, texts[number]))
    blanks = [" " * width for width in widths.values()]
    for row in zip(*padded, strict=True):
        for line in zip_longest(*row):
            cells = (cell or blank for cell, blank in zip(line, blanks, strict=True))
            yield "  ".join(cells).rstrip()
    hidden = (head for number, head in enumerate(heads) if number not in widths)
    if names := ", ".join(filter(str.strip, hidden)):
        yield from wrapped(f"Not shown: {names} (--format json has them).", terminal_width())


def _fitted(columns: Columns, texts: Sequence[set[str]]) -> dict[int, int]:
    """Return the width of each column that is shown, by its number. ``texts`` are the texts of each
    column. If the table is wider than the terminal, wide columns become narrower, but not narrower
    than 20 characters nor, unless marked ``~``, than their longest word. If that is not enough,
    columns marked ``-`` are left out, the last one first. If stdout is no terminal, only columns
    marked ``~`` are limited, to ``_PIPED_KEY``."""
    widths = {number: max(map(_width, each)) for number, each in enumerate(texts)}
    keys = [number for number, name in enumerate(columns) if name.startswith("~")]
    if (room := terminal_width()) == sys.maxsize:
        return widths | {number: min(widths[number], _PIPED_KEY) for number in keys}
    room += 2  # two spaces follow each column but the last

    def fits(widths: Mapping[int, int]) -> bool:
        return sum(widths.values()) + 2 * len(widths) <= room

    if fits(widths):
        return widths
    least = {
        number: max(min(widths[number], _NARROWEST), *map(_width, " ".join(each).split(" ")))
        for number, each in enumerate(texts)
    } | {number: min(widths[number], _NARROWEST) for number in keys}
    optional = [number for number, name in enumerate(columns) if name.startswith("-")]
    while optional and not fits(least):
        del widths[optional[-1]], least[optional.pop()]
    while not fits(widths) and widths != least:
        widest = max(widths, key=lambda number: (widths[number] > least[number], widths[number]))
        widths[widest] -= 1
    return widths


def wrapped(text: str, width: int) -> list[str]:
    """Return a text as lines of at most ``width`` columns of a terminal. The text is broken only at
    spaces: a word that is longer than ``width`` is a line of its own."""
    if _width(text) <= width:
        return [text]
    lines: list[str] = []
    for word in text.split(" "):
        if lines and _width(lines[-1]) + 1 + _width(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def terminal_width() -> int:
    """Return the number of columns of the terminal; ``sys.maxsize`` if stdout is no terminal."""
    return get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _padded(text: str, width: int, left: bool) -> str:
    """Return a text with spaces up to a width: after it if ``left``, else before it. On a terminal,
    a text that is wider is shortened to the width, with an ellipsis in its middle."""
    if _width(text) > width and terminal_width() < sys.maxsize:
        from rich.cells import set_cell_size

        end = set_cell_size(text[::-1], width // 2)[::-1]
        return f"{set_cell_size(text, width - 1 - width // 2)}…{end}"
    pad = " " * (width - _width(text))
    return text + pad if left else pad + text


def _width(text: str) -> int:
    """Return the width of a text on a terminal, in columns of the terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def display(value: object) -> str:
    """Return the text that a table shows for a value. None is ``-``, a bool is ``yes`` or ``no``.
    An int has commas between thousands. The text of any other value is escaped by
    :func:`printable`."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first ``most`` names and the number of the others: ``a, b and 3 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def bar(value: int, largest: int) -> str:
    """Return a bar of block characters whose length is proportional to ``value``. For ``largest``
    it has 40 characters, or fewer on a narrow terminal. For 0 or less, return an empty text."""
    if value <= 0 or largest <= 0:
        return ""
    longest = min(_BAR, max(8, terminal_width() - _BAR))
    eighths = max(1, round(8 * longest * value / largest))
    full, rest = divmod(eighths, 8)
    return _EIGHTHS[8] * full + (_EIGHTHS[rest] if rest else "")


def printable(text: str) -> str:
    """Return ``text`` with control, format and other invisible characters escaped, such as
    ``\\x1b`` or ``\\u202e``. Backslashes are doubled: different texts never become equal."""
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


ShowProgress = Callable[[float | None, str], object]
"""The type of a function that updates a progress bar. Its arguments are the share of the work that
is done, from 0 to 1 (None while that is unknown), and a text that is shown beside the bar."""


@contextmanager
def progress_bar(doing: str) -> Iterator[ShowProgress]:
    """Show a progress bar on stderr inside the block, with the text ``doing`` before it. Yield the
    function that updates the bar. It takes the share that is done, from 0 to 1 or None if unknown,
    and a text to show beside the bar. If stderr is no terminal, nothing is shown."""
    if not sys.stderr.isatty():
        yield lambda share, text: None
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
        # Names of tables and files can look like markup of rich.
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    console = Console(stderr=True, markup=False)
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task(doing, total=None, text="")

        def show(share: float | None, text: str) -> None:
            total = None if share is None else 1.0
            display.update(task, total=total, completed=share or 0.0, text=text)

        yield show


@contextmanager
def progress_of_rows(doing: str) -> Iterator[Callable[[int, int], object]]:
    """Show a progress bar for work on the rows of a MySQL table, inside the block. Yield the
    function that updates the bar. It takes the number of rows that are done, and an estimate of the
    number of all rows."""
    with progress_bar(doing) as show:

        def rows_done(done: int, about: int) -> None:
            # "about" is the server's estimate: the work may be more, so never show 100 %
            share = min(done / max(about, 1), 0.99)
            show(share, f"{done:,} of about {plural(max(about, done), 'row')}")

        yield rows_done


def say(notice: str) -> None:
    """Write a notice on stderr, with control characters escaped, above a progress bar if any."""
    click.echo(f"countersink: {display(notice)}", err=True)


class StopRequest(Stop):
    """Tells a command whether SIGINT or SIGTERM has asked it to stop: ``stop()`` is True then."""

    status: int | None = None
    """The exit status of a command that the signal stops: 130 for SIGINT, 143 for SIGTERM. None as
    long as no signal has come."""

    def __call__(self) -> bool:
        """Return whether a signal has asked the process to stop."""
        return self.requested


@contextmanager
def stopped_by_signals() -> Iterator[StopRequest]:
    """Handle SIGINT and SIGTERM inside the block, and restore the handlers after it. Yield a
    :class:`StopRequest`: the first signal requests the stop, a second one raises SystemExit (128
    plus its number)."""
    stop = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop():
            sys.exit(128 + number)
        stop.status = Exit.INTERRUPTED if number == signal.SIGINT else Exit.TERMINATED
        stop.request()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

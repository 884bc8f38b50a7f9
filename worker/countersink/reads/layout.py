"""Answers as text: times in ISO 8601, rows as CSV."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Final

_AT_ONCE: Final = 1000
"""Rows that are written at once."""
_FORMULA: Final = tuple("=+-@\t\r\n")
_MARK: Final = "'"


def iso(moment: datetime | None) -> str | None:
    """ISO 8601 in UTC to the millisecond, ending in Z; None stays None."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """RFC 4180 with a header line, in parts of many rows each.

    Text is as :func:`for_spreadsheet` makes it.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    each = iter(rows)
    while some := list(islice(each, _AT_ONCE)):
        writer.writerows([_cell(row[column]) for column in columns] for row in some)
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def for_spreadsheet(text: str) -> str:
    """``text`` with ``'`` in front where a spreadsheet would take it for a formula (OWASP), and
    where there is one already: whoever takes one ``'`` off the front has the text again."""
    return f"{_MARK}{text}" if text.startswith((*_FORMULA, _MARK)) else text


def _cell(value: object) -> object:
    return for_spreadsheet(value) if isinstance(value, str) else value

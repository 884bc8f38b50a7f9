"""Rows of totals as CSV and as NDJSON, in parts, so that memory does not grow with them."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from countersink.reads.layout import csv_text
from countersink.reads.rows import Value, text

_AT_ONCE: Final = 1000
Rows = Iterable[tuple[Value, ...]]


def csv_bytes(columns: Sequence[str], rows: Rows) -> Iterator[bytes]:
    """RFC 4180 in UTF-8, as ``countersink totals --format csv``.

    Keys that are no UTF-8 go out as the bytes that they are; text that a spreadsheet would run as a
    formula gets a ``'`` in front.
    """
    for part in csv_text(columns, _documents(columns, rows)):
        yield part.encode("utf-8", "surrogateescape")


def ndjson_bytes(columns: Sequence[str], rows: Rows) -> Iterator[bytes]:
    """One JSON object a line, in ASCII, so that every key survives."""
    each = _documents(columns, rows)
    while some := list(islice(each, _AT_ONCE)):
        yield "".join(f"{json.dumps(row)}\n" for row in some).encode()


def _documents(columns: Sequence[str], rows: Rows) -> Iterator[dict[str, object]]:
    for row in rows:
        yield {column: text(value, column) for column, value in zip(columns, row, strict=True)}

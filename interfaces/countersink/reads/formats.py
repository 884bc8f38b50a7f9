"""How totals are written: CSV (safe for spreadsheets where asked for), NDJSON, Parquet, OpenMetrics
text with its metric names, and a counter as JSON; names of columns are in
``counting/totals/query.py``. Totals as a pandas DataFrame.

https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md: label values are
UTF-8 with backslash, quote and newline escaped; a counter's samples end in ``_total`` and are never
below zero; the text ends with ``# EOF``. No two samples have the same labels: a key that is no
UTF-8 looks like another one, and has its bytes in a label of its own.

A Prometheus counter cannot be negative, and one of ours can: a total below zero goes to a gauge
instead for as long as it is so.

::

    from countersink.reads.formats import frame
    from countersink.store import Store

    daily = frame(Store.from_env(), "page_views", by="day")
"""

import csv
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import pandas as pd

from countersink.counting.counters.breakdowns import Breakdown
from countersink.counting.counters.keep_steps import by_width
from countersink.counting.counters.settings import Counter
from countersink.counting.totals.answer import rows
from countersink.counting.totals.query import EXPORTED, Answer, Query, Row, documents, read_by
from countersink.counting.totals.selection import ANY, KeyMatch, Selection, selection_of
from countersink.counting.totals.snapshot import Snapshot
from countersink.database.sql import datetime_of
from countersink.reads.errors import TotalTooLarge
from countersink.runtime.texts import iso
from countersink.store import Store

_AT_ONCE: Final = 1000
"""Rows that are written at once."""
_PARQUET_GROUP: Final = 50_000
"""Rows of Parquet that are written, and kept in memory, at once."""
_FORMULA: Final = tuple("=+-@\t\r\n＝＋－＠")
_MARK: Final = "'"
CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
EVENTS: Final = "countersink_events"
BALANCE: Final = "countersink_balance"
COMPLETE: Final = "countersink_events_complete_up_to_timestamp_seconds"
Rows = Iterable[Row]


def csv_text(
    columns: Sequence[str], rows: Iterable[Mapping[str, object]], *, spreadsheet: bool = False
) -> Iterator[str]:
    """RFC 4180 with a header line, in parts of many rows each.

    Args:
        columns: of the rows, in order.
        rows: by column.
        spreadsheet: text is as :func:`for_spreadsheet` makes it; else as it is, for programs.
    """
    buffer = io.StringIO(newline="")
    # In quotes a semicolon ends no cell, where it is what divides them.
    writer = csv.writer(buffer, quoting=csv.QUOTE_NONNUMERIC if spreadsheet else csv.QUOTE_MINIMAL)
    writer.writerow(columns)
    each = iter(rows)
    if "estimate" in columns:  # as JSON has it, not as Python
        each = ({**row, "estimate": "true" if row["estimate"] else "false"} for row in each)
    while some := list(islice(each, _AT_ONCE)):
        cells = ([row[column] for column in columns] for row in some)
        writer.writerows([list(map(_cell, row)) for row in cells] if spreadsheet else cells)
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def for_spreadsheet(text: str) -> str:
    """``text`` with ``'`` in front where a spreadsheet would take it for a formula (OWASP), and
    where there is one already: whoever takes one ``'`` off the front has the text again."""
    return f"{_MARK}{text}" if text.startswith((*_FORMULA, _MARK)) else text


def _cell(value: object) -> object:
    return for_spreadsheet(value) if isinstance(value, str) else value


def csv_bytes(columns: Sequence[str], rows: Rows, *, spreadsheet: bool = False) -> Iterator[bytes]:
    """RFC 4180 in UTF-8, as ``countersink totals --format csv``.

    Keys that are no UTF-8 go out as the bytes that they are.

    Args:
        columns, rows: what is written.
        spreadsheet: text that a spreadsheet would run as a formula gets a ``'`` in front.
    """
    for part in csv_text(columns, documents(columns, rows), spreadsheet=spreadsheet):
        yield part.encode("utf-8", "surrogateescape")


def ndjson_bytes(columns: Sequence[str], rows: Rows) -> Iterator[bytes]:
    """One JSON object a line, in ASCII, so that every key survives."""
    each = documents(columns, rows)
    while some := list(islice(each, _AT_ONCE)):
        yield "".join(f"{json.dumps(row)}\n" for row in some).encode()


def parquet_writer() -> Callable[[BinaryIO, Sequence[str], Rows], int]:
    """Writes rows to a file as Parquet, and says how many they were.

    A month is the first of its days. An hour is an instant: its offset is not kept. In a key that
    is no UTF-8, each byte that is none becomes ``\\xff`` or the like. It raises TotalTooLarge for a
    total beyond 64 bits.

    Raises:
        ImportError: pyarrow is not there.
    """
    import pyarrow as pa  # noqa: PLC0415 (an optional dependency)
    import pyarrow.parquet  # noqa: PLC0415

    types = {
        "counter": pa.dictionary(pa.int32(), pa.string()),
        "day": pa.date32(),
        "month": pa.date32(),
        "hour": pa.timestamp("us", tz="UTC"),
        "minute": pa.timestamp("us", tz="UTC"),
        "key": pa.string(),
        "total": pa.int64(),
    }

    def type_of(name: str) -> Any:
        return types.get(name, types["key"])  # of a dimension

    def array(name: str, values: Iterable[Any]) -> Any:
        if name == "key" or name not in types:
            values = [
                key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
                for key in values
            ]
        elif name in ("hour", "minute"):
            values = [hour.astimezone(UTC) for hour in values]
        try:
            return pa.array(values, type=type_of(name))
        except OverflowError as error:
            raise TotalTooLarge(
                "a total is beyond 64 bits, which a Parquet file of countersink's does not hold:"
                " use --format csv or ndjson"
            ) from error

    def write(file: BinaryIO, columns: Sequence[str], rows: Rows) -> int:
        schema = pa.schema([pa.field(name, type_of(name), nullable=False) for name in columns])
        written, each = 0, iter(rows)
        with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            while group := list(islice(each, _PARQUET_GROUP)):
                values = zip(*group, strict=True)
                arrays = [array(name, column) for name, column in zip(columns, values, strict=True)]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                written += len(group)
        return written

    return write


@dataclass(frozen=True, slots=True)
class TotalSample:
    """A total: of a key of a counter, or, where that is None, of the whole counter."""

    counter: str
    key: str | None
    total: int


def openmetrics_text(samples: Iterable[TotalSample], complete_up_to: datetime | None) -> str:
    """The document; ``complete_up_to`` is a metric of its own, left out where it is not known."""
    above: list[TotalSample] = []
    below: list[TotalSample] = []
    for sample in samples:
        (below if sample.total < 0 else above).append(sample)
    return "".join(f"{line}\n" for line in _openmetrics_lines(above, below, complete_up_to))


def _openmetrics_lines(
    above: list[TotalSample], below: list[TotalSample], complete_up_to: datetime | None
) -> Iterator[str]:
    yield f"# TYPE {EVENTS} counter"
    yield f"# HELP {EVENTS} What was counted."
    for sample in above:
        yield f"{EVENTS}_total{_labels(sample)} {sample.total}"
    if below:
        yield f"# TYPE {BALANCE} gauge"
        yield f"# HELP {BALANCE} Totals below zero, which no Prometheus counter can be."
        for sample in below:
            yield f"{BALANCE}{_labels(sample)} {sample.total}"
    if complete_up_to is not None:
        yield f"# TYPE {COMPLETE} gauge"
        yield f"# UNIT {COMPLETE} seconds"
        yield f"# HELP {COMPLETE} What reached Redis before this time is in the totals."
        yield f"{COMPLETE} {complete_up_to.timestamp():.3f}"
    yield "# EOF"


def _labels(sample: TotalSample) -> str:
    labels = [("counter", sample.counter)]
    if sample.key is not None:
        # Prometheus takes UTF-8 alone: a byte of a key that is none is shown as \xff.
        raw = sample.key.encode("utf-8", "surrogateescape")
        shown = raw.decode("utf-8", "backslashreplace")
        labels.append(("key", shown))
        if shown != sample.key:
            labels.append(("key_bytes", raw.hex()))
    written = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{written}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def counter_document(counter: Counter) -> dict[str, object]:
    """A counter as JSON."""
    return {
        "counter": counter.name,
        "time_zone": counter.time_zone,
        "resolution": counter.resolution,
        "keep": by_width(counter.keep) or None,
        "max_keys": counter.max_keys,
        "most_keys": counter.most_keys,
        "overflown": counter.overflown,
        "app_slots": counter.app_slots,
        "rolled_up_to": {width: iso(end, "minutes") for width, end in counter.rolled_up_to.items()},
        "made": counter.made,
        "dimensions": list(counter.dimensions),
        "breakdowns": [
            {"dimensions": list(each.dimensions), "since": breakdown_begins(each)}
            for each in counter.breakdowns
        ],
        "salt_days": counter.salt_days,
    }


def breakdown_begins(breakdown: Breakdown) -> str | None:
    """The UTC time from which on a breakdown holds the events; None: it holds all."""
    if not breakdown.since:
        return None
    return iso(datetime_of(breakdown.since * 60), "minutes")


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name when the block has ended well; else it is gone, and
    what had the name before is as it was.

    What is no ordinary file, such as a pipe or /dev/stdout, is written to as it is.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    target = path.resolve()  # a link goes on pointing there
    number, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    part = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            os.fchmod(file.fileno(), _mode(target))
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _mode(target: Path) -> int:
    """The permissions of the file that is replaced, or those that a new one would get."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def frame(
    store: Store,
    counter: str | Sequence[str],
    *,
    by: str = "day",
    keys: Sequence[str] | None = None,
    start: date | None = None,
    end: date | None = None,
    time_zone: str | None = None,
    match: KeyMatch = ANY,
    where: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """The totals of one counter or of several, all of one snapshot; memory grows with them.

    Args:
        store: where the totals are.
        counter: a name, or names; of one counter there is no column ``counter``.
        by: ``day``, ``hour``, ``minute``, ``month``, ``key``, ``key-day``, ``key-month`` or
            ``total``, or dimensions, such as ``page,country``: the columns, as of ``countersink
            export``. Days and months (their first days) are ``datetime64``, hours and minutes are
            in UTC.
        keys: these keys only.
        match: or those that match.
        where: or events with these values of dimensions: ``{"country": "DE"}``.
        start, end: days, both inclusive. By day, hour and key-day a counter of which retention
            has rolled up days to months takes a ``start``, else it is a RolledUp error, whose
            ``rolled_up_to`` is the first that can be.
        time_zone: whose days, hours and months; default: each counter's own.

    Raises:
        UnknownCounter, InexactZone, RolledUp, IncompleteBreakdown, StoreError, ValueError: as
            :class:`countersink.counting.totals.Totals`.
    """
    layout, dimensions = read_by(by, EXPORTED)
    names = [counter] if isinstance(counter, str) else list(counter)
    found: list[tuple[object, ...]] = []
    columns = Query(Selection(), by=layout, dimensions=dimensions, streamed=True).columns
    with store.reading() as session:
        for name in names:
            wanted = selection_of(
                name,
                keys=keys,
                match=match,
                start=start,
                end=end,
                time_zone=time_zone,
                where=where,
            )
            query = Query(wanted, by=layout, dimensions=dimensions, strict=True, streamed=True)
            # One for each: what it remembers of a counter grows with its buckets.
            found += [(name, *row) for row in rows(Snapshot(session), query, Answer(columns))]
    made = pd.DataFrame.from_records(found, columns=list(columns))
    for column in ("day", "month"):
        if column in made:
            made[column] = pd.to_datetime(made[column])
    for column in ("hour", "minute"):
        if column in made:
            made[column] = pd.to_datetime(made[column], utc=True)
    return made.drop(columns="counter") if isinstance(counter, str) else made

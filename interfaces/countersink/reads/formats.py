"""Writers of totals in file formats: CSV (safe for spreadsheets on request), NDJSON, Parquet,
OpenMetrics text and pandas DataFrames; and a counter's settings as JSON. See
``counting/totals/query.py`` for columns.

OpenMetrics is specified in
https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md. Label values are
UTF-8 with backslash, quote and newline escaped. A counter's samples end in ``_total`` and are never
below zero. The text ends with ``# EOF``. No two samples may have the same labels. Two keys that are
not UTF-8 may be shown as the same text; the label ``key_bytes`` tells them apart.

A Prometheus counter cannot be negative, but our totals can: a gauge has the totals below zero.

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from countersink.counting.counters.breakdowns import Breakdown
from countersink.counting.counters.keep_steps import by_width
from countersink.counting.counters.settings import Counter
from countersink.counting.errors import TotalTooLarge
from countersink.counting.totals import selection_of
from countersink.counting.totals.answer import check_keys, rows
from countersink.counting.totals.query import EXPORTED, Answer, Query, Row, documents, read_by
from countersink.counting.totals.selection import ANY, KeyMatch, Selection
from countersink.counting.totals.snapshot import Snapshot
from countersink.database.sql import datetime_of
from countersink.runtime.texts import iso
from countersink.store import Store

if TYPE_CHECKING:
    import pandas as pd

_PART_ROWS: Final = 1000
"""Rows in one part of CSV or NDJSON text."""
_PARQUET_GROUP: Final = 50_000
"""Rows in one row group of Parquet. A group is kept in memory until it is written."""
_FORMULA: Final = tuple("=+-@\t\r\n＝＋－＠")
_TEXT_MARK: Final = "'"
CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
EVENTS: Final = "countersink_events"
BALANCE: Final = "countersink_balance"
COMPLETE: Final = "countersink_events_complete_up_to_timestamp_seconds"
Rows = Iterable[Row]


def csv_text(
    columns: Sequence[str], rows: Iterable[Mapping[str, object]], *, spreadsheet: bool = False
) -> Iterator[str]:
    """Yield a table as CSV (RFC 4180) with a header line, in parts of up to :data:`_PART_ROWS`
    rows.

    Args:
        columns: names of the columns, in order.
        rows: the values of each row, by column.
        spreadsheet: True quotes all texts, and passes those of rows through
            :func:`for_spreadsheet`; False, for programs, quotes only where CSV needs it, and leaves
            texts unchanged.
    """
    buffer = io.StringIO(newline="")
    # Quotes: a spreadsheet that separates cells by semicolons would split a text at one.
    writer = csv.writer(buffer, quoting=csv.QUOTE_NONNUMERIC if spreadsheet else csv.QUOTE_MINIMAL)
    writer.writerow(columns)
    remaining = iter(rows)
    if "estimate" in columns:  # as in JSON, not True and False
        remaining = (
            {**row, "estimate": "true" if row["estimate"] else "false"} for row in remaining
        )
    while part := list(islice(remaining, _PART_ROWS)):
        cells = ([row[column] for column in columns] for row in part)
        writer.writerows([list(map(_cell, row)) for row in cells] if spreadsheet else cells)
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def for_spreadsheet(text: str) -> str:
    """Return ``text`` with a ``'`` in front if a spreadsheet would run it as a formula (OWASP). A
    text that begins with ``'`` also gets a ``'`` in front. So a reader that removes one leading
    ``'`` from each text gets every text back."""
    return f"{_TEXT_MARK}{text}" if text.startswith((*_FORMULA, _TEXT_MARK)) else text


def _cell(value: object) -> object:
    return for_spreadsheet(value) if isinstance(value, str) else value


def csv_bytes(columns: Sequence[str], rows: Rows, *, spreadsheet: bool = False) -> Iterator[bytes]:
    """Yield a table as CSV (RFC 4180) in UTF-8, as ``countersink totals --format csv`` prints it.
    Keys that are not UTF-8 are written as their bytes.

    Args:
        columns: names of the columns, in order.
        rows: the values of each row, in the same order.
        spreadsheet: as for :func:`csv_text`.
    """
    for part in csv_text(columns, documents(columns, rows), spreadsheet=spreadsheet):
        yield part.encode("utf-8", "surrogateescape")


def ndjson_bytes(columns: Sequence[str], rows: Rows) -> Iterator[bytes]:
    """Yield a table as NDJSON, in parts of several lines: one JSON object per line, in ASCII. Bytes
    of a key that are not UTF-8 are written as escaped surrogates, so that the key is kept."""
    remaining = documents(columns, rows)
    while part := list(islice(remaining, _PART_ROWS)):
        yield "".join(f"{json.dumps(row)}\n" for row in part).encode()


def parquet_writer() -> Callable[[BinaryIO, Sequence[str], Rows], int]:
    """Return a function that writes rows to a file as Parquet and returns their number. Its
    arguments are the open file, the names of the columns, and the rows.

    A week or month is written as its first day, an hour or minute as its UTC time. A byte of a key
    or dimension that is not UTF-8 is written as ``\\xff``, with its value in place of ``ff``. The
    function raises TotalTooLarge for a total that does not fit into 64 bits.

    Raises:
        ImportError: pyarrow is not installed.
    """
    import pyarrow as pa  # noqa: PLC0415 (an optional dependency)
    import pyarrow.parquet  # noqa: PLC0415

    types = {
        "counter": pa.dictionary(pa.int32(), pa.string()),
        "day": pa.date32(),
        "week": pa.date32(),
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
                "a total exceeds 64 bits, and a Parquet column cannot hold it: use --format csv"
                " or ndjson"
            ) from error

    def write(file: BinaryIO, columns: Sequence[str], rows: Rows) -> int:
        schema = pa.schema([pa.field(name, type_of(name), nullable=False) for name in columns])
        written, remaining = 0, iter(rows)
        with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            while group := list(islice(remaining, _PARQUET_GROUP)):
                values = zip(*group, strict=True)
                arrays = [array(name, column) for name, column in zip(columns, values, strict=True)]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                written += len(group)
        return written

    return write


@dataclass(frozen=True, slots=True)
class TotalSample:
    """The total of a counter or of one of its keys; ``key`` is None for the counter's total."""

    counter: str
    key: str | None
    total: int


def openmetrics_text(samples: Iterable[TotalSample], complete_up_to: datetime | None) -> str:
    """Return the samples as OpenMetrics text. Totals below zero are in a metric of type gauge.
    Another gauge has ``complete_up_to`` in Unix seconds, the time before which everything that
    reached Redis is in the totals; with None there is no such gauge."""
    positive: list[TotalSample] = []
    negative: list[TotalSample] = []
    for sample in samples:
        (negative if sample.total < 0 else positive).append(sample)
    return "".join(f"{line}\n" for line in _openmetrics_lines(positive, negative, complete_up_to))


def _openmetrics_lines(
    positive: list[TotalSample], negative: list[TotalSample], complete_up_to: datetime | None
) -> Iterator[str]:
    yield f"# TYPE {EVENTS} counter"
    yield f"# HELP {EVENTS} Totals of counters or of their keys."
    for sample in positive:
        yield f"{EVENTS}_total{_labels(sample)} {sample.total}"
    if negative:
        yield f"# TYPE {BALANCE} gauge"
        yield f"# HELP {BALANCE} Totals below zero; a Prometheus counter cannot be negative."
        for sample in negative:
            yield f"{BALANCE}{_labels(sample)} {sample.total}"
    if complete_up_to is not None:
        yield f"# TYPE {COMPLETE} gauge"
        yield f"# UNIT {COMPLETE} seconds"
        yield f"# HELP {COMPLETE} Everything that reached Redis before this time is in the totals."
        yield f"{COMPLETE} {complete_up_to.timestamp():.3f}"
    yield "# EOF"


def _labels(sample: TotalSample) -> str:
    labels = [("counter", sample.counter)]
    if sample.key is not None:
        # Prometheus takes UTF-8 only: any other byte of a key is written as \xff, with its value.
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
    """Return the settings of a counter and its state (such as ``overflown`` and ``rolled_up_to``)
    as a dict for JSON, which HTTP and the command line show."""
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
        "better": counter.better,
    }


def breakdown_begins(breakdown: Breakdown) -> str | None:
    """Return the UTC time (ISO 8601) since which a breakdown counts its counter's events. Return
    None if it has all of the counter's events."""
    if not breakdown.since:
        return None
    return iso(datetime_of(breakdown.since * 60), "minutes")


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file, fsync it when the block ends, and replace the file at ``path`` by it (or
    create that file). If the block raises, the new file is deleted, and the old file stays. If
    ``path`` is a link, its target is replaced.

    If ``path`` exists and is not a regular file, such as a pipe or /dev/stdout, the block writes to
    it directly.

    Raises:
        OSError: the file cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    target = path.resolve()  # replaces a link's target, not the link
    try:
        number, name = tempfile.mkstemp(".part", f".{target.name}.", target.parent)
    except OSError as error:
        error.filename = str(path)  # and not that of the new file
        raise
    part = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            _set_permissions(file.fileno(), target)
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _set_permissions(file: int, target: Path) -> None:
    """Give an open file the permissions of the file that it replaces, and the owner if this process
    may do so. If there is no such file, it gets the default permissions of a new file."""
    if target.exists():
        before = target.stat()
        with suppress(PermissionError):
            os.fchown(file, before.st_uid, before.st_gid)
        os.fchmod(file, before.st_mode & 0o777)
        return
    mask = os.umask(0)
    os.umask(mask)
    os.fchmod(file, 0o666 & ~mask)


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
) -> "pd.DataFrame":
    """Return the totals of one or several counters from one snapshot, as a DataFrame in memory.

    Args:
        store: the store with the totals.
        counter: one name, or several; with one name there is no column ``counter``.
        by: the columns, as in ``countersink export``: ``day``, ``week``, ``hour``, ``minute``,
            ``month``, ``key``, ``key-day``, ``key-month`` or ``total``, or dimensions, such as
            ``page,country``. Days, weeks and months (their first days) are ``datetime64``, hours
            and minutes are in UTC.
        keys: the keys to include; None for all.
        match: selects keys, for example by prefix; ``keys`` are added to its exact keys.
        where: includes only events with these values of dimensions: ``{"country": "DE"}``; then
            give neither ``keys`` nor ``match``.
        start, end: first and last day, both inclusive; None for no limit. By minute, hour, day,
            week and key-day, a counter needs a ``start`` if retention has rolled up earlier ones to
            wider buckets. Without it, RolledUp is raised, and its attribute ``rolled_up_to`` is the
            first possible ``start``.
        time_zone: time zone of the days, weeks, hours and months; default: each counter's own.

    Raises:
        ImportError: pandas is not installed.
        UnknownCounter, UnknownDimension, InexactZone, RolledUp, IncompleteBreakdown, StoreError,
            ValueError: as :class:`countersink.counting.totals.Totals`.
    """
    try:
        import pandas as pd  # noqa: PLC0415 (no extra installs it)
    except ImportError as error:
        raise ImportError("frame() needs pandas: pip install pandas") from error

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
            # A snapshot for each counter: its caches grow with the counter's buckets.
            snapshot = Snapshot(session)
            check_keys(snapshot, wanted)
            found += [(name, *row) for row in rows(snapshot, query, Answer(columns))]
    made = pd.DataFrame.from_records(found, columns=list(columns))
    for column in ("day", "week", "month"):
        if column in made:
            made[column] = pd.to_datetime(made[column])
    for column in ("hour", "minute"):
        if column in made:
            made[column] = pd.to_datetime(made[column], utc=True)
    return made.drop(columns="counter") if isinstance(counter, str) else made

"""Rows of totals as a Parquet file; needs pyarrow, so only whoever writes one imports this."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet

from countersink.reads.rows import Value

_GROUP: Final = 50_000
"""Rows that are written, and kept in memory, at once."""

_TYPES: Final = {
    "counter": pa.dictionary(pa.int32(), pa.string()),
    "day": pa.date32(),
    "month": pa.date32(),
    "hour": pa.timestamp("us", tz="UTC"),
    "key": pa.string(),
    "total": pa.int64(),
}
"""A month is the first of its days. An hour is an instant: its offset is not kept."""


class TooBig(ValueError):
    """A total that 64 bits do not hold."""


def write(file: BinaryIO, columns: Sequence[str], rows: Iterable[tuple[Value, ...]]) -> int:
    r"""Write all rows, and return how many they were.

    In a key that is no UTF-8, each byte that is none becomes ``\xff`` or the like.

    Raises:
        TooBig: a total is beyond 64 bits.
        OSError: the file cannot be written.
    """
    schema = pa.schema([pa.field(name, _TYPES[name], nullable=False) for name in columns])
    written = 0
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(rows):
            values = zip(*group, strict=True)
            arrays = [_array(name, column) for name, column in zip(columns, values, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            written += len(group)
    return written


def _groups(rows: Iterable[tuple[Value, ...]]) -> Iterator[list[tuple[Value, ...]]]:
    each = iter(rows)
    while some := list(islice(each, _GROUP)):
        yield some


def _array(name: str, values: Iterable[Any]) -> Any:
    if name == "key":
        values = [
            key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            for key in values
        ]
    elif name == "hour":
        values = [_utc(hour) for hour in values]
    try:
        return pa.array(values, type=_TYPES[name])
    except OverflowError as error:
        raise TooBig(
            "a total is beyond 64 bits, which a Parquet file of countersink's does not hold: use"
            " --format csv or ndjson"
        ) from error


def _utc(hour: datetime) -> datetime:
    return hour.astimezone(UTC)

r"""How values of a tracked row become a key and a bucket, in Python and in SQL: separators, NULL as
a value, cut keys, the days of rows without a date, before 1970 or too late.

Each value is written as text in UTF-8, in it ``\`` becomes ``\\`` and ``|`` becomes ``\|``, NULL
becomes ``\N``, and the values are joined by ``|``. So every key means one list of values, and no
columns make the empty key. Keys are compared byte by byte: ``paid`` and ``PAID`` are two keys,
whatever the column's collation says. A key of more than 255 bytes is cut, as
:mod:`countersink.runtime.limits` does it.

The text of a value is what the column shows, without regard to any setting of a session: numbers
with all the decimals of their column and without leading zeros, dates as ``2026-11-21``, times as
``2026-11-21 08:00:00`` with the fraction digits of their column, ENUM and SET by their names,
BIT as a number, CHAR without the blanks at its end, BINARY and VARBINARY as hex digits in upper
case.

The bucket is the midnight of the row's own day: of a DATE or DATETIME the date as it is written, of
a TIMESTAMP its date in UTC, whatever the session's time zone. What has no day between 1970-01-01
and 9999-12-25, the days that a counter has, is on the day before or after all of them: NULL, a zero
date (in whole or in part) and dates before 1970 on 1969-12-31, later ones on 9999-12-26. A date
that the calendar does not have (2026-02-31, under ALLOW_INVALID_DATES) is that of so many days
later (2026-03-03). Without a day column all rows are on 1970-01-01.
"""

import re
from collections.abc import Sequence
from datetime import date
from typing import Final

from countersink.counting.counters.buckets import NUMBER
from countersink.database.sql import day_label, quoted
from countersink.row_counts.table import BINARY_TYPES, INTEGER_TYPES, TEXT_TYPES, Column, width
from countersink.runtime.limits import DIGEST_DIGITS, MAX_KEY_BYTES

NO_DAY: Final = date(1969, 12, 31)
"""The day of rows that have none, or one before 1970."""
LATE_DAY: Final = date(9999, 12, 26)
"""The day of rows that are later than any event can be."""
DAY: Final = NUMBER["day"]
"""The width of all buckets."""
ONLY_DAY: Final = date(1970, 1, 1)
"""The day of all rows where no column is the day."""
_YEAR_0: Final = 365
"""Days by which MySQL's day numbers, which begin with the year 0, are ahead of Python's."""
_FIRST: Final = ONLY_DAY.toordinal() + _YEAR_0
_NONE: Final = NO_DAY.toordinal() + _YEAR_0
_LATE: Final = LATE_DAY.toordinal() + _YEAR_0
_DAY_SECONDS: Final = 86_400
_BEGINNING: Final = MAX_KEY_BYTES - 1 - DIGEST_DIGITS
"""Bytes of a cut key's beginning, at most; up to 3 fewer where a character would be cut."""
_CUT: Final = re.compile(rb"(.{235,238})~[0-9a-f]{16}", re.DOTALL)
_BETWEEN: Final = ", X'7C', "
_PART: Final = re.compile(rb"\|((?:\\.|[^|])*)", re.DOTALL)
"""A value of a key that begins with a bar."""
_VALUE: Final = re.compile(rb"(?:[^\\]|\\[\\|])*|\\N", re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\([\\|]|\Z)")
"""An escaped byte; a backslash at the end of a cut key is the first half of one."""
_NULL: Final = b"\\N"
# A column of UCS-2 can hold half a surrogate pair, which MariaDB writes as the three bytes that
# Python calls surrogatepass.
_ERRORS: Final = "surrogatepass"


def encode(values: Sequence[str | None]) -> bytes:
    """The key of a row with these values, as text, before it is cut; None for NULL."""
    return b"|".join(
        _NULL
        if value is None
        else value.encode("utf-8", _ERRORS).replace(b"\\", b"\\\\").replace(b"|", b"\\|")
        for value in values
    )


def decode(key: bytes, columns: int) -> tuple[str | None, ...]:
    """The values of so many columns that make a key; :func:`encode` undoes it.

    Raises:
        ValueError: there are none; the row was not written by a trigger.
    """
    found = _PART.findall(b"|" + key) if key or columns else []
    try:
        if len(found) == columns and all(map(_VALUE.fullmatch, found)):
            return tuple(
                None if part == _NULL else _ESCAPE.sub(rb"\1", part).decode("utf-8", _ERRORS)
                for part in found
            )
    except UnicodeDecodeError:
        pass
    raise ValueError(f"{key!r} is no key of {columns} columns: no trigger has written it")


def key_sql(columns: Sequence[Column], prefix: str = "") -> str:
    """The key of a row as an SQL expression, of type binary and never NULL.

    The same in every session: literals are hex digits, so that neither its character set nor its
    ``sql_mode`` has a say.

    Args:
        columns: whose values.
        prefix: what stands before each column: ``NEW.``, ``OLD.`` or a table's name and a dot.
    """
    if not columns:
        return "X''"
    parts = [_part(column, f"{prefix}{quoted(column.name)}") for column in columns]
    key = parts[0] if len(parts) == 1 else f"CONCAT({_BETWEEN.join(parts)})"
    return _cut_sql(key) if width(columns) > MAX_KEY_BYTES else key


def cut_values(key: bytes) -> tuple[tuple[str | None, ...], str] | None:
    """Of a key that was cut: the values that are whole, and the beginning of the next one; None of
    a key that was not.
    """
    match = _CUT.fullmatch(key)
    if match is None:
        return None
    *whole, begun = _PART.findall(b"|" + match[1])
    try:
        values = decode(b"|".join(whole), len(whole))
    except ValueError:
        return None
    return values, _ESCAPE.sub(rb"\1", begun).decode("utf-8", "replace")


def bucket_sql(day: Column | None, prefix: str = "") -> str:
    """The bucket of a row as an SQL expression; as :func:`number_sql`."""
    return f"'{ONLY_DAY}'" if day is None else f"FROM_DAYS({number_sql(day, prefix)})"


def number_sql(day: Column | None, prefix: str = "") -> str:
    """MySQL's number of a row's day (as TO_DAYS counts) as an SQL expression, never NULL.

    Args:
        day: the column; None: there is none.
        prefix: what stands before it: ``NEW.``, ``OLD.`` or a table's name and a dot.
    """
    if day is None:
        return f"{_FIRST}"
    column = f"{prefix}{quoted(day.name)}"
    if day.type == "timestamp":
        # Not by way of a date, which would be that of the session's time zone. 0: a zero date.
        number = f"NULLIF(UNIX_TIMESTAMP({column}), 0) DIV {_DAY_SECONDS} + {_FIRST}"
    else:
        number = f"TO_DAYS({column})"
    return f"LEAST(GREATEST(COALESCE({number}, {_NONE}), {_NONE}), {_LATE})"


def label_of_number(number: int) -> int:
    """The bucket's label for a day's number."""
    return (number - _FIRST) * _DAY_SECONDS + DAY


def is_day(label: int) -> bool:
    """Whether a bucket of this label is one that a trigger writes."""
    return label % _DAY_SECONDS == DAY and day_label(NO_DAY) <= label <= day_label(LATE_DAY)


def _cut_sql(key: str) -> str:
    """An expression of type binary as :func:`countersink.runtime.limits.cut_bytes` has it."""
    fewer = "0"
    for place in range(_BEGINNING - 1, _BEGINNING + 2):  # the last one is looked at first
        fewer = f"IF(ORD(SUBSTRING({key}, {place}, 1)) & 192 = 128, 1 + {fewer}, 0)"
    digest = f"CAST(LEFT(SHA2({key}, 256), {DIGEST_DIGITS}) AS BINARY)"
    cut = f"CONCAT(LEFT({key}, {_BEGINNING} - {fewer}), X'7E', {digest})"
    return f"IF(LENGTH({key}) <= {MAX_KEY_BYTES}, {key}, {cut})"


def _part(column: Column, value: str) -> str:
    """A column's value, which may be NULL, as a part of a key, of type binary."""
    if column.type in BINARY_TYPES:
        value = f"HEX({value})"
    elif column.type in INTEGER_TYPES:
        value = f"{value} + 0"  # without the zeros of ZEROFILL; BIT becomes a number
    text = f"CAST(CONVERT({value} USING utf8mb4) AS BINARY)"
    if column.type in TEXT_TYPES:
        # Byte by byte: within a character of several bytes UTF-8 has neither of the two.
        text = f"REPLACE(REPLACE({text}, X'5C', X'5C5C'), X'7C', X'5C7C')"
    return f"COALESCE({text}, X'5C4E')"

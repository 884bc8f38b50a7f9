r"""How values of a tracked row become a key and a bucket, in Python and in SQL: separators, NULL as
a value, cut keys, the days of rows without a date, before 1970 or too late. The conditions of
``row_count(where=...)`` on single columns: which Python types a column's type takes, the errors for
others, and comparison by collation; unknown columns: ``row_count.py``.

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

Text is compared as the column's collation does, which may fold cases and blanks. Only the server
knows how: it is asked which of some values are equal to the one wanted, by the comparison that it
would make in the table itself.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

from countersink.counting.counters.buckets import NUMBER
from countersink.database.errors import BadData
from countersink.database.session import Session
from countersink.database.sql import EPOCH, day_label, parts, quoted
from countersink.row_counts.table import (
    BINARY_TYPES,
    INTEGER_TYPES,
    OWN_TEXT,
    TEXT_TYPES,
    Column,
    width,
)
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


_COMPARED: Final = 500
"""Values that the server is asked about at a time."""
_BYTEWISE: Final = re.compile(r".*_(nopad|0900)_bin")
"""Collations in which text is equal only to itself; other binary ones ignore blanks at the end."""


@dataclass(frozen=True, slots=True)
class Exactly:
    """The value has this text in the key, None for NULL, and no other."""

    text: str | None

    def meets(self, value: str | None) -> bool:
        """Whether a value of a key is what is asked for."""
        return value == self.text


@dataclass(frozen=True, slots=True)
class Alike:
    """The value is equal to a text in the character set and the collation of its column."""

    session: Session
    column: Column
    text: str
    _known: dict[str | None, bool] = field(default_factory=lambda: {None: False})

    def ask(self, values: Iterable[str | None]) -> None:
        """Find out which of these values the server takes for the text.

        Raises:
            StoreError: as any query.
        """
        unknown = [value for value in {*values} - self._known.keys() if value is not None]
        wanted = self._in_charset(self.text)
        # The character set may lack a character of the text: then no value is equal to it.
        exists = f"CAST(CONVERT({wanted} USING utf8mb4) AS BINARY) = X'{self.text.encode().hex()}'"
        alike = f" COLLATE {self.column.collation} = {wanted}"
        for some in parts(unknown, _COMPARED):
            columns = ", ".join(self._in_charset(value) + alike for value in some)
            ((whole, *answers),) = self.session.query(f"SELECT {exists}, {columns}")
            self._known.update(zip(some, [bool(whole and each) for each in answers], strict=True))

    def meets(self, value: str | None) -> bool:
        """Whether a value that was asked about is what is asked for."""
        return self._known[value]

    def _in_charset(self, text: str) -> str:
        in_hex = text.encode("utf-8", "surrogatepass").hex()
        return f"CONVERT(CONVERT(X'{in_hex}' USING utf8mb4) USING {self.column.charset})"


@dataclass(frozen=True, slots=True)
class Number:
    """The value is this number, however many zeros it is written with."""

    value: Decimal

    def meets(self, value: str | None) -> bool:
        """Whether a value of a key is what is asked for."""
        try:
            return value is not None and Decimal(value) == self.value
        except InvalidOperation:
            return False  # no trigger has written it


Condition = Exactly | Alike | Number | None
"""What is asked of a column; None: nothing."""


def condition(session: Session, column: Column, value: object) -> Condition:
    """What ``column = value`` asks of the keys. A value that the column cannot hold, such as a time
    finer than its own, is a text that no key has.

    Args:
        session: on the server that the table is on.
        column: one that the table is tracked by.
        value: an int or bool for integers, BIT and YEAR; an int or Decimal for DECIMAL; a date for
            DATE; a naive datetime for DATETIME; a timedelta or time for TIME; bytes for BINARY and
            VARBINARY; else a str.

    Raises:
        TypeError: not of such a type. ValueError: the column can hold no such value at all.
    """
    if column.charset is not None and isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{value!r} cannot be written as UTF-8") from error
        if _BYTEWISE.fullmatch(column.collation or ""):
            return Exactly(str.__str__(value))
        return Alike(session, column, value)
    if column.type in INTEGER_TYPES and isinstance(value, int):
        return Exactly(str(int(value)))
    if column.type == "year" and isinstance(value, int):
        # Of 1 to 99 the server makes 2001 to 2069, 1970 to 1999.
        century = 0 if not 1 <= value <= 99 else 2000 if value < 70 else 1900
        return Exactly(f"{century + value:04d}")
    if column.type == "decimal" and isinstance(value, int | Decimal):
        return Number(Decimal(value))
    if column.type in BINARY_TYPES and isinstance(value, bytes | bytearray):
        return Exactly(value.hex().upper())
    if column.type == "date" and isinstance(value, date) and not isinstance(value, datetime):
        return Exactly(str(value))
    if column.type == "datetime" and isinstance(value, date):
        return _moment(column, value)
    if column.type == "time" and isinstance(value, time | timedelta):
        return _time(column, value)
    if column.type in OWN_TEXT and isinstance(value, str):
        return _own_text(session, column, value)
    raise TypeError(
        f"column {column.name} is of type {column.type.upper()}, which is not compared with a value"
        f" of type {type(value).__name__}"
    )


def _moment(column: Column, value: date) -> Condition:
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    if moment.tzinfo is not None:
        raise ValueError(
            f"column {column.name} is a DATETIME, which has no time zone: give a naive datetime"
        )
    return _with_fraction(column, str(moment.replace(microsecond=0)), moment.microsecond)


def _time(column: Column, value: time | timedelta) -> Condition:
    if isinstance(value, time):
        value = datetime.combine(EPOCH, value.replace(tzinfo=None)) - EPOCH
    sign = "-" if value < timedelta() else ""
    seconds, microseconds = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
    minutes, second = divmod(seconds, 60)
    text = f"{sign}{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"
    return _with_fraction(column, text, microseconds)


def _with_fraction(column: Column, text: str, microseconds: int) -> Condition:
    digits = f"{microseconds:06d}"
    shown = digits[: column.fraction] + digits[column.fraction :].rstrip("0")
    return Exactly(f"{text}.{shown}" if shown else text)


def _own_text(session: Session, column: Column, value: str) -> Condition:
    try:
        ((text,),) = session.query(
            f"SELECT CONVERT(CAST(%s AS {column.type.upper()}) USING utf8mb4)", (value,)
        )
    except BadData:
        text = None
    if text is None:
        raise ValueError(f"{value!r} is no {column.type.upper()}, as column {column.name} holds")
    return Exactly(str(text))

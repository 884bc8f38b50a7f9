r"""The key and the bucket of a row of a tracked table, in Python and in SQL; and the conditions of
``row_count(where=...)`` on the columns of a key.

The key has the values of the columns as UTF-8 texts, joined by ``|``. Within a value ``\`` is
written as ``\\`` and ``|`` as ``\|``; NULL is written as ``\N``. So every key means exactly one
list of values. If there are no columns, the key is empty. Keys are compared byte by byte: ``paid``
and ``PAID`` are two keys, whatever the collation. A key of more than 255 bytes is cut as in
:mod:`countersink.runtime.limits`.

The text of a value depends on the column only, not on the session:

* A number has all decimals of its column, and no leading zeros. A BIT is a number, too.
* A date has the form ``2026-11-21``, and a time ``2026-11-21 08:00:00``, with the fraction digits
  of its column.
* A value of an ENUM or SET has its name.
* A CHAR has no trailing spaces.
* A BINARY or VARBINARY has hex digits in upper case.

The bucket is the midnight of the row's day. The day is the date of a DATE or DATETIME, or the date
in UTC of a TIMESTAMP. Days from 1970-01-01 to 9999-12-25 are counted unchanged. NULL, a zero date
(in whole or in part) and any date before 1970 count as 1969-12-31; later dates count as 9999-12-26.
ALLOW_INVALID_DATES permits a date that the calendar does not have, such as 2026-02-31; it counts as
the date that is so many days later (2026-03-03). If the table has no day column, all rows count as
1970-01-01.

A condition compares texts by the column's collation, which may ignore case and trailing spaces.
Only the server knows how, so it is asked which values of the keys are equal to the given value.
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
    NORMALIZED_TYPES,
    TEXT_TYPES,
    Column,
    width,
)
from countersink.runtime.limits import DIGEST_DIGITS, MAX_KEY_BYTES

NO_DAY: Final = date(1969, 12, 31)
"""The day that stands for no day, and for all days before 1970."""
LATE_DAY: Final = date(9999, 12, 26)
"""The day that stands for all later days. No event can be as late."""
DAY: Final = NUMBER["day"]
"""The number of the width ``day``, which all buckets of tracked tables have."""
ONLY_DAY: Final = date(1970, 1, 1)
"""The day of all rows of a table that has no day column."""
_YEAR_0: Final = 365
"""MySQL's number of a day minus Python's ordinal of it. MySQL's numbers begin with the year 0."""
_FIRST: Final = ONLY_DAY.toordinal() + _YEAR_0
_NONE: Final = NO_DAY.toordinal() + _YEAR_0
_LATE: Final = LATE_DAY.toordinal() + _YEAR_0
_DAY_SECONDS: Final = 86_400
_BEGINNING: Final = MAX_KEY_BYTES - 1 - DIGEST_DIGITS
"""Most bytes of a cut key that come before its digest. There may be up to 3 fewer, so that no
character is cut in two."""
_CUT: Final = re.compile(rb"(.{235,238})~[0-9a-f]{16}", re.DOTALL)
_BETWEEN: Final = ", X'7C', "
_PART: Final = re.compile(rb"\|((?:\\.|[^|])*)", re.DOTALL)
"""Matches a bar and the value of a key that follows it."""
_VALUE: Final = re.compile(rb"(?:[^\\]|\\[\\|])*|\\N", re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\([\\|]|\Z)")
"""Matches an escaped byte; or a backslash at the end of a cut key, whose escaped byte was cut
off."""
_NULL: Final = b"\\N"
# A column of UCS-2 can have half a surrogate pair, for which MariaDB writes the three bytes of
# Python's surrogatepass.
_ERRORS: Final = "surrogatepass"


def encode(values: Sequence[str | None]) -> bytes:
    """Return the key of these values, without cutting it. The value None stands for NULL."""
    return b"|".join(
        _NULL
        if value is None
        else value.encode("utf-8", _ERRORS).replace(b"\\", b"\\\\").replace(b"|", b"\\|")
        for value in values
    )


def decode(key: bytes, columns: int) -> tuple[str | None, ...]:
    """Return the values of a key that has ``columns`` columns and was not cut. This reverses
    :func:`encode`.

    Raises:
        ValueError: ``key`` is not a key of so many columns, so no trigger has written it.
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
    """Return an SQL expression for the key of a row, cut if it has more than 255 bytes. Its type is
    binary, and its value is never NULL. It does not depend on the session's character set or
    ``sql_mode``, because its literals are hex digits.

    Args:
        columns: the columns of the key.
        prefix: SQL that precedes each column: ``NEW.``, ``OLD.``, or a table's name and a dot.
    """
    if not columns:
        return "X''"
    parts = [_part(column, f"{prefix}{quoted(column.name)}") for column in columns]
    key = parts[0] if len(parts) == 1 else f"CONCAT({_BETWEEN.join(parts)})"
    return _cut_sql(key) if width(columns) > MAX_KEY_BYTES else key


def cut_values(key: bytes) -> tuple[tuple[str | None, ...], str] | None:
    """Return the values of a cut key that are complete, and the beginning of its next value, which
    was cut. Return None if the key was not cut, or if no trigger can have written it. A key counts
    as cut if it has 252 to 255 bytes and ends with ``~`` and 16 hex digits.
    """
    match = _CUT.fullmatch(key)
    if match is None:
        return None
    *complete, beginning = _PART.findall(b"|" + match[1])
    try:
        values = decode(b"|".join(complete), len(complete))
    except ValueError:
        return None
    return values, _ESCAPE.sub(rb"\1", beginning).decode("utf-8", "replace")


def bucket_sql(day: Column | None, prefix: str = "") -> str:
    """Return an SQL expression for the beginning of a row's bucket: a date, for the column
    ``bucket``. For ``day``, the day column, and for ``prefix`` see :func:`number_sql`.
    """
    return f"'{ONLY_DAY}'" if day is None else f"FROM_DAYS({number_sql(day, prefix)})"


def number_sql(day: Column | None, prefix: str = "") -> str:
    """Return an SQL expression for the number of a row's day, as TO_DAYS() counts days. It is never
    NULL: for NULL, a zero date or a day before 1970 it is the number of 1969-12-31. For a day
    after 9999-12-26 it is that of 9999-12-26.

    Args:
        day: the day column; None if there is none, so that each row has the day 1970-01-01.
        prefix: SQL that precedes the column: ``NEW.``, ``OLD.``, or a table's name and a dot.
    """
    if day is None:
        return f"{_FIRST}"
    column = f"{prefix}{quoted(day.name)}"
    if day.type == "timestamp":
        # From Unix seconds, as its date would be in the session's time zone. 0: a zero date.
        number = f"NULLIF(UNIX_TIMESTAMP({column}), 0) DIV {_DAY_SECONDS} + {_FIRST}"
    else:
        number = f"TO_DAYS({column})"
    return f"LEAST(GREATEST(COALESCE({number}, {_NONE}), {_NONE}), {_LATE})"


def label_of_number(number: int) -> int:
    """Return the label of the bucket of a day, from the day's number (see :func:`number_sql`)."""
    return (number - _FIRST) * _DAY_SECONDS + DAY


def is_day(label: int) -> bool:
    """Return whether triggers can write a bucket that has this label: a whole day, from 1969-12-31
    to 9999-12-26.
    """
    return label % _DAY_SECONDS == DAY and day_label(NO_DAY) <= label <= day_label(LATE_DAY)


def _cut_sql(key: str) -> str:
    """Return an SQL expression for a binary key, cut if it has more than 255 bytes: its beginning,
    ``~`` and a digest, as by :func:`countersink.runtime.limits.cut_bytes`.

    Args:
        key: SQL for the key.
    """
    fewer = "0"
    for place in range(_BEGINNING - 1, _BEGINNING + 2):  # the SQL tests the last place first
        fewer = f"IF(ORD(SUBSTRING({key}, {place}, 1)) & 192 = 128, 1 + {fewer}, 0)"
    digest = f"CAST(LEFT(SHA2({key}, 256), {DIGEST_DIGITS}) AS BINARY)"
    cut = f"CONCAT(LEFT({key}, {_BEGINNING} - {fewer}), X'7E', {digest})"
    return f"IF(LENGTH({key}) <= {MAX_KEY_BYTES}, {key}, {cut})"


def _part(column: Column, value: str) -> str:
    """Return an SQL expression for a column's value as a part of a key. Its type is binary.

    Args:
        column: the column.
        value: SQL for the value, which may be NULL.
    """
    if column.type in BINARY_TYPES:
        value = f"HEX({value})"
    elif column.type in INTEGER_TYPES:
        value = f"{value} + 0"  # without the zeros of ZEROFILL; BIT becomes a number
    text = f"CAST(CONVERT({value} USING utf8mb4) AS BINARY)"
    if column.type in TEXT_TYPES:
        # On bytes: no character of several bytes has one of these two bytes in UTF-8.
        text = f"REPLACE(REPLACE({text}, X'5C', X'5C5C'), X'7C', X'5C7C')"
    return f"COALESCE({text}, X'5C4E')"


_COMPARED: Final = 500
"""Number of values that one query compares with a text."""
_BYTEWISE: Final = re.compile(r".*_(nopad|0900)_bin")
"""Matches collations in which a text is equal only to itself. Other binary collations ignore
trailing spaces."""

_LONGEST_EXPANSION: Final = 18
"""Most characters that are equal to one character: those of U+FDFA. One of ASCII is equal to at
most 2, as in Hungarian."""


@dataclass(frozen=True, slots=True)
class Exactly:
    """The condition that a value has exactly this text in the key.

    Attributes:
        text: the text; None if the value must be NULL.
    """

    text: str | None

    def matches(self, value: str | None) -> bool:
        """Return whether a value of a key meets the condition."""
        return value == self.text


@dataclass(frozen=True, slots=True)
class Alike:
    """The condition that a value is equal to a text, by the character set and collation of its
    column.

    Attributes:
        session: a session on the server, which compares the values.
        column: the column.
        text: the text.
    """

    session: Session
    column: Column
    text: str
    _known: dict[str | None, bool] = field(default_factory=lambda: {None: False})
    _ignored: dict[str | None, bool] = field(default_factory=lambda: {None: False})

    def compare(self, values: Iterable[str | None]) -> None:
        """Ask the server which of these values are equal to the text. Keep the answers for
        :meth:`matches`.

        Raises:
            StoreError: a query failed.
        """
        unknown = [value for value in {*values} - self._known.keys() if value is not None]
        wanted = self._in_charset(self.text)
        # Where the character set lacks a character of the text, no value is equal to it.
        exists = f"CAST(CONVERT({wanted} USING utf8mb4) AS BINARY) = X'{self.text.encode().hex()}'"
        alike = f" COLLATE {self.column.collation} = {wanted}"
        for part in parts(unknown, _COMPARED):
            columns = ", ".join(self._in_charset(value) + alike for value in part)
            ((valid, *answers),) = self.session.query(f"SELECT {exists}, {columns}")
            self._known.update(zip(part, [bool(valid and each) for each in answers], strict=True))

    def matches(self, value: str | None) -> bool:
        """Return whether a value of a key meets the condition; None does not. :meth:`compare` must
        have been called with any other value before.
        """
        return self._known[value]

    def may_begin(self, beginning: str) -> bool:
        """Return False if no text that begins with ``beginning`` is equal to the text; True if one
        is, or if this is unknown.

        Characters that are equal to nothing, such as combining marks and spaces at the end, can
        occur any number of times. Each other character is needed for the text.
        """
        empty = Alike(self.session, self.column, "", self._ignored)
        empty.compare(beginning)
        needed = sum(not empty.matches(character) for character in beginning)
        return needed <= sum(2 if each.isascii() else _LONGEST_EXPANSION for each in self.text)

    def _in_charset(self, text: str) -> str:
        in_hex = text.encode("utf-8", "surrogatepass").hex()
        return f"CONVERT(CONVERT(X'{in_hex}' USING utf8mb4) USING {self.column.charset})"


@dataclass(frozen=True, slots=True)
class Number:
    """The condition that a value is equal to this number: ``1.50`` is equal to 1.5."""

    value: Decimal

    def matches(self, value: str | None) -> bool:
        """Return whether a value of a key meets the condition."""
        try:
            return value is not None and Decimal(value) == self.value
        except InvalidOperation:
            return False  # no trigger has written it


Condition = Exactly | Alike | Number | None
"""A condition on a column of the key; None if any value will do."""


def condition(session: Session, column: Column, value: object) -> Condition:
    """Return the condition for ``column = value``. If the column cannot contain the value, such as
    a time with more fraction digits than the column has, the condition is never met.

    Args:
        session: a session on the table's server.
        column: a column of the key.
        value: an int or bool for integers, BIT and YEAR; an int or Decimal for DECIMAL; a date for
            DATE; a naive datetime for DATETIME (a date means its midnight); a timedelta or time for
            TIME; bytes for BINARY and VARBINARY; a str for texts, ENUM, SET, UUID and INET. Not
            None: for NULL the caller uses :class:`Exactly`.

    Raises:
        TypeError: the value has another type, or the column has a type not named above.
        ValueError: the value is invalid for the column's type.
        StoreError: a query failed.
    """
    if column.charset is not None and isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{value!r} cannot be encoded as UTF-8") from error
        if _BYTEWISE.fullmatch(column.collation or ""):
            return Exactly(str.__str__(value))
        return Alike(session, column, value)
    if column.type in INTEGER_TYPES and isinstance(value, int):
        return Exactly(str(int(value)))
    if column.type == "year" and isinstance(value, int):
        # The server reads 1 to 69 as 2001 to 2069, and 70 to 99 as 1970 to 1999.
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
    if column.type in NORMALIZED_TYPES and isinstance(value, str):
        return _normalized(session, column, value)
    raise TypeError(
        f"column {column.name} is of type {column.type.upper()}, which cannot be compared with a"
        f" value of type {type(value).__name__}"
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


def _normalized(session: Session, column: Column, value: str) -> Condition:
    try:
        ((text,),) = session.query(
            f"SELECT CONVERT(CAST(%s AS {column.type.upper()}) USING utf8mb4)", (value,)
        )
    except BadData:
        text = None
    if text is None:
        raise ValueError(f"{value!r} is no {column.type.upper()}, the type of column {column.name}")
    return Exactly(str(text))

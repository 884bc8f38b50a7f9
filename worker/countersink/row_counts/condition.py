"""The conditions of ``row_count(where=...)`` on single columns: which Python types a column's type
takes, the errors for others, and comparison by collation; unknown columns: ``row_count.py``.

Text is compared as the column's collation does, which may fold cases and blanks. Only the server
knows how: it is asked which of some values are equal to the one wanted, by the comparison that it
would make in the table itself.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

from countersink.database.errors import BadData
from countersink.database.session import Session
from countersink.database.sql import EPOCH, parts
from countersink.row_counts.table import BINARY_TYPES, INTEGER_TYPES, OWN_TEXT, Column

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

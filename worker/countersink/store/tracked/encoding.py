r"""Keys of tracked tables: the values of some columns as one key, and back.

Each value is written as text in UTF-8, in it ``\`` becomes ``\\`` and ``|`` becomes ``\|``, NULL
becomes ``\N``, and the values are joined by ``|``. So every key means one list of values, and no
columns make the empty key. Keys are compared byte by byte: ``paid`` and ``PAID`` are two keys,
whatever the column's collation says.

The text of a value is what the column shows, without regard to any setting of a session: numbers
with all the decimals of their column and without leading zeros, dates as ``2026-11-21``, times as
``2026-11-21 08:00:00`` with the fraction digits of their column, ENUM and SET by their names,
BIT as a number, CHAR without the blanks at its end, BINARY and VARBINARY as hex digits in upper
case.
"""

from collections.abc import Sequence
from typing import Final

from countersink.store.names import quoted
from countersink.store.tracked.columns import BINARY_TYPES, INTEGER_TYPES, Column

MAX_KEY_BYTES: Final = 255
"""Bytes that a key can have, as the column ``counter_key`` is wide."""

_BETWEEN: Final = ", X'7C', "
_NULL: Final = b"\\N"
_BACKSLASH: Final = ord("\\")
_BAR: Final = ord("|")
# A column of UCS-2 can hold half a surrogate pair, which MariaDB writes as the three bytes that
# Python calls surrogatepass.
_ERRORS: Final = "surrogatepass"


def encode(values: Sequence[str | None]) -> bytes:
    """The key of a row with these values, as text; None for NULL.

    Raises:
        TypeError: a value is no text.
    """
    parts = []
    for value in values:
        if value is None:
            parts.append(_NULL)
        elif isinstance(value, str):
            text = value.encode("utf-8", _ERRORS)
            parts.append(text.replace(b"\\", b"\\\\").replace(b"|", b"\\|"))
        else:
            raise TypeError(f"a value is a str or None, not {type(value).__name__}")
    return b"|".join(parts)


def decode(key: bytes, columns: int) -> tuple[str | None, ...]:
    """The values of so many columns that make a key; :func:`encode` undoes it.

    Raises:
        ValueError: there are none; the row was not written by a trigger.
    """
    values: list[str | None] = []
    for part in _split(key) if columns else [key]:
        if part == _NULL:
            values.append(None)
            continue
        plain = bytearray()
        rest = iter(part)
        for byte in rest:
            if byte == _BACKSLASH:
                byte = next(rest, 0)
                if byte not in (_BACKSLASH, _BAR):
                    raise _no_key(key, columns)
            plain.append(byte)
        try:
            values.append(plain.decode("utf-8", _ERRORS))
        except UnicodeDecodeError:
            raise _no_key(key, columns) from None
    if not columns and not key:
        return ()
    if len(values) != columns:
        raise _no_key(key, columns)
    return tuple(values)


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
    return parts[0] if len(parts) == 1 else f"CONCAT({_BETWEEN.join(parts)})"


def text_sql(column: Column, reference: str) -> str:
    """A column's value as text, of type binary; NULL for NULL.

    Args:
        column: what the column is.
        reference: the column as SQL, quoted.
    """
    value = reference
    if column.type in BINARY_TYPES:
        value = f"HEX({value})"
    elif column.type in INTEGER_TYPES:
        # Without the zeros of ZEROFILL; BIT becomes a number.
        value = f"CAST({value} AS {'UNSIGNED' if column.unsigned else 'SIGNED'})"
    return f"CAST(CONVERT({value} USING utf8mb4) AS BINARY)"


def _part(column: Column, reference: str) -> str:
    text = text_sql(column, reference)
    if column.has_text:
        # Byte by byte: within a character of several bytes UTF-8 has neither of the two.
        text = f"REPLACE(REPLACE({text}, X'5C', X'5C5C'), X'7C', X'5C7C')"
    return f"COALESCE({text}, X'5C4E')"


def _split(key: bytes) -> list[bytes]:
    """The parts between those ``|`` that no backslash precedes."""
    parts = [bytearray()]
    escaped = False
    for byte in key:
        if byte == _BAR and not escaped:
            parts.append(bytearray())
            continue
        escaped = byte == _BACKSLASH and not escaped
        parts[-1].append(byte)
    return [bytes(part) for part in parts]


def _no_key(key: bytes, columns: int) -> ValueError:
    return ValueError(f"{key!r} is no key of {columns} columns: no trigger has written it")

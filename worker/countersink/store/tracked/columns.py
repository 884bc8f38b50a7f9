"""What the columns of a table are, as far as tracking goes, and which of them can be counted by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from countersink.store.connection import Session

INTEGER_TYPES: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "bit"})
BINARY_TYPES: Final = frozenset({"binary", "varbinary"})
TEXT_TYPES: Final = frozenset(
    {"char", "varchar", "enum", "set", "tinytext", "text", "mediumtext", "longtext"}
)
DAY_TYPES: Final = frozenset({"date", "datetime", "timestamp"})
OWN_TEXT: Final = frozenset({"uuid", "inet4", "inet6"})
"""Types of MariaDB whose values can be written in several ways."""

_WIDTHS: Final = {
    "tinyint": 4,
    "smallint": 6,
    "mediumint": 8,
    "int": 11,
    "bigint": 20,
    "bit": 20,
    "date": 10,
    "datetime": 19,
    "time": 10,
    "year": 4,
    "uuid": 36,
    "inet4": 15,
    "inet6": 45,
}
"""Characters of the longest value, without a fraction; all of them ASCII."""
_CHARACTER_BYTES: Final = {
    "ascii": 2,  # one byte; but a backslash or a bar is written with another one before it
    "utf8mb4": 4,
    "utf16": 4,
    "utf16le": 4,
    "utf32": 4,
    "gb18030": 4,
}
"""Bytes of UTF-8 that a character takes at most in a key."""
_OTHER_CHARACTER_BYTES: Final = 3
_NULL_BYTES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column.

    Attributes:
        name: as it was created.
        type: such as ``varchar``, in lower case.
        unsigned: whether an integer has no sign.
        nullable: whether it can be NULL.
        length: characters of a text, or bytes of a binary value, at most.
        digits: of a number.
        fraction: digits of a time's fraction of a second.
        charset: of a text; None for what is none.
        collation: of a text; None for what is none.
    """

    name: str
    type: str
    unsigned: bool
    nullable: bool
    length: int
    digits: int
    fraction: int
    charset: str | None
    collation: str | None

    @property
    def has_text(self) -> bool:
        """Whether its values can hold any character."""
        return self.type in TEXT_TYPES


def read(session: Session, schema: str, table: str) -> dict[str, Column]:
    """The columns of a table by name, in their order; none where there is no such table."""
    rows = session.query(
        "SELECT column_name, data_type, column_type, is_nullable, character_maximum_length,"
        " numeric_precision, datetime_precision, character_set_name, collation_name"
        " FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
        " ORDER BY ordinal_position",
        (schema, table),
    )
    return {
        name: Column(
            name=name,
            type=_text(type_).lower(),
            unsigned="unsigned" in _text(full).lower() or _text(type_).lower() == "bit",
            nullable=nullable == "YES",
            length=int(length or 0),
            digits=int(digits or 0),
            fraction=int(fraction or 0),
            charset=charset,
            collation=collation,
        )
        for name, type_, full, nullable, length, digits, fraction, charset, collation in rows
    }


def widest(column: Column) -> int:
    """Bytes that the column's longest value takes in a key.

    Raises:
        ValueError: it is of a type that cannot be counted by; says what can be done.
    """
    if column.type in TEXT_TYPES:
        each = _CHARACTER_BYTES.get(column.charset or "", _OTHER_CHARACTER_BYTES)
        width = column.length * each
    elif column.type in BINARY_TYPES:
        width = 2 * column.length
    elif column.type == "decimal":
        width = column.digits + 3  # the sign, the point, and a 0 before it
    elif column.type in _WIDTHS:
        width = _WIDTHS[column.type] + (1 + column.fraction if column.fraction else 0)
    elif column.type == "timestamp":
        raise ValueError(
            f"column {column.name} is a TIMESTAMP, whose text is another one in each time zone:"
            " take it as the day, or count by a DATETIME column"
        )
    else:
        raise ValueError(
            f"column {column.name} is of type {column.type.upper()}, which has no exact text to"
            f" count by: {_GENERATED}"
        )
    return max(width, _NULL_BYTES if column.nullable else 0)


def require_width(columns: Sequence[Column], most: int) -> None:
    """Check that the key of these columns always fits ``most`` bytes.

    Raises:
        ValueError: it may not, or a column cannot be counted by; says what can be done.
    """
    widths = {column.name: widest(column) for column in columns}
    total = sum(widths.values()) + max(0, len(columns) - 1)
    if total <= most:
        return
    said = ", ".join(f"{name} up to {width:,}" for name, width in widths.items())
    raise ValueError(
        f"the values may not fit a key of {most} bytes ({said} bytes of UTF-8), and then the"
        f" application could not write its row: count by fewer or narrower columns; {_GENERATED}"
    )


_GENERATED: Final = (
    "a generated column can hold what is to be counted by, as in"
    " ALTER TABLE … ADD COLUMN status_group VARCHAR(20) AS (LEFT(status, 20))"
)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

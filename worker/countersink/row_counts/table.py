"""Which tables and columns can be tracked at all, checked by track, repair and verify alike: types
of columns, width of keys (``MAX_WIDTH``), and the refusals with their reasons; what ``track`` alone
refuses: ``tracked/lifecycle.py``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from countersink.database.migrate import migrations
from countersink.database.session import Session

INTEGER_TYPES: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "bit"})
BINARY_TYPES: Final = frozenset({"binary", "varbinary"})
TEXT_TYPES: Final = frozenset(
    {"char", "varchar", "enum", "set", "tinytext", "text", "mediumtext", "longtext"}
)
DAY_TYPES: Final = frozenset({"date", "datetime", "timestamp"})
OWN_TEXT: Final = frozenset({"uuid", "inet4", "inet6"})
"""Types of MariaDB whose values can be written in several ways."""
_ORDERED_TYPES: Final = (INTEGER_TYPES - {"bit"}) | BINARY_TYPES | DAY_TYPES | OWN_TEXT
_ORDERED_CHARSETS: Final = frozenset({"ascii", "latin1", "utf8", "utf8mb3", "utf8mb4"})
_SHORT_TYPES: Final = frozenset({"date", "datetime", "time", "year"}) | OWN_TEXT
_SHORT_BYTES: Final = 45
"""Bytes of the longest value of these types, an INET6."""
_CHARACTER_BYTES: Final = {
    "ascii": 2,  # one byte; but a backslash or a bar is written with another one before it
    **dict.fromkeys(("utf8mb4", "utf16", "utf16le", "utf32", "gb18030"), 4),
}
"""Bytes of UTF-8 that a character takes at most in a key; of other character sets three."""
_NULL_BYTES: Final = 2
MAX_WIDTH: Final = 131_072
"""Bytes that the values of a row may take: any VARCHAR can be counted by, no TEXT."""
_SYSTEM: Final = frozenset({"mysql", "sys", "performance_schema", "information_schema"})
_VERSION_TABLE: Final = "schema_version"
_GENERATED: Final = (
    "a generated column can hold what is to be counted by, as in"
    " ALTER TABLE … ADD COLUMN status_group VARCHAR(20) AS (LEFT(status, 20))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of an application's table.

    Attributes:
        name: as it was created.
        type: such as ``varchar``, in lower case.
        length: characters of a text, or bytes of a binary value, at most.
        digits: of a number.
        fraction: digits of a time's fraction of a second.
        charset: of a text; None for what is none.
        collation: of a text; None for what is none.
    """

    name: str
    type: str
    length: int
    digits: int
    fraction: int
    charset: str | None
    collation: str | None

    @property
    def finds_its_place(self) -> bool:
        """Whether a value that was read, bound again, is in the same place of an index."""
        if self.type in TEXT_TYPES:
            return self.type in ("char", "varchar") and self.charset in _ORDERED_CHARSETS
        return self.type in _ORDERED_TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class AppTable:
    """A table that can have triggers.

    Attributes:
        schema: the database that it is in.
        name: its name, as it was created.
        columns: by name, in their order.
        rows: about how many there are, by the server's statistics.
        primary_key: its columns; none where there is none.
        updates_ignored: whether the server runs AFTER UPDATE triggers also for the rows that an
            UPDATE IGNORE leaves as they were, as MariaDB does.
        snapshot_isolation: whether the server has ``innodb_snapshot_isolation``.
        untriggered: sentences on what changes its rows and fires no trigger.
    """

    schema: str
    name: str
    columns: dict[str, Column]
    rows: int
    primary_key: tuple[Column, ...]
    updates_ignored: bool
    snapshot_isolation: bool
    untriggered: tuple[str, ...]

    def column(self, name: str) -> Column:
        """A column by its name, in whatever case.

        Raises:
            ValueError: there is none; says which there are.
        """
        for own in self.columns.values():
            if own.name.casefold() == name.casefold():
                return own
        raise ValueError(
            f"{self.schema}.{self.name} has no column {name!r}; it has {', '.join(self.columns)}"
        )

    def counted_by(self, by: Sequence[str], day: str | None) -> tuple[list[Column], Column | None]:
        """The columns that make the key of a row's count, and the one whose date is its day.

        Raises:
            ValueError: there is no such column, one comes twice, or their values cannot make a key;
                or the day's column holds no dates.
        """
        found = [self.column(name) for name in by]
        for column in found:
            if found.count(column) > 1:
                raise ValueError(f"column {column.name} is given twice")
        if width(found) > MAX_WIDTH:
            said = ", ".join(f"{column.name} up to {widest(column):,}" for column in found)
            raise ValueError(
                f"the values may not fit the {MAX_WIDTH:,} bytes that are read of a row ({said}"
                f" bytes of UTF-8): count by fewer or narrower columns; {_GENERATED}"
            )
        of_day = None if day is None else self.column(day)
        if of_day is not None and of_day.type not in DAY_TYPES:
            raise ValueError(
                f"column {of_day.name} is of type {of_day.type.upper()}: a day is taken from a"
                " DATE, DATETIME or TIMESTAMP"
            )
        return found, of_day


def read_table(session: Session, schema: str, name: str, database: str) -> AppTable:
    """A table, if it can be tracked.

    Args:
        session: outside a transaction.
        schema: the database that it is in.
        name: its name.
        database: where the tables of countersink are.

    Raises:
        ValueError: there is no such table, or it cannot be tracked; says why, and what can be done.
    """
    if schema.casefold() in _SYSTEM:
        raise ValueError(f"{schema}.{name} is the server's own: it cannot have triggers")
    rows = session.query(
        "SELECT table_schema, table_name, table_type, engine, COALESCE(table_rows, 0),"
        " COALESCE(create_options, ''), @@lower_case_table_names FROM information_schema.tables"
        " WHERE table_schema = %s AND table_name = %s",
        (schema, name),
    )
    # Where names differ by case alone the one that was written; elsewhere the only one.
    found = next((row for row in rows if row[-1] or row[:2] == (schema, name)), None)
    if found is None:
        raise ValueError(
            f"there is no table {schema}.{name}, or this user has no rights on it (a temporary"
            " table cannot be tracked: it belongs to one connection, and cannot have triggers)"
        )
    schema, name, kind, engine, estimate, options, _ = found
    _refuse(database, schema, name, kind, engine)
    columns = read_columns(session, schema, name)
    untriggered = _cascades(session, schema, name)
    if "partitioned" in options.lower():
        untriggered.append("dropping or truncating a partition fires no trigger")
    return AppTable(
        schema=schema,
        name=name,
        columns=columns,
        rows=int(estimate),
        primary_key=_primary_key(session, schema, name, columns),
        updates_ignored=session.dialect.name == "mariadb",
        snapshot_isolation=session.snapshot_isolation,
        untriggered=tuple(untriggered),
    )


def read_columns(session: Session, schema: str, table: str) -> dict[str, Column]:
    """The columns of a table by name, in their order; none where there is no such table."""
    rows = session.query(
        "SELECT column_name, data_type, character_maximum_length, numeric_precision,"
        " datetime_precision, character_set_name, collation_name"
        " FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
        " ORDER BY ordinal_position",
        (schema, table),
    )
    return {
        name: Column(
            name=name,
            type=type_.lower(),
            length=int(length or 0),
            digits=int(digits or 0),
            fraction=int(fraction or 0),
            charset=charset,
            collation=collation,
        )
        for name, type_, length, digits, fraction, charset, collation in rows
    }


def width(columns: Sequence[Column]) -> int:
    """Bytes that the longest key of these columns has, before it is cut.

    Raises:
        ValueError: a column cannot be counted by; says what can be done.
    """
    return sum(widest(column) for column in columns) + max(0, len(columns) - 1)


def widest(column: Column) -> int:
    """Bytes that the column's longest value takes in a key.

    Raises:
        ValueError: it is of a type that cannot be counted by; says what can be done.
    """
    if column.type in TEXT_TYPES:
        return max(_CHARACTER_BYTES.get(column.charset or "", 3) * column.length, _NULL_BYTES)
    if column.type in BINARY_TYPES:
        return max(2 * column.length, _NULL_BYTES)
    if column.type in INTEGER_TYPES or column.type == "decimal":
        return column.digits + 3  # the sign, the point, and a 0 before it
    if column.type in _SHORT_TYPES:
        return _SHORT_BYTES
    if column.type == "timestamp":
        raise ValueError(
            f"column {column.name} is a TIMESTAMP, whose text is another one in each time zone:"
            " take it as the day, or count by a DATETIME column"
        )
    raise ValueError(
        f"column {column.name} is of type {column.type.upper()}, which has no exact text to count"
        f" by: {_GENERATED}"
    )


def _refuse(database: str, schema: str, name: str, kind: str, engine: str | None) -> None:
    full = f"{schema}.{name}"
    if schema == database and name in _own_tables():
        raise ValueError(f"{full} is countersink's own: it cannot be tracked")
    if kind.upper() != "BASE TABLE":  # of one that is system-versioned, past rows fire them, too
        raise ValueError(f"{full} is no plain table ({kind.lower()}): it cannot be tracked")
    if (engine or "").lower() != "innodb":
        raise ValueError(
            f"{full} is of the engine {engine}, whose rows do not commit and roll back with their"
            " count: ALTER TABLE … ENGINE = InnoDB first"
        )


@cache
def _own_tables() -> frozenset[str]:
    statements = "\n".join(each for migration in migrations() for each in migration.statements)
    made = re.findall(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+)", statements, re.MULTILINE)
    return frozenset({_VERSION_TABLE, *made})


def _primary_key(
    session: Session, schema: str, name: str, columns: dict[str, Column]
) -> tuple[Column, ...]:
    rows = session.query(
        "SELECT column_name FROM information_schema.statistics WHERE table_schema = %s"
        " AND table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index",
        (schema, name),
    )
    # A user who may not see all columns sees a part of the key, which is none.
    return tuple(columns[key] for (key,) in rows) if all(row[0] in columns for row in rows) else ()


def _cascades(session: Session, schema: str, name: str) -> list[str]:
    """Sentences on the foreign keys by which rows change without a trigger."""
    rows = session.query(
        "SELECT constraint_name, referenced_table_name, delete_rule, update_rule"
        " FROM information_schema.referential_constraints"
        " WHERE constraint_schema = %s AND table_name = %s ORDER BY constraint_name",
        (schema, name),
    )
    return [
        f"foreign key {constraint} to {parent}: ON DELETE {deleted}, ON UPDATE {updated}: what it"
        " deletes or changes fires no trigger"
        for constraint, parent, deleted, updated in rows
        if {deleted, updated} & {"CASCADE", "SET NULL", "SET DEFAULT"}
    ]

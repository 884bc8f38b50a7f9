"""Tables and columns of the application, read from the server, and the checks whether a table can
be tracked. Track, repair and verify use them. See ``lifecycle.py`` for further checks of ``track``
alone.
"""

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
NORMALIZED_TYPES: Final = frozenset({"uuid", "inet4", "inet6"})
"""Types of MariaDB for which the server brings the text of a value into one form."""
_ORDERED_TYPES: Final = (INTEGER_TYPES - {"bit"}) | BINARY_TYPES | DAY_TYPES | NORMALIZED_TYPES
_ORDERED_CHARSETS: Final = frozenset({"ascii", "latin1", "utf8", "utf8mb3", "utf8mb4"})
_SHORT_TYPES: Final = frozenset({"date", "datetime", "time", "year"}) | NORMALIZED_TYPES
_SHORT_BYTES: Final = 45
"""Length in bytes of the longest value of :data:`_SHORT_TYPES`, which is an INET6."""
_CHARACTER_BYTES: Final = {
    "ascii": 2,  # one byte, and one more before a backslash or a bar
    **dict.fromkeys(("utf8mb4", "utf16", "utf16le", "utf32", "gb18030"), 4),
}
"""Character set → most bytes that a character takes in a key; 3 for all other character sets."""
_NULL_BYTES: Final = 2
MAX_WIDTH: Final = 131_072
"""Maximum of bytes that a row's key may have before it is cut. Any VARCHAR fits, and no TEXT
does."""
_SYSTEM: Final = frozenset({"mysql", "sys", "performance_schema", "information_schema"})
_VERSION_TABLE: Final = "schema_version"
_GENERATED: Final = (
    "or count by a generated column, as in"
    " ALTER TABLE … ADD COLUMN status_group VARCHAR(20) AS (LEFT(status, 20))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of an application's table.

    Attributes:
        name: the column's name, as it was created.
        type: the column's type in lower case, such as ``varchar``.
        length: maximum number of characters of a text, or of bytes of a binary value; 0 for other
            types.
        digits: maximum number of digits of a number, or of bits of a BIT; 0 for other types.
        fraction: number of digits of a second's fraction, for types with a time; 0 for others.
        charset: character set of a text; None for other types.
        collation: collation of a text; None for other types.
    """

    name: str
    type: str
    length: int
    digits: int
    fraction: int
    charset: str | None
    collation: str | None

    @property
    def is_comparable(self) -> bool:
        """Whether a table can be read in ranges of this column, as ``check.py`` does with the first
        column of the primary key: a value that was read, and is sent back as a bound argument to
        begin the next range, is equal to the value in the index.
        """
        if self.type in TEXT_TYPES:
            return self.type in ("char", "varchar") and self.charset in _ORDERED_CHARSETS
        return self.type in _ORDERED_TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class AppTable:
    """A table of the application that can have triggers.

    Attributes:
        schema: the table's database.
        name: the table's name, as it was created.
        columns: name → column, in the table's order, without columns that this user may not see.
        rows: number of the table's rows, as the server's statistics estimate it.
        primary_key: the columns of the primary key; empty if there is no primary key, or if this
            user may not see all of its columns.
        updates_ignored: True if the server runs AFTER UPDATE triggers also for rows that an UPDATE
            IGNORE leaves unchanged, as MariaDB does.
        snapshot_isolation: True if the server has the variable ``innodb_snapshot_isolation``. A
            trigger then counts in a private slot of the connection while the variable is on, and in
            a shared slot while it is off. Otherwise it always counts in a shared slot.
        untriggered: sentences, each on a way to change rows that fires no trigger.
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
        """Return the column with this name. The case of letters does not matter.

        Raises:
            ValueError: there is no such column. The message has all names.
        """
        for column in self.columns.values():
            if column.name.casefold() == name.casefold():
                return column
        raise ValueError(
            f"{self.schema}.{self.name} has no column {name!r}; it has {', '.join(self.columns)}"
        )

    def counted_by(self, by: Sequence[str], day: str | None) -> tuple[list[Column], Column | None]:
        """Return the columns of the key and the day column, after a check that they can be used so.

        Args:
            by: names of the columns whose values make the key, in this order.
            day: name of the day column; None if there is none.

        Raises:
            ValueError: a column does not exist, or is in ``by`` twice; the values of a column in
                ``by`` have no exact text (such as those of a FLOAT or TIMESTAMP); the key may have
                more than :data:`MAX_WIDTH` bytes before it is cut; or the day column is no DATE,
                DATETIME or TIMESTAMP.
        """
        found = [self.column(name) for name in by]
        for column in found:
            if found.count(column) > 1:
                raise ValueError(f"column {column.name} is given twice")
        if width(found) > MAX_WIDTH:
            widths = ", ".join(f"{column.name} up to {widest(column):,}" for column in found)
            raise ValueError(
                f"the values of a row may have more than {MAX_WIDTH:,} bytes of UTF-8 ({widths}):"
                f" count by fewer or narrower columns, {_GENERATED}"
            )
        of_day = None if day is None else self.column(day)
        if of_day is not None and of_day.type not in DAY_TYPES:
            raise ValueError(
                f"column {of_day.name} is of type {of_day.type.upper()}: the day must be a DATE,"
                " DATETIME or TIMESTAMP"
            )
        return found, of_day


def read_table(session: Session, schema: str, name: str, database: str) -> AppTable:
    """Read a table's definition from the server, and check that the table can be tracked.

    Args:
        session: a session outside a transaction.
        schema: the table's database.
        name: the table's name.
        database: name of countersink's database, whose own tables cannot be tracked.

    Raises:
        ValueError: there is no such table, or it cannot be tracked, such as a view, or a table of
            another engine than InnoDB. The message says why.
    """
    if schema.casefold() in _SYSTEM:
        raise ValueError(f"{schema}.{name} is a system table, which cannot have triggers")
    rows = session.query(
        "SELECT table_schema, table_name, table_type, engine, COALESCE(table_rows, 0),"
        " COALESCE(create_options, ''), @@lower_case_table_names FROM information_schema.tables"
        " WHERE table_schema = %s AND table_name = %s",
        (schema, name),
    )
    # Where names are case-sensitive the exact name; elsewhere the only row.
    found = next((row for row in rows if row[-1] or row[:2] == (schema, name)), None)
    if found is None:
        raise ValueError(
            f"there is no table {schema}.{name}, or this user has no rights on it (a temporary"
            " table cannot be tracked: it belongs to one connection, and cannot have triggers)"
        )
    schema, name, kind, engine, estimate, options, _ = found
    _check_kind(database, schema, name, kind, engine)
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
    """Return name → column of a table, in the table's order. The result is empty if there is no
    such table, and lacks columns that this user may not see.
    """
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
    """Return the maximum number of bytes that a key of these columns has before it is cut.

    Raises:
        ValueError: a column's type has no exact text, such as FLOAT, or TIMESTAMP, whose text
            depends on the time zone. The message says what can be done.
    """
    return sum(widest(column) for column in columns) + max(0, len(columns) - 1)


def widest(column: Column) -> int:
    """Return the maximum number of bytes that a value of the column can have in a key.

    Raises:
        ValueError: the column's type has no exact text, such as FLOAT, or TIMESTAMP, whose text
            depends on the time zone. The message says what can be done.
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
            f"column {column.name} is a TIMESTAMP, whose text depends on the time zone: give it as"
            " the day, or count by a DATETIME column"
        )
    raise ValueError(
        f"column {column.name} is of type {column.type.upper()}, whose values have no exact text:"
        f" count by another column, {_GENERATED}"
    )


def _check_kind(database: str, schema: str, name: str, kind: str, engine: str | None) -> None:
    full = f"{schema}.{name}"
    if schema == database and name in _countersink_tables():
        raise ValueError(f"{full} is a table of countersink: it cannot be tracked")
    if kind.upper() != "BASE TABLE":  # past rows of a system-versioned table fire triggers, too
        raise ValueError(f"{full} is no plain table ({kind.lower()}): it cannot be tracked")
    if (engine or "").lower() != "innodb":
        raise ValueError(
            f"{full} has the engine {engine}, whose rows do not commit and roll back with their"
            " count: run ALTER TABLE … ENGINE = InnoDB first"
        )


@cache
def _countersink_tables() -> frozenset[str]:
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
    # A user who may not see all columns sees only a part of the primary key, which is useless.
    return tuple(columns[key] for (key,) in rows) if all(row[0] in columns for row in rows) else ()


def _cascades(session: Session, schema: str, name: str) -> list[str]:
    """Return a sentence for each foreign key of the table by which a change or deletion of a
    parent row changes or deletes rows of the table, too, without firing triggers.
    """
    rows = session.query(
        "SELECT constraint_name, referenced_table_name, delete_rule, update_rule"
        " FROM information_schema.referential_constraints"
        " WHERE constraint_schema = %s AND table_name = %s ORDER BY constraint_name",
        (schema, name),
    )
    return [
        f"foreign key {constraint} to {parent} (ON DELETE {deleted}, ON UPDATE {updated}): its"
        " deletions and changes of rows fire no trigger"
        for constraint, parent, deleted, updated in rows
        if {deleted, updated} & {"CASCADE", "SET NULL", "SET DEFAULT"}
    ]

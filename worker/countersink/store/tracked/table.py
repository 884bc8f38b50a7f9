"""Which tables and columns can be tracked at all, checked by track, repair and verify alike: types
of columns, width of keys (``MAX_WIDTH``), and the refusals with their reasons; what ``track`` alone
refuses: ``tracked/lifecycle.py``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from countersink.store.connection import Session
from countersink.store.migrate import migrations
from countersink.store.tracked.definitions import TrackedTable

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

    @property
    def finds_its_place(self) -> bool:
        """Whether a value that was read, bound again, is in the same place of an index."""
        if self.has_text:
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
        cascades: its foreign keys by which rows change without a trigger, as sentences.
        partitioned: whether partitions can be dropped from it.
    """

    schema: str
    name: str
    columns: dict[str, Column]
    rows: int
    primary_key: tuple[Column, ...]
    updates_ignored: bool
    snapshot_isolation: bool
    cascades: tuple[str, ...]
    partitioned: bool

    @property
    def first_key(self) -> Column | None:
        """The first column of the primary key; None where there is none."""
        return self.primary_key[0] if self.primary_key else None

    def column(self, name: str) -> Column:
        """A column by its name, in whatever case.

        Raises:
            ValueError: there is none; says which there are.
        """
        if name in self.columns:
            return self.columns[name]
        for own in self.columns.values():
            if own.name.casefold() == name.casefold():
                return own
        raise ValueError(
            f"{self.schema}.{self.name} has no column {name!r}; it has {', '.join(self.columns)}"
        )

    def counted_by(self, tracked: TrackedTable) -> tuple[list[Column], Column | None]:
        """The columns that make the key of a row's count, and the one that is its day.

        Raises:
            ValueError: there is none of such a name.
        """
        by = [self.column(name) for name in tracked.by]
        return by, None if tracked.day is None else self.column(tracked.day)

    def by_columns(self, names: Sequence[str]) -> list[Column]:
        """The columns whose values make the key.

        Raises:
            ValueError: there is no such column, one comes twice, or their values cannot make one.
        """
        found = [self.column(name) for name in names]
        for column in found:
            if found.count(column) > 1:
                raise ValueError(f"column {column.name} is given twice")
        if width(found) > MAX_WIDTH:
            said = ", ".join(f"{column.name} up to {widest(column):,}" for column in found)
            raise ValueError(
                f"the values may not fit the {MAX_WIDTH:,} bytes that are read of a row ({said}"
                f" bytes of UTF-8): count by fewer or narrower columns; {_GENERATED}"
            )
        return found

    def day_column(self, name: str) -> Column:
        """The column whose date is the day.

        Raises:
            ValueError: there is none, or it holds no dates.
        """
        found = self.column(name)
        if found.type not in DAY_TYPES:
            raise ValueError(
                f"column {found.name} is of type {found.type.upper()}: a day is taken from a DATE,"
                " DATETIME or TIMESTAMP"
            )
        return found


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
        " COALESCE(create_options, '') FROM information_schema.tables"
        " WHERE table_schema = %s AND table_name = %s",
        (schema, name),
    )
    # Where names differ by case alone the one that was written; elsewhere the only one.
    found = next((row for row in rows if row[:2] == (schema, name)), None)
    if found is None and _folds_case(session):
        found = rows[0] if rows else None
    if found is None:
        raise ValueError(
            f"there is no table {schema}.{name}, or this user has no rights on it (a temporary"
            " table cannot be tracked: it belongs to one connection, and cannot have triggers)"
        )
    schema, name, kind, engine, estimate, options = found
    _refuse(database, schema, name, kind, engine)
    columns = read_columns(session, schema, name)
    return AppTable(
        schema=schema,
        name=name,
        columns=columns,
        rows=int(estimate),
        primary_key=_primary_key(session, schema, name, columns),
        updates_ignored=session.dialect.name == "mariadb",
        snapshot_isolation=session.snapshot_isolation,
        cascades=_cascades(session, schema, name),
        partitioned="partitioned" in options.lower(),
    )


def read_columns(session: Session, schema: str, table: str) -> dict[str, Column]:
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


def require_columns(table: AppTable, tracked: TrackedTable) -> None:
    """Check that a table can be counted as it is.

    Raises:
        ValueError: a column is gone, or has become one that cannot be counted by; says why.
    """
    table.by_columns(tracked.by)
    if tracked.day is not None:
        table.day_column(tracked.day)


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


def _refuse(database: str, schema: str, name: str, kind: str, engine: str | None) -> None:
    full = f"{schema}.{name}"
    if schema == database and name in _own_tables():
        raise ValueError(f"{full} is countersink's own: it cannot be tracked")
    if "VIEW" in kind.upper():
        raise ValueError(f"{full} is a view, which cannot have triggers: track the table behind it")
    if kind.upper() == "SYSTEM VERSIONED":
        raise ValueError(
            f"{full} keeps a history of its rows (WITH SYSTEM VERSIONING), whose triggers do not"
            " tell present rows from past ones: it cannot be tracked"
        )
    if kind.upper() != "BASE TABLE":
        raise ValueError(f"{full} is a {kind.lower()}, not a table: it cannot be tracked")
    if (engine or "").lower() != "innodb":
        raise ValueError(
            f"{full} is of the engine {engine}, whose rows do not commit and roll back with their"
            " count: ALTER TABLE … ENGINE = InnoDB first"
        )


@cache
def _own_tables() -> frozenset[str]:
    found = {_VERSION_TABLE}
    for migration in migrations():
        for statement in migration.statements:
            made = re.match(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", statement)
            if made:
                found.add(made[1])
    return frozenset(found)


def _folds_case(session: Session) -> bool:
    ((folds,),) = session.query("SELECT @@lower_case_table_names")
    return bool(folds)


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


def _cascades(session: Session, schema: str, name: str) -> tuple[str, ...]:
    rows = session.query(
        "SELECT constraint_name, referenced_table_name, delete_rule, update_rule"
        " FROM information_schema.referential_constraints"
        " WHERE constraint_schema = %s AND table_name = %s ORDER BY constraint_name",
        (schema, name),
    )
    return tuple(
        f"foreign key {constraint} to {parent}: ON DELETE {deleted}, ON UPDATE {updated}"
        for constraint, parent, deleted, updated in rows
        if {deleted, updated} & {"CASCADE", "SET NULL", "SET DEFAULT"}
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

"""Pieces of SQL: quoted names, labels of buckets, statements of many cells, the dialects of MariaDB
and MySQL with their oldest supported versions, and checks of server variables.

A label is one number for a bucket's beginning and width (see :func:`label_of`). A statement carries
many cells (counter, bucket and key). Its text is built here and not by the driver, because binding
a row's values in the driver takes more than half as long as the server's work on the row. So keys
are written as hex literals, numbers are formatted by ``:d``, times are made from labels, and the
driver quotes the few counters. No value can be read as SQL.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final, Literal

from countersink.database.errors import Refused

# Not UNIX_TIMESTAMP(), which ends in 2038 on MariaDB 10. Sessions are in UTC.
NOW_MS: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000"
"""SQL for the server's clock, in Unix milliseconds."""

EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 (naive, as DATETIME is)
COMPACTED: Final = 0
"""The slot in which compaction adds up rows."""
WORKER_SLOTS: Final = range(1, 256)
"""Slots that workers lease, one each."""
SHARED_SLOTS: Final = range(256, 512)
"""Slots that all connections of the application share."""
BACKFILL_SLOTS: Final = range(512, 1024)
"""Slots to which backfills and undo add."""
PRIVATE_SLOTS: Final = range(1024, 2**16)
"""Slots of which each connection of the application has one to itself, up to the largest number
that the column ``slot`` holds. Two connections get the same slot only if their connection numbers
differ by a multiple of the number of these slots."""
_DAY_S: Final = 86_400
CELLS_PER_STATEMENT: Final = 1000
"""Maximum of cells in an INSERT. A cell with the longest counter and key takes less than 800
bytes."""
KEYS_PER_STATEMENT: Final = 500
"""Maximum of keys in an IN. For 1,000 keys or more MariaDB makes a temporary table of them."""


def show(kind: str, names: Iterable[str]) -> str:
    """Return a ``SHOW`` statement for variables or status values of the server.

    Args:
        kind: what to show, such as ``VARIABLES`` or ``GLOBAL STATUS``.
        names: their names. They are constants of this program, and are not escaped.
    """
    listed = ", ".join(f"'{name}'" for name in names)
    return f"SHOW {kind} WHERE Variable_name IN ({listed})"


def quoted(name: str) -> str:
    """Return a name as an SQL identifier: in backquotes, with backquotes within it doubled. (A
    driver can bind values, but no identifiers.)
    """
    return f"`{name.replace('`', '``')}`"


def parts(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield ``values`` in parts of ``size`` values each, in order; the last part may have fewer."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def marks(values: Sequence[object]) -> str:
    """Return the placeholders (``%s, %s, …``) for ``values``."""
    return ", ".join(["%s"] * len(values))


_DAY: Final = 4
_MONTH: Final = 5
"""This number and :data:`_DAY` stand for widths. See ``counters/buckets.py`` for all numbers."""
# Signed, as the sum is below 0 before 1970.
LABEL: Final = "TIMESTAMPDIFF(SECOND, '1970-01-01', bucket) + CAST(width AS SIGNED)"
"""SQL for the label of a row's bucket. The driver reads this number faster than a DATETIME."""


def label_of(bucket: datetime, width: int) -> int:
    """Return the label of a bucket: Unix seconds of the bucket's beginning, plus the number of its
    width.
    """
    return unix_seconds(bucket) + width


def unix_seconds(time: datetime) -> int:
    """Return the Unix seconds of a naive datetime in UTC."""
    return round((time - EPOCH).total_seconds())


def datetime_of(seconds: int) -> datetime:
    """Return the naive datetime in UTC for Unix seconds."""
    return EPOCH + timedelta(seconds=seconds)


def width_number(label: int) -> int:
    """Return the number of a bucket's width, from the bucket's label. It is the value of the column
    ``width``.
    """
    return label % 60


def label_time(label: int) -> datetime:
    """Return the beginning of a bucket, from the bucket's label. It is the value of the column
    ``bucket``, as a naive datetime in UTC.

    Raises:
        OverflowError: the time is beyond the year 9999.
    """
    return datetime_of(label - width_number(label))


def day_label(day: date) -> int:
    """Return the label of the bucket that has the width of a day and begins at midnight of
    ``day``.
    """
    return (day.toordinal() - EPOCH.toordinal()) * _DAY_S + _DAY


def month_label(day: date) -> int:
    """Return the label of the bucket that has the width of a month and contains ``day``. It begins
    at midnight of the first of the month.
    """
    return day_label(day.replace(day=1)) - _DAY + _MONTH


def label_text(label: int) -> str:
    """Return the text of an SQL DATETIME literal for the beginning of a bucket, from the bucket's
    label.

    Raises:
        OverflowError: the time is beyond the year 9999.
    """
    return label_time(label).isoformat(" ")


def labels_where(labels: Iterable[int]) -> tuple[str, list[object]]:
    """Return an SQL condition for the rows of the buckets with these labels, and the values to
    bind. There must be at least one label.
    """
    by_width: dict[int, list[int]] = {}
    for label in labels:
        by_width.setdefault(width_number(label), []).append(label)
    terms, values = [], list[object]()
    for width, some in by_width.items():
        inside = "= %s" if len(some) == 1 else f"IN ({marks(some)})"
        terms.append(f"bucket {inside} AND width = {width:d}")
        values += map(label_time, some)
    return terms[0] if len(terms) == 1 else f"(({') OR ('.join(terms)}))", values


def head(literal: Callable[[str], str], counter: str, bucket: int) -> str:
    """Return the beginning of a cell's row in the VALUES of an INSERT, such as ``('page_views',
    '2026-11-21 00:00:00', X'``. The caller appends the hex digits of the key, the closing quote,
    the other columns, and the bracket.

    Args:
        literal: a function that quotes a text, such as :meth:`Session.literal`.
        counter: the cell's counter.
        bucket: the label of the cell's bucket.

    Raises:
        OverflowError: the bucket is beyond the year 9999.
    """
    return f"({literal(counter)}, '{label_text(bucket)}', X'"


MINIMUM: Final = {"mariadb": (10, 6, 0), "mysql": (8, 0, 19)}
"""The oldest supported version of each server. MySQL has row aliases in INSERT since 8.0.19."""

_NAMES: Final = {"mariadb": "MariaDB", "mysql": "MySQL"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """A server's kind (MariaDB or MySQL) and version, which decide on the SQL that it understands.

    Attributes:
        name: ``mariadb``, or ``mysql`` for every other server.
        version: the version as three numbers, so that 10.11 compares as newer than 10.6.
    """

    name: Literal["mariadb", "mysql"]
    version: tuple[int, int, int]

    def upsert_add(self, table: str, *columns: str) -> str:
        """Return the clause, after the VALUES of an INSERT into ``table``, that adds the new values
        to ``columns`` of a row that exists already.

        MySQL and MariaDB need different clauses: MySQL warns of VALUES(column) at every statement
        since 8.0.20, and MariaDB has no row alias.
        """
        return self._upsert({each: f"{table}.{each} + " for each in columns})

    def upsert_set(self, *columns: str) -> str:
        """Return the clause, after the VALUES of an INSERT, that sets ``columns`` of a row that
        exists already to the new values.
        """
        return self._upsert(dict.fromkeys(columns, ""))

    def _upsert(self, columns: Mapping[str, str]) -> str:
        """Return the clause ON DUPLICATE KEY UPDATE.

        Args:
            columns: column → SQL that precedes the column's new value, such as ``amount + ``.
        """
        mysql = self.name == "mysql"
        values = ", ".join(
            f"{each} = {before}" + (f"new.{each}" if mysql else f"VALUES({each})")
            for each, before in columns.items()
        )
        return f"{' AS new' if mysql else ''} ON DUPLICATE KEY UPDATE {values}"

    def limit_statements(self, seconds: float) -> str:
        """Return a SET statement that limits the duration of each later query of the session to
        ``seconds``. On MariaDB the limit also holds for statements that write.
        """
        if self.name == "mysql":
            return f"SET SESSION max_execution_time = {max(1, round(1000 * seconds)):d}"
        return f"SET SESSION max_statement_time = {seconds:f}"

    def __str__(self) -> str:
        return f"{_NAMES[self.name]} {'.'.join(map(str, self.version))}"


def parse_version(text: str) -> Dialect:
    """Return the dialect for the text that VERSION() returns.

    Raises:
        Refused: the server is older than :data:`MINIMUM`, or the text has no version number.
    """
    name: Literal["mariadb", "mysql"] = "mariadb" if "mariadb" in text.lower() else "mysql"
    # Some MariaDB builds begin with 5.5.5-, for old replication clients.
    numbers = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text.removeprefix("5.5.5-"))
    if numbers is None:
        raise Refused(f"the server's version {text!r} has no number")
    major, minor, patch = numbers.groups(default="0")
    dialect = Dialect(name, (int(major), int(minor), int(patch)))
    if dialect.version < MINIMUM[name]:
        least = ".".join(map(str, MINIMUM[name]))
        raise Refused(f"the server is {dialect}; countersink needs {_NAMES[name]} {least} or newer")
    return dialect


def is_galera(variables: Mapping[str, str]) -> bool:
    """Return whether a server is a node of Galera.

    Args:
        variables: name → value of the server's variables ``wsrep_on`` and ``wsrep_provider``. A
            server without Galera may lack them.
    """
    provider = variables.get("wsrep_provider", "none")
    return is_on(variables.get("wsrep_on", "OFF")) and provider not in ("", "none")


def is_on(value: str) -> bool:
    """Return whether a server variable with this value is on. Only OFF and 0 mean that it is off.
    (Since MariaDB 12 ``read_only`` can also be NO_LOCK or NO_LOCK_NO_ADMIN.)
    """
    return value.upper() not in ("OFF", "0")


GROUP: Final = ("group_replication_group_name", "group_replication_single_primary_mode")
"""Server variables that tell whether the server is a member of a replication group, and whether the
group has several primaries."""
SEVERAL_PRIMARIES: Final = (
    "a member of a group with several primaries, whose row locks are local to each: set"
    " single-primary mode (SELECT group_replication_switch_to_single_primary_mode())"
)
"""The reason why countersink does not use a group with several primaries."""


def has_several_primaries(variables: Mapping[str, str]) -> bool:
    """Return whether a server is set up for a replication group in which all members take writes.
    Only its settings count: it need not be a member now.

    Args:
        variables: name → value of the server's variables :data:`GROUP`. A server without group
            replication may lack them.
    """
    name, single = (variables.get(each, "") for each in GROUP)
    return bool(name) and single == "OFF"

"""Pieces of SQL: quoting, labels of buckets, statements of many cells, the dialects of MariaDB and
MySQL with their oldest supported versions, and conditions by server variables.

A statement carries many cells (counter, bucket, key). It is built here and not by the driver, whose
binding of single values takes more than half of the server's time for the row: keys are hex
literals, numbers are formatted by ``:d``, and the few counters and buckets are quoted by the
driver, so no value can be read as SQL.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final, Literal

from countersink.database.errors import Refused

# Not UNIX_TIMESTAMP(), which ends in 2038 on MariaDB 10. Sessions are in UTC.
NOW_MS: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000"
"""The server's clock as Unix ms."""

EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 (naive, as DATETIME is)
COMPACTED: Final = 0
"""The slot of compacted rows."""
_DAY_S: Final = 86_400
CELLS_PER_STATEMENT: Final = 1000
"""Cells in an INSERT; a cell with the longest counter and key takes less than 800 bytes."""
KEYS_PER_STATEMENT: Final = 500
"""Keys in an IN; from 1,000 on MariaDB makes a temporary table of them."""


def show(kind: str, names: Iterable[str]) -> str:
    """A ``SHOW`` statement for variables or status values of the server.

    Args:
        kind: ``VARIABLES``, ``GLOBAL STATUS`` or the like.
        names: constants of this program.
    """
    listed = ", ".join(f"'{name}'" for name in names)
    return f"SHOW {kind} WHERE Variable_name IN ({listed})"


def quoted(name: str) -> str:
    """A name as an SQL identifier, which cannot be bound: in backquotes, inner ones doubled."""
    return f"`{name.replace('`', '``')}`"


def parts(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """``values`` in parts of at most ``size``."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def marks(values: Sequence[object]) -> str:
    """Placeholders for ``values``."""
    return ", ".join(["%s"] * len(values))


_DAY: Final = 4
_MONTH: Final = 5
"""Numbers of widths. See ``counters/buckets.py`` for the others."""
# Signed, as the sum is below 0 before 1970.
LABEL: Final = "TIMESTAMPDIFF(SECOND, '1970-01-01', bucket) + CAST(width AS SIGNED)"
"""SQL for a bucket's label, a number, which the driver reads faster than a DATETIME."""


def label_of(bucket: datetime, width: int) -> int:
    """The label of a bucket: Unix seconds of its beginning plus the number of its width."""
    return unix_seconds(bucket) + width


def unix_seconds(time: datetime) -> int:
    """Unix seconds of a DATETIME in UTC."""
    return round((time - EPOCH).total_seconds())


def datetime_of(seconds: int) -> datetime:
    """The naive datetime in UTC of Unix seconds."""
    return EPOCH + timedelta(seconds=seconds)


def width_number(label: int) -> int:
    """The number of the bucket's width: the value of the column ``width``."""
    return label % 60


def label_time(label: int) -> datetime:
    """The beginning of the bucket as a naive datetime: the value of the column ``bucket``.

    Raises:
        OverflowError: beyond the year 9999.
    """
    return datetime_of(label - width_number(label))


def day_label(day: date) -> int:
    """The label of a day's bucket."""
    return (day.toordinal() - EPOCH.toordinal()) * _DAY_S + _DAY


def month_label(day: date) -> int:
    """The label of the bucket of the month of ``day``."""
    return day_label(day.replace(day=1)) - _DAY + _MONTH


def label_text(label: int) -> str:
    """The text of a DATETIME literal for the beginning of the bucket.

    Raises:
        OverflowError: beyond the year 9999.
    """
    return label_time(label).isoformat(" ")


def labels_where(labels: Iterable[int]) -> tuple[str, list[object]]:
    """The SQL condition for the rows of one or more buckets, and its values."""
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
    """The beginning of a cell's row literal, up to the hex digits of its key; the caller appends
    these, the closing quote, and the number of the bucket's width.

    Args:
        literal: quotes a text, such as :meth:`Session.literal`.
        counter: the cell's counter.
        bucket: the label of the cell's bucket.

    Raises:
        OverflowError: beyond the year 9999.
    """
    return f"({literal(counter)}, '{label_text(bucket)}', X'"


MINIMUM: Final = {"mariadb": (10, 6, 0), "mysql": (8, 0, 19)}
"""Oldest supported versions: MySQL has the row alias of an INSERT since 8.0.19."""

_NAMES: Final = {"mariadb": "MariaDB", "mysql": "MySQL"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The server's kind (MariaDB or MySQL) and version.

    Attributes:
        name: ``mariadb`` or ``mysql`` (every server that is not MariaDB).
        version: numbers, so that 10.11 is newer than 10.6.
    """

    name: Literal["mariadb", "mysql"]
    version: tuple[int, int, int]

    def upsert_add(self, table: str, *columns: str) -> str:
        """The clause after the VALUES of an INSERT that adds to ``columns`` of an existing row.

        MySQL warns of VALUES(column) at every statement since 8.0.20; MariaDB has no row alias.
        """
        return self._upsert({each: f"{table}.{each} + " for each in columns})

    def upsert_set(self, *columns: str) -> str:
        """The clause after the VALUES of an INSERT that sets ``columns`` of an existing row."""
        return self._upsert(dict.fromkeys(columns, ""))

    def _upsert(self, columns: Mapping[str, str]) -> str:
        """The clause for columns, each with the SQL before its new value."""
        mysql = self.name == "mysql"
        values = ", ".join(
            f"{each} = {before}" + (f"new.{each}" if mysql else f"VALUES({each})")
            for each, before in columns.items()
        )
        return f"{' AS new' if mysql else ''} ON DUPLICATE KEY UPDATE {values}"

    def limit_statements(self, seconds: float) -> str:
        """A statement that limits the session's queries to so many seconds; on MariaDB also
        statements that write.
        """
        if self.name == "mysql":
            return f"SET SESSION max_execution_time = {max(1, round(1000 * seconds)):d}"
        return f"SET SESSION max_statement_time = {seconds:f}"

    def __str__(self) -> str:
        return f"{_NAMES[self.name]} {'.'.join(map(str, self.version))}"


def parse_version(text: str) -> Dialect:
    """The dialect for a text of VERSION().

    Raises:
        Refused: the server is older than :data:`MINIMUM`, or the text is no version.
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
    """Whether a server is a node of Galera.

    Args:
        variables: the server's variables of :data:`countersink.database.hosts.GALERA`.
    """
    provider = variables.get("wsrep_provider", "none")
    return is_on(variables.get("wsrep_on", "OFF")) and provider not in ("", "none")


def is_on(value: str) -> bool:
    """Whether a variable is on; NO_LOCK and NO_LOCK_NO_ADMIN are such values of MariaDB 12."""
    return value.upper() not in ("OFF", "0")


GROUP: Final = ("group_replication_group_name", "group_replication_single_primary_mode")
"""Variables by which a member of a group, and a group with several primaries, is recognized."""
SEVERAL_PRIMARIES: Final = (
    "a member of a group with several primaries, whose row locks are local to each: set"
    " single-primary mode (SELECT group_replication_switch_to_single_primary_mode())"
)


def has_several_primaries(variables: Mapping[str, str]) -> bool:
    """Whether a server is a member of a group in which all members take writes.

    Args:
        variables: the server's variables of :data:`GROUP`.
    """
    name, single = (variables.get(each, "") for each in GROUP)
    return bool(name) and single == "OFF"

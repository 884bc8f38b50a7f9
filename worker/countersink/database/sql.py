"""Pieces of SQL: oldest supported versions of MariaDB and MySQL with the error, dialects, cells per
statement, quoting.

A cell is a row of one (counter, bucket, key); a statement carries many of them. It is put together
here, not by the driver, whose binding of single values costs more than half of what the server then
needs for the row: keys go as hex literals, numbers through ``:d``, the texts of the few counters
and buckets through the driver's own quoting, so nothing can be read as SQL.
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
"""The slot that compaction moves into."""
_DAY_S: Final = 86_400
CELLS_PER_STATEMENT: Final = 1000
KEYS_PER_STATEMENT: Final = 500
"""Of those in an IN; from 1,000 on MariaDB makes a temporary table of them."""
"""A cell whose counter and key are as long as they may be takes less than 800 bytes."""


def show(what: str, names: Iterable[str]) -> str:
    """``SHOW`` for some variables or states of the server.

    Args:
        what: such as ``GLOBAL STATUS``.
        names: constants of ours.
    """
    listed = ", ".join(f"'{name}'" for name in names)
    return f"SHOW {what} WHERE Variable_name IN ({listed})"


def quoted(name: str) -> str:
    """A name as an SQL identifier, which cannot be bound: in backquotes, those within doubled."""
    return f"`{name.replace('`', '``')}`"


def parts(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """``values``, so many at a time."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def marks(values: Sequence[object]) -> str:
    """Placeholders for ``values``."""
    return ", ".join(["%s"] * len(values))


_DAY: Final = 4
_MONTH: Final = 5
"""Numbers of widths; all of them: ``counters/buckets.py``."""
# As a signed number: before 1970 the sum is below 0, which no unsigned one is.
LABEL: Final = "TIMESTAMPDIFF(SECOND, '1970-01-01', bucket) + CAST(width AS SIGNED)"
"""A bucket's label, as a number, which the driver reads faster than a DATETIME."""


def label_of(bucket: datetime, width: int) -> int:
    """The label of a bucket read from the table: its seconds, and the number of its width."""
    return unix_seconds(bucket) + width


def unix_seconds(time: datetime) -> int:
    """Unix seconds of a DATETIME in UTC."""
    return round((time - EPOCH).total_seconds())


def datetime_of(seconds: int) -> datetime:
    """The naive DATETIME, in UTC, of Unix seconds."""
    return EPOCH + timedelta(seconds=seconds)


def width_number(label: int) -> int:
    """The number of a bucket's width, as the column ``width`` has it."""
    return label % 60


def label_time(label: int) -> datetime:
    """The naive datetime of a label, as the column ``bucket`` has it.

    Raises:
        OverflowError: beyond the year 9999.
    """
    return datetime_of(label - width_number(label))


def day_label(day: date) -> int:
    """The label of a date's bucket."""
    return (day.toordinal() - EPOCH.toordinal()) * _DAY_S + _DAY


def month_label(day: date) -> int:
    """The label of the bucket of a date's month."""
    return day_label(day.replace(day=1)) - _DAY + _MONTH


def label_text(label: int) -> str:
    """The text of a label's DATETIME literal, without its width.

    Raises:
        OverflowError: beyond the year 9999.
    """
    return label_time(label).isoformat(" ")


def labels_where(labels: Iterable[int]) -> tuple[str, list[object]]:
    """The condition for the rows of some buckets, at least one, and its values."""
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
    """The first part of a cell's literal, up to its key's hex digits; the caller closes it, and
    goes on with the number of the bucket's width.

    Args:
        literal: quotes a text, as the session's does.
        counter: of the cell.
        bucket: the label of its bucket.

    Raises:
        OverflowError: the bucket's label is beyond the year 9999.
    """
    return f"({literal(counter)}, '{label_text(bucket)}', X'"


MINIMUM: Final = {"mariadb": (10, 6, 0), "mysql": (8, 0, 19)}
"""Oldest supported versions: MySQL knows the row alias of an INSERT from 8.0.19 on."""

_NAMES: Final = {"mariadb": "MariaDB", "mysql": "MySQL"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The server's kind (MariaDB or MySQL) and version.

    Attributes:
        name: ``mariadb`` or ``mysql`` (with whatever calls itself MySQL).
        version: as numbers, so that 10.11 is newer than 10.6.
    """

    name: Literal["mariadb", "mysql"]
    version: tuple[int, int, int]

    def upsert_add(self, table: str, *columns: str) -> str:
        """What follows the VALUES of an INSERT that adds to ``columns`` where there is a row.

        MySQL warns of VALUES(column) at every statement since 8.0.20; MariaDB does not know the row
        alias.
        """
        return self._upsert({each: f"{table}.{each} + " for each in columns})

    def upsert_set(self, *columns: str) -> str:
        """What follows the VALUES of an INSERT that sets ``columns`` where there is a row."""
        return self._upsert(dict.fromkeys(columns, ""))

    def _upsert(self, columns: Mapping[str, str]) -> str:
        """The clause for columns, each with what stands before its new value."""
        mysql = self.name == "mysql"
        values = ", ".join(
            f"{each} = {before}" + (f"new.{each}" if mysql else f"VALUES({each})")
            for each, before in columns.items()
        )
        return f"{' AS new' if mysql else ''} ON DUPLICATE KEY UPDATE {values}"

    def limit_statements(self, seconds: float) -> str:
        """A statement after which the server gives up what reads and takes longer; on MariaDB what
        writes, too.
        """
        if self.name == "mysql":
            return f"SET SESSION max_execution_time = {max(1, round(1000 * seconds)):d}"
        return f"SET SESSION max_statement_time = {seconds:f}"

    def __str__(self) -> str:
        return f"{_NAMES[self.name]} {'.'.join(map(str, self.version))}"


def parse_version(text: str) -> Dialect:
    """The dialect for what VERSION() said.

    Raises:
        Refused: older than :data:`MINIMUM`, or no version at all.
    """
    name: Literal["mariadb", "mysql"] = "mariadb" if "mariadb" in text.lower() else "mysql"
    # Some MariaDB builds put 5.5.5- in front, for old replication clients.
    numbers = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text.removeprefix("5.5.5-"))
    if numbers is None:
        raise Refused(f"the server calls its version {text!r}, in which there is no number")
    major, minor, patch = numbers.groups(default="0")
    dialect = Dialect(name, (int(major), int(minor), int(patch)))
    if dialect.version < MINIMUM[name]:
        least = ".".join(map(str, MINIMUM[name]))
        raise Refused(f"the server is {dialect}; countersink needs {_NAMES[name]} {least} or newer")
    return dialect


def is_galera(variables: Mapping[str, str]) -> bool:
    """Whether a server is a node of Galera.

    Args:
        variables: those of :data:`countersink.database.hosts.GALERA` that it has.
    """
    provider = variables.get("wsrep_provider", "none")
    return is_on(variables.get("wsrep_on", "OFF")) and provider not in ("", "none")


def is_on(value: str) -> bool:
    """Whether a variable is on; NO_LOCK and NO_LOCK_NO_ADMIN are MariaDB 12's ways to say so."""
    return value.upper() not in ("OFF", "0")


GROUP: Final = ("group_replication_group_name", "group_replication_single_primary_mode")
SEVERAL_PRIMARIES: Final = (
    "a member of a group with several primaries: row locks do not reach the others, so set"
    " single-primary mode (SELECT group_replication_switch_to_single_primary_mode())"
)


def has_several_primaries(variables: Mapping[str, str]) -> bool:
    """Whether a server is a member of a group that lets all members take writes.

    Args:
        variables: those of :data:`GROUP` that it has.
    """
    name, single = (variables.get(each, "") for each in GROUP)
    return bool(name) and single == "OFF"

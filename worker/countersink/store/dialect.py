"""The few places where MariaDB and MySQL want different SQL."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from countersink.store.errors import Refused

MINIMUM: Final = {"mariadb": (10, 6, 0), "mysql": (8, 0, 19)}
"""Oldest supported versions: MySQL knows the row alias of an INSERT from 8.0.19 on."""

_NAMES: Final = {"mariadb": "MariaDB", "mysql": "MySQL"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the server is.

    Attributes:
        name: ``mariadb`` or ``mysql`` (with whatever calls itself MySQL).
        version: as numbers, so that 10.11 is newer than 10.6.
    """

    name: Literal["mariadb", "mysql"]
    version: tuple[int, int, int]

    def upsert_add(self, table: str, column: str) -> str:
        """What follows the VALUES of an INSERT that adds to ``column`` where there is a row.

        MySQL warns of VALUES(column) at every statement since 8.0.20; MariaDB does not know the row
        alias.
        """
        if self.name == "mysql":
            return f" AS new ON DUPLICATE KEY UPDATE {column} = {table}.{column} + new.{column}"
        return f" ON DUPLICATE KEY UPDATE {column} = {column} + VALUES({column})"

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

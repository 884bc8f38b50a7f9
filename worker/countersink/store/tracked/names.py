"""Names of tables: as people write them, and as SQL takes them.

An identifier cannot be bound, so this is the one place where names become SQL: quoted, with every
backquote doubled.
"""

import re
from collections.abc import Sequence

from countersink.store.keys import is_name
from countersink.store.tracked.definitions import TrackedTable

_PART = r"`(?:[^`]|``)+`|[^`.]+"
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return f"`{name.replace('`', '``')}`"


def parse(table: str, database: str) -> tuple[str, str]:
    """The database and the name that ``table`` says.

    Args:
        table: ``name``, ``schema.name``, or with backquotes around either part, and then with each
            backquote within doubled.
        database: which one is meant where none is said.

    Raises:
        TypeError: not a ``str``. ValueError: it cannot be a table's name.
    """
    if not isinstance(table, str):
        raise TypeError(f"a table's name is a str, not {type(table).__name__}")
    found = _NAME.fullmatch(table)
    if found is None or "\0" in table:
        raise ValueError(
            f"{table!r} is no table's name: write name, schema.name or `schema`.`name`, with each"
            " backquote within backquotes doubled"
        )
    schema, name = found.groups()
    return (database if schema is None else _plain(schema)), _plain(name)


def default_counter(table: str) -> str | None:
    """The counter's name for a table, as it was written; None where that cannot be one."""
    found = _NAME.fullmatch(table)
    if found is None:
        return None
    name = ".".join(_plain(part) for part in found.groups() if part is not None)
    return name if is_name(name) else None


def find(
    tracked: Sequence[TrackedTable], table_or_counter: str, database: str
) -> list[TrackedTable]:
    """What is tracked under a name: by this counter, or else all trackings of this table.

    Args:
        tracked: all that are.
        table_or_counter: a counter, or a table as for :func:`parse`.
        database: which one is meant where none is said.
    """
    own = [each for each in tracked if each.counter == table_or_counter]
    if own:
        return own
    try:
        place = parse(table_or_counter, database)
    except ValueError:
        return []
    return [each for each in tracked if (each.schema, each.table) == place]


def _plain(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part

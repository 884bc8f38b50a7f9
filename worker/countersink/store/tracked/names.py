"""Names of tables: as people write them, and as SQL takes them."""

import re
from collections.abc import Sequence

from countersink.store.errors import UnknownCounter
from countersink.store.keys import is_name
from countersink.store.tracked.definitions import TrackedTable

_PART = r"`(?:[^`]|``)+`|[^`.]+"
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")


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
    """What is tracked under a name: all trackings of this table, or else that by this counter.

    Args:
        tracked: all that are.
        table_or_counter: a counter, or a table as for :func:`parse`.
        database: which one is meant where none is said.

    Raises:
        ValueError: it is the counter of one table, and the name of another one that is tracked.
    """
    own = [each for each in tracked if each.counter == table_or_counter]
    try:
        place = parse(table_or_counter, database)
    except ValueError:
        place = None
    alike = [each for each in tracked if (each.schema, each.table) == place]
    if own and alike and own[0] not in alike:
        counters = ", ".join(each.counter for each in alike)
        raise ValueError(
            f"{table_or_counter!r} is the counter of {own[0].name}, and table {alike[0].name} is"
            f" tracked as {counters}: name that counter, or the table with its database"
        )
    return alike or own


def find_one(tracked: Sequence[TrackedTable], table_or_counter: str, database: str) -> TrackedTable:
    """The one that is tracked under a name.

    Args:
        tracked, table_or_counter, database: as for :func:`find`.

    Raises:
        UnknownCounter: nothing is.
        ValueError: as :func:`find`; or the table is tracked in several counters.
    """
    found = find(tracked, table_or_counter, database)
    if not found:
        raise UnknownCounter(
            f"no table is tracked as {table_or_counter!r}: see `countersink track --list`"
        )
    if len(found) > 1:
        counters = ", ".join(each.counter for each in found)
        raise ValueError(
            f"{table_or_counter} is tracked in several counters: name one of {counters} as the"
            " counter (--counter)"
        )
    return found[0]


def in_words(tracked: TrackedTable) -> str:
    """By what a table is counted: `` by tenant, status by day of placed``; nothing for all rows."""
    by = f" by {', '.join(tracked.by)}" if tracked.by else ""
    return by if tracked.day is None else f"{by} by day of {tracked.day}"


def _plain(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part

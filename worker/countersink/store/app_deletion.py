"""Taking a key's rows away in the application's own transaction.

Its rows are read under a lock, and exactly those are deleted: at READ COMMITTED there may be others
by then. They are taken off the ledger in the same transaction, but for those of the application's
own slots, which come into the ledger only when compaction moves them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from countersink.store.app_connection import AppConnection, execute, query
from countersink.store.app_slots import is_app_slot, shared_slot
from countersink.store.buckets import label_text

ROWS_PER_STATEMENT: Final = 250
"""Below 50 KB, whatever the names: less than any server takes."""

_SECONDS: Final = "TIMESTAMPDIFF(SECOND, '1970-01-01', bucket)"
"""A label; a number, whatever the application has its driver make of dates."""

_ALL: Final = f"LIMIT {2**64 - 1}"
"""Whatever ``sql_select_limit`` the application has set."""


def delete_rows(
    connection: AppConnection, database: str, counter: str, key: bytes, app_slots: int
) -> None:
    """Delete a key's rows, and take them off the ledger.

    Args:
        connection: in a transaction, which holds the counter's row of ``app_counter``.
        database: where the tables are, quoted.
        counter: the counter; its name was checked.
        key: the key.
        app_slots: over how many of the ledger's rows to spread.

    Raises:
        The driver's own errors, as they are.
    """
    this = f"counter = '{counter}' AND counter_key = X'{key.hex()}'"
    slots = [
        (int(label), int(slot), int(amount))
        for label, slot, amount in query(
            connection,
            f"SELECT {_SECONDS} AS label, slot, amount"
            f" FROM {database}.counter_slot FORCE INDEX (by_key) WHERE {this} {_ALL} FOR UPDATE",
        )
    ]
    months = [
        (int(label), int(amount))
        for label, amount in query(
            connection,
            f"SELECT {_SECONDS} AS label, amount"
            f" FROM {database}.counter_month FORCE INDEX (by_key) WHERE {this} {_ALL} FOR UPDATE",
        )
    ]
    _delete(
        connection,
        f"{database}.counter_slot",
        [
            f"{this} AND bucket = '{label_text(label)}' AND slot = {slot:d}"
            for label, slot, _ in slots
        ],
    )
    _delete(
        connection,
        f"{database}.counter_month",
        [f"{this} AND bucket = '{label_text(label)}'" for label, _ in months],
    )
    gone = sum(amount for _, slot, amount in slots if not is_app_slot(slot))
    gone += sum(amount for _, amount in months)
    if gone:
        # Not the row of slot 0, which compaction adds to: it would wait for this transaction.
        execute(
            connection,
            f"INSERT INTO {database}.counter_ledger (counter, slot, amount)"
            f" VALUES ('{counter}', {shared_slot(app_slots)}, {-gone:d})"
            f" ON DUPLICATE KEY UPDATE amount = counter_ledger.amount + {-gone:d}",
        )


def _delete(connection: AppConnection, table: str, conditions: Sequence[str]) -> None:
    for part in _parts(sorted(conditions)):
        rows = " OR ".join(f"({condition})" for condition in part)
        # With a table in front, as MariaDB knows no index hints without. By the primary key: each
        # condition is one row of it, and no other row is looked at, or waited for.
        execute(connection, f"DELETE {table} FROM {table} FORCE INDEX (PRIMARY) WHERE {rows}")


def _parts(conditions: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(conditions), ROWS_PER_STATEMENT):
        yield conditions[start : start + ROWS_PER_STATEMENT]

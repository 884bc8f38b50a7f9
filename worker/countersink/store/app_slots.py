"""The slots in which the application's own transactions count, its triggers included.

Where the session's ``innodb_snapshot_isolation`` is off, connections share a few slots: a row that
another one has changed since this transaction's snapshot is added to all the same. Where it is on
(MariaDB's default from 11.6.2 on), InnoDB refuses that with error 1020. There each connection has a
slot of its own, in which nobody but compaction changes a row.
"""

from typing import Final

FIRST_SHARED: Final = 256
LAST_SHARED: Final = 511
FIRST_OWN: Final = 1024
OWN_SLOTS: Final = 2**16 - FIRST_OWN
"""All others that the column has: connections of the same slot are so many connections apart."""

APP_ROWS: Final = f"(slot BETWEEN {FIRST_SHARED} AND {LAST_SHARED} OR slot >= {FIRST_OWN})"
"""Finds rows of these slots, which come into the ledger when compaction moves them."""


def is_app_slot(slot: int) -> bool:
    """Whether rows of a slot come into the ledger only when compaction moves them."""
    return FIRST_SHARED <= slot <= LAST_SHARED or slot >= FIRST_OWN


def shared_slot(app_slots: int) -> str:
    """SQL for the slot of a connection among ``app_slots`` that all share."""
    return f"{FIRST_SHARED} + CONNECTION_ID() MOD {app_slots:d}"


def slot(app_slots: int, snapshot_isolation: bool) -> str:
    """SQL for the slot that a connection counts in.

    Args:
        app_slots: over how many slots connections spread where they share them.
        snapshot_isolation: whether the server has the variable ``innodb_snapshot_isolation``.
    """
    if not snapshot_isolation:
        return shared_slot(app_slots)
    own = f"{FIRST_OWN} + CONNECTION_ID() MOD {OWN_SLOTS}"
    return f"IF(@@innodb_snapshot_isolation, {own}, {shared_slot(app_slots)})"

"""Deleting what a tracked table's counter holds, once its triggers are gone."""

from functools import partial
from typing import Final

from countersink.store.connection import Session
from countersink.store.deletion_sql import Deleted, Position, delete_rows
from countersink.store.rerun import rerun

ROWS: Final = 1000
"""Rows per transaction."""
EVERYTHING: Final = 2**31 - 1
"""As a number of rows: all there are."""


def empty(session: Session, counter: str) -> None:
    """Delete a counter's rows in short transactions, each with its part of the ledger.

    Args:
        session: at REPEATABLE READ, outside a transaction.
        counter: of which nobody but compaction writes rows any more.

    Raises:
        Conflict: others were in the way all the time; run it again.
    """
    buckets = session.query(
        "SELECT DISTINCT bucket FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s",
        (counter,),
    )
    for (bucket,) in buckets:
        key: bytes | None = b""
        while key is not None:
            _, last = rerun(partial(_page, session, (counter, bucket, key)))
            key = None if last is None else last[1]


def _page(session: Session, args: tuple[object, ...]) -> tuple[Deleted, Position | None]:
    with session.transaction():
        return delete_rows(
            session,
            "counter_slot",
            "counter = %s AND bucket = %s AND counter_key >= %s",
            args,
            ROWS,
        )

"""Sequences: add, and get your own value, in one statement."""

from countersink.store.connection import Connect
from countersink.store.pool import Pool

__all__ = ["Sequences"]


class Sequences:
    """Numbers that are handed out once. Thread-safe and fork-safe.

    Args:
        connect: makes sessions whose tables were checked.
        pool: for reading.
        database: where the tables are, for statements on the application's connections.
    """

    def __init__(self, connect: Connect, pool: Pool, database: str) -> None:
        self._connect = connect
        self._pool = pool
        self._database = database

"""Row counts that replace COUNT(*): tables whose rows are counted by triggers."""

from countersink.store.connection import Connect
from countersink.store.pool import Pool

__all__ = ["TrackedTables"]


class TrackedTables:
    """The tables whose rows are counted. Thread-safe and fork-safe.

    Args:
        connect: makes sessions at REPEATABLE READ whose tables were checked.
        pool: for reading.
        database: where the tables of countersink are.
    """

    def __init__(self, connect: Connect, pool: Pool, database: str) -> None:
        self._connect = connect
        self._pool = pool
        self._database = database

"""Counting in the application's own transaction."""

from collections.abc import Mapping
from datetime import datetime

from countersink.store.app_connection import AppConnection
from countersink.store.connection import Connect


class Increments:
    """Counts on connections that the application owns. Thread-safe and fork-safe.

    Args:
        connect: makes sessions at REPEATABLE READ whose tables were checked.
        database: where the tables are.
    """

    def __init__(self, connect: Connect, database: str) -> None:
        self._connect = connect
        self._database = database

    def add(
        self,
        connection: AppConnection,
        counter: str,
        amounts: Mapping[str, int],
        at: datetime | None,
    ) -> None:
        """Add ``amounts[key]`` to each key, in the connection's transaction."""
        raise NotImplementedError

    def delete(self, connection: AppConnection, counter: str, key: str) -> None:
        """Take a key's rows away, in the connection's transaction."""
        raise NotImplementedError

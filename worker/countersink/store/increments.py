"""Counting in the application's own transaction.

Rows go to slots by ``CONNECTION_ID()`` (see :mod:`countersink.store.app_slots`), so that
transactions of different connections do not wait for each other; compaction moves them to slot 0,
and into the ledger. One statement counts: :mod:`countersink.store.fence` says what it goes by.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from countersink.store import fence
from countersink.store.app_connection import (
    AppConnection,
    as_one,
    execute,
    may_keep_to_snapshot,
    query,
)
from countersink.store.app_deletion import delete_rows
from countersink.store.app_slots import slot
from countersink.store.buckets import label_text
from countersink.store.checks import check_amounts, check_key, minute_of
from countersink.store.connection import Connect
from countersink.store.errors import Conflict, Refused, UnknownCounter
from countersink.store.fence import Fence
from countersink.store.names import quoted
from countersink.store.policy_changes import check_name
from countersink.store.pool import Pool

ROWS_PER_STATEMENT: Final = 1000
REMEMBERED: Final = 10_000
"""Counters whose settings are remembered; then all are forgotten, and read again when counted."""
ROW_BYTES: Final = 640
"""More than a row of a statement takes whose key is as long as it may be."""
_ATTEMPTS: Final = 20
"""How often settings may change between reading them and counting by them."""

Amounts = Sequence[tuple[bytes, int]]
"""Keys and their amounts, in the order of the keys' bytes."""


class Increments:
    """Counts on connections that the application owns. Thread-safe and fork-safe.

    Args:
        connect: makes sessions at REPEATABLE READ whose tables were checked.
        pool: for reading.
        database: where the tables are.
    """

    def __init__(self, connect: Connect, pool: Pool, database: str) -> None:
        self._connect = connect
        self._pool = pool
        self._database = quoted(database)
        # One assignment replaces a value as a whole: no lock, and nothing that a fork could break.
        self._fences: dict[str, Fence] = {}

    def add(
        self,
        connection: AppConnection,
        counter: str,
        amounts: Mapping[str, int],
        at: datetime | None,
    ) -> None:
        """Add ``amounts[key]`` to each key, in the connection's transaction.

        Raises:
            TypeError, ValueError: an argument cannot be. Nothing was sent.
            UnknownCounter, TrackedCounter: the counter may not be counted so.
            Conflict: somebody changes the counter's settings all the time.
            StoreError: its settings could not be read.
            The driver's own errors, as they are.
        """
        check_name(counter)
        rows = check_amounts(amounts)
        minute = minute_of(at)
        if not rows:
            return
        found = self._fences.get(counter) or self._find(connection, counter)
        parts = list(row_parts(rows, found.room))
        if len(parts) == 1:
            self._add(connection, counter, rows, minute)
            return
        with as_one(connection):
            for part in parts:
                self._add(connection, counter, part, minute)

    def delete(self, connection: AppConnection, counter: str, key: str) -> None:
        """Take a key's rows away, in the connection's transaction.

        Raises:
            As :meth:`add`; not UnknownCounter, as there is nothing to delete then.
        """
        check_name(counter)
        wanted = check_key(key)
        with as_one(connection):
            try:
                found = self._hold(connection, counter)
            except UnknownCounter:
                return
            delete_rows(connection, self._database, counter, wanted, found.app_slots)

    def _add(self, connection: AppConnection, counter: str, rows: Amounts, minute: int) -> None:
        """Add rows in one statement, by the settings as they are."""
        for _ in range(_ATTEMPTS):
            found = self._fences.get(counter) or self._find(connection, counter)
            done = execute(connection, self._statement(found, rows, minute))
            # Asked where no row was changed: maybe 0 was added to what was there. Versions only
            # grow, so settings that are in force now were so a moment ago.
            if done.rows > 0 or self._holds(connection, found):
                return
            self._fences.pop(counter, None)
        raise _changing(counter)

    def _hold(self, connection: AppConnection, counter: str) -> Fence:
        """Keep a counter's settings as they are until the transaction ends."""
        for _ in range(_ATTEMPTS):
            found = self._fences.get(counter) or self._find(connection, counter)
            if self._holds(connection, found):
                return found
            self._fences.pop(counter, None)
        raise _changing(counter)

    def _holds(self, connection: AppConnection, found: Fence) -> bool:
        """Whether settings are still those in force; then they stay so while the lock lasts."""
        return bool(query(connection, f"SELECT 1 {self._fenced(found)} LOCK IN SHARE MODE"))

    def _find(self, connection: AppConnection, counter: str) -> Fence:
        found = fence.read(self._pool, counter)
        if found is None and may_keep_to_snapshot(connection):
            made = fence.find_in(connection, self._database, self._pool, counter)
            if made is not None:
                # Not remembered: others would wait for this transaction, and it may roll back.
                return made
        if found is None:
            found = fence.find(self._pool, self._connect, counter)
        if len(self._fences) >= REMEMBERED:
            self._fences.clear()
        self._fences[counter] = found
        return found

    def _statement(self, found: Fence, rows: Amounts, minute: int) -> str:
        try:
            label = label_text(found.policies.bucket(found.counter, minute))
        except Refused:
            # Its time zone is unknown here: read it again next time, it may be put right.
            self._fences.pop(found.counter, None)
            raise
        own = slot(found.app_slots, found.snapshot_isolation)
        into = f"{self._database}.counter_slot"
        head = f"INSERT INTO {into} (counter, bucket, counter_key, slot, amount) SELECT f.counter"
        if len(rows) == 1:
            ((key, amount),) = rows
            return (
                f"{head}, '{label}', X'{key.hex()}', {own}, {amount:d}"
                f" {self._fenced(found)} LOCK IN SHARE MODE"
                f" ON DUPLICATE KEY UPDATE amount = counter_slot.amount + {amount:d}"
            )
        (first, amount), *others = rows
        values = " UNION ALL ".join(
            [
                f"SELECT X'{first.hex()}' AS counter_key, {amount:d} AS amount",
                *(f"SELECT X'{key.hex()}', {amount:d}" for key, amount in others),
            ]
        )
        return (
            f"{head}, '{label}', new.counter_key, {own}, new.amount"
            f" {self._fenced(found, f' CROSS JOIN ({values}) AS new')}"
            " ORDER BY new.counter_key LOCK IN SHARE MODE"
            " ON DUPLICATE KEY UPDATE amount = counter_slot.amount + new.amount"
        )

    def _fenced(self, found: Fence, joined: str = "") -> str:
        return (
            f"FROM {self._database}.app_counter AS f{joined}"
            f" WHERE f.counter = '{found.counter}' AND f.version = {found.version:d}"
        )

    def __repr__(self) -> str:
        return "Increments()"


def row_parts(rows: Amounts, room: int) -> Iterator[Amounts]:
    """The rows of one statement after the other, each of at most ``room`` bytes."""
    size = max(1, min(ROWS_PER_STATEMENT, room // ROW_BYTES))
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _changing(counter: str) -> Conflict:
    return Conflict(f"somebody changes the settings of {counter} all the time: try again")

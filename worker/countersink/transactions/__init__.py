"""Counting in the application's own transactions, on its own connections. ``Store.increment`` and
``Store.delete`` on an application's connection: the SQL, and rows per statement.

Rows go to slots by ``CONNECTION_ID()`` (see :mod:`countersink.database.app_connection`), so that
transactions of different connections do not wait for each other; compaction moves them to slot 0.
What they go by: :mod:`countersink.transactions.app_settings`. Another statement posts to the
ledger, on a row of the connection, and all are undone where one fails.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from countersink.counting.apply.amounts import Amounts, Cell
from countersink.counting.counters import breakdowns
from countersink.counting.counters.breakdowns import Dimensioned
from countersink.counting.counters.settings import check_name
from countersink.counting.ledger import BucketSums, post_in
from countersink.database.app_connection import AppConnection, as_one, execute, query, slot
from countersink.database.errors import Conflict, UnknownZone
from countersink.database.session import Connect
from countersink.database.sessions import Pool
from countersink.database.sql import LABEL, label_text, parts, quoted, width_number
from countersink.runtime.dimensions import RowKey, check_dimensions
from countersink.runtime.limits import check_amount, check_key
from countersink.transactions.app_settings import AppSettings, SettingsCache

ROWS_PER_STATEMENT: Final = 1000
_DELETIONS: Final = 20
"""How often rows of a key are looked for that came while others were deleted."""


class Increments:
    """Counts on connections that the application owns. Thread-safe and fork-safe.

    Args:
        connect: makes sessions at REPEATABLE READ whose tables were checked.
        pool: for reading.
        database: where the tables are.
    """

    def __init__(self, connect: Connect, pool: Pool, database: str) -> None:
        self._settings = SettingsCache(connect, pool)
        self._database = quoted(database)

    def add(
        self,
        connection: AppConnection,
        counter: str,
        amounts: Sequence[tuple[object, int]],
        at: datetime | None,
    ) -> None:
        """Add amounts to keys, in the connection's transaction; those of dimensions (a mapping in
        place of the key) to the breakdowns as well.

        Raises:
            TypeError, ValueError: an argument cannot be. Nothing was sent.
            UnknownCounter, TrackedCounter: the counter may not be counted so.
            UnknownDimension: it has not declared a dimension.
            StoreError: its settings could not be read.
            The driver's own errors, as they are.
        """
        check_name(counter)
        given = [(_row_key(key), check_amount(amount)) for key, amount in amounts]
        found, minute = self._settings.of(counter, at)
        declared = found.catalog.dimensioned.get(counter) or Dimensioned(counter, ())
        added, sums = Amounts(), BucketSums()
        try:
            for key, amount in given:
                declared.require(key)
                for name, label, own in found.catalog.cells(counter, key, minute):
                    added.add(name, label, own, amount)
                    sums.add_row(name, label, own.encode(), amount)
        except UnknownZone:
            self._settings.forget(counter)  # it may be put right
            raise
        if not given:
            return
        with as_one(connection):
            for cells in added.chunks(ROWS_PER_STATEMENT):
                execute(connection, self._insert(found, cells))
            for name, posting in sums.postings().items():
                post_in(connection, self._database, name, posting)

    def delete(self, connection: AppConnection, counter: str, key: str) -> None:
        """Take a key's rows away, in the connection's transaction.

        Raises:
            As :meth:`add`; not UnknownCounter, as there is nothing to delete then.
            ValueError: also the key ``""`` of a counter that has breakdowns.
            Conflict: others add rows of the key all the time.
        """
        check_name(counter)
        wanted = _key_bytes(key)
        own = self._settings.dimensioned(counter)
        if own is not None and own.breakdowns and not wanted:
            raise breakdowns.empty_key(counter)
        with as_one(connection):
            # Again: rows may have been moved meanwhile to where it has looked already.
            for _ in range(_DELETIONS):
                if not delete_rows(connection, self._database, counter, wanted):
                    return
            raise Conflict(f"others add rows of the key {key!r} of {counter} all the time")

    def _insert(self, found: AppSettings, cells: Sequence[Cell]) -> str:
        """The statement that adds to cells of the counter, and of breakdowns of it."""
        own_slot = slot(found.app_slots, found.snapshot_isolation)
        values = ", ".join(
            f"('{name}', '{label_text(label)}', X'{key.encode().hex()}', {width_number(label):d},"
            f" {own_slot}, {amount:d})"
            for name, label, key, amount in cells
        )
        return (
            f"INSERT INTO {self._database}.counter_slot"
            f" (counter, bucket, counter_key, width, slot, amount) VALUES {values}"
            f"{found.dialect.upsert_add('counter_slot', 'amount')}"
        )

    def __repr__(self) -> str:
        return "Increments()"


def _key_bytes(key: object) -> bytes:
    """The UTF-8 of ``key`` as it is counted; of any ``str``, such as a member of an enum.

    Raises:
        TypeError, ValueError: as :func:`countersink.runtime.limits.check_key`.
    """
    return check_key(str.__str__(key) if isinstance(key, str) else key).encode()


def _row_key(key: object) -> RowKey:
    """The row key of a key or of dimensions.

    Raises:
        TypeError, ValueError: it is neither.
    """
    return check_dimensions(key) if isinstance(key, Mapping) else _key_bytes(key).decode()


DELETED_PER_STATEMENT: Final = 250
"""Below 50 KB, whatever the names: less than any server takes."""

_ALL: Final = f"LIMIT {2**64 - 1}"
"""Whatever ``sql_select_limit`` the application has set."""


def delete_rows(connection: AppConnection, database: str, counter: str, key: bytes) -> bool:
    """Delete a key's rows, and post that they are gone, in the same transaction; whether there were
    any.

    They are read under a lock, and exactly those are deleted: at READ COMMITTED there may be others
    by then.

    Args:
        connection: in a transaction.
        database: where the tables are, quoted.
        counter: the counter; its name was checked.
        key: the key.

    Raises:
        The driver's own errors, as they are.
    """
    this = f"counter = '{counter}' AND counter_key = X'{key.hex()}'"
    table = f"{database}.counter_slot"
    # A label is a number, whatever the application has its driver make of dates.
    found = query(
        connection,
        f"SELECT {LABEL} AS label, slot, CAST(amount AS CHAR) AS amount, sketched"
        f" FROM {table} FORCE INDEX (by_key) WHERE {this} {_ALL} FOR UPDATE",
    )
    gone = BucketSums()
    conditions, sketched = [], []
    for label, at, amount, has_members in (map(int, row) for row in found):
        gone.add_row(counter, label, key, amount)
        bucket = f"bucket = '{label_text(label)}' AND width = {width_number(label):d}"
        conditions.append(f"{this} AND {bucket} AND slot = {at:d}")
        sketched += conditions[-1:] if has_members else []
    _delete(connection, table, conditions)
    _delete(connection, f"{database}.visitor_slot", sketched)
    # On a row of this connection: nobody waits for this transaction.
    for posting in gone.postings().values():
        post_in(connection, database, counter, -posting)
    return bool(found)


def _delete(connection: AppConnection, table: str, conditions: Sequence[str]) -> None:
    for part in parts(sorted(conditions), DELETED_PER_STATEMENT):
        rows = " OR ".join(f"({condition})" for condition in part)
        # With a table in front, as MariaDB knows no index hints without. By the primary key: each
        # condition is one row of it, and no other row is looked at, or waited for.
        execute(connection, f"DELETE {table} FROM {table} FORCE INDEX (PRIMARY) WHERE {rows}")

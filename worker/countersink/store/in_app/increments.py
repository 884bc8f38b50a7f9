"""``Store.increment`` and ``Store.delete`` on an application's connection: the SQL, rows per
statement, and the error if settings change all the time.

Rows go to slots by ``CONNECTION_ID()`` (see :mod:`countersink.store.in_app.connection`), so that
transactions of different connections do not wait for each other; compaction moves them to slot 0.
One statement counts: :mod:`countersink.store.in_app.settings_version` says what it goes by. Another
one posts to the ledger, on a row of the connection, and both are undone where either fails.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from countersink.runtime.dimensions import RowKey, check_row_key
from countersink.runtime.limits import check_amount, check_key, minute_of
from countersink.store.connection import Connect
from countersink.store.counters import breakdowns
from countersink.store.counters.breakdowns import Breakdown, Dimensioned
from countersink.store.counters.settings import check_name
from countersink.store.errors import Conflict, Refused, UnknownCounter
from countersink.store.in_app import settings_version
from countersink.store.in_app.connection import (
    AppConnection,
    as_one,
    execute,
    may_keep_to_snapshot,
    query,
    slot,
)
from countersink.store.in_app.settings_version import Fence
from countersink.store.ledger.postings import BucketSums, Posting, key_weight, post_in
from countersink.store.sessions import Pool
from countersink.store.sql import label_text, parts, quoted

ROWS_PER_STATEMENT: Final = 1000
REMEMBERED: Final = 10_000
"""Counters whose settings are remembered; then all are forgotten, and read again when counted."""
_ATTEMPTS: Final = 20
"""How often settings may change between reading them and counting by them."""
_LAG_S: Final = 2.0
"""For so long in all a node of Galera is waited for that has not applied settings yet."""

_pause: Final = time.sleep

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
        amounts: Mapping[RowKey, int] | Mapping[str, int],
        at: datetime | None,
    ) -> None:
        """Add ``amounts[key]`` to each key, in the connection's transaction; what has dimensions to
        the breakdowns as well.

        Raises:
            TypeError, ValueError: an argument cannot be. Nothing was sent.
            UnknownCounter, TrackedCounter: the counter may not be counted so.
            UnknownDimension: it has not declared a dimension.
            Conflict: somebody changes the counter's settings all the time.
            StoreError: its settings could not be read.
            The driver's own errors, as they are.
        """
        check_name(counter)
        given = _row_amounts(amounts)
        rows = _by_bytes((key if isinstance(key, str) else "", amount) for key, amount in given)
        minute = minute_of(datetime.now(UTC) if at is None else at)
        if not rows:
            return
        found = self._fences.get(counter) or self._find(connection, counter)
        with as_one(connection):
            # All of one bucket: the first statement keeps the settings as they are.
            for part in parts(rows, ROWS_PER_STATEMENT):
                found, label = self._add(connection, counter, part, minute)
            self._post(connection, counter, label, rows)
            for each, composed in _broken_down(found, given, minute):
                label = found.policies.bucket(each.name, minute)
                for part in parts(composed, ROWS_PER_STATEMENT):
                    execute(connection, self._statement(found, part, label, each.name))
                self._post(connection, each.name, label, composed)
            if found.locks_are_local:
                settings_version.write_fence(connection, self._database, counter)

    def delete(self, connection: AppConnection, counter: str, key: str) -> None:
        """Take a key's rows away, in the connection's transaction.

        Raises:
            As :meth:`add`; not UnknownCounter, as there is nothing to delete then.
            ValueError: also the key ``""`` of a counter that has breakdowns.
        """
        check_name(counter)
        wanted = _key_bytes(key)
        with as_one(connection):
            try:
                found = self._hold(connection, counter)
            except UnknownCounter:
                return
            own = found.policies.dimensioned.get(counter)
            if own is not None and own.breakdowns and not wanted:
                raise breakdowns.empty_key(counter)
            members = counter in found.policies.salt_days
            delete_rows(connection, self._database, counter, wanted, members=members)
            if found.locks_are_local:
                settings_version.write_fence(connection, self._database, counter)

    def _post(self, connection: AppConnection, counter: str, label: int, rows: Amounts) -> None:
        total = sum(amount for _, amount in rows)
        weighed = sum(amount * key_weight(key) for key, amount in rows)
        post_in(connection, self._database, counter, Posting.of(label, total, weighed))

    def _add(
        self, connection: AppConnection, counter: str, rows: Amounts, minute: int
    ) -> tuple[Fence, int]:
        """Add rows in one statement, by the settings as they are; these, and the label of their
        bucket.
        """
        for _ in range(_ATTEMPTS):
            found = self._fences.get(counter) or self._find(connection, counter)
            label = self._label(found, minute)
            done = execute(connection, self._statement(found, rows, label))
            # Asked where no row was changed: maybe 0 was added to what was there. Versions only
            # grow, so settings that are in force now were so a moment ago.
            if done.rows > 0 or self._holds(connection, found):
                return found, label
            self._forget(found)
        raise _changing(found)

    def _hold(self, connection: AppConnection, counter: str) -> Fence:
        """Keep a counter's settings as they are until the transaction ends; what they are."""
        for _ in range(_ATTEMPTS):
            found = self._fences.get(counter) or self._find(connection, counter)
            if self._holds(connection, found):
                return found
            self._forget(found)
        raise _changing(found)

    def _forget(self, found: Fence) -> None:
        """Have settings read again that do not hold where the application's connection is."""
        self._fences.pop(found.counter, None)
        if found.locks_are_local:
            # They were read on the writer, and other nodes apply later what it commits.
            _pause(_LAG_S / _ATTEMPTS)

    def _holds(self, connection: AppConnection, found: Fence) -> bool:
        """Whether settings are still those in force; then they stay so while the lock lasts."""
        return bool(query(connection, f"SELECT 1 {self._fenced(found)} LOCK IN SHARE MODE"))

    def _find(self, connection: AppConnection, counter: str) -> Fence:
        found = settings_version.read(self._pool, counter)
        if found is None and may_keep_to_snapshot(connection):
            made = settings_version.find_in(connection, self._database, self._pool, counter)
            if made is not None:
                # Not remembered: others would wait for this transaction, and it may roll back.
                return made
        if found is None:
            found = settings_version.find(self._pool, self._connect, counter)
        if len(self._fences) >= REMEMBERED:
            self._fences.clear()
        self._fences[counter] = found
        return found

    def _label(self, found: Fence, minute: int) -> int:
        try:
            return found.policies.bucket(found.counter, minute)
        except Refused:
            # Its time zone is unknown here: read it again next time, it may be put right.
            self._fences.pop(found.counter, None)
            raise

    def _statement(
        self, found: Fence, rows: Amounts, label: int, breakdown: str | None = None
    ) -> str:
        counter = "f.counter" if breakdown is None else f"'{breakdown}'"
        bucket = label_text(label)
        own = slot(found.app_slots, found.snapshot_isolation)
        into = f"{self._database}.counter_slot"
        head = f"INSERT INTO {into} (counter, bucket, counter_key, slot, amount) SELECT {counter}"
        if len(rows) == 1:
            ((key, amount),) = rows
            return (
                f"{head}, '{bucket}', X'{key.hex()}', {own}, {amount:d}"
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
            f"{head}, '{bucket}', new.counter_key, {own}, new.amount"
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


def _key_bytes(key: object) -> bytes:
    """The UTF-8 of ``key`` as it is counted; of any ``str``, such as a member of an enum.

    Raises:
        TypeError, ValueError: as :func:`countersink.runtime.limits.check_key`.
    """
    return check_key(str.__str__(key) if isinstance(key, str) else key).encode()


def _row_amounts(amounts: object) -> list[tuple[RowKey, int]]:
    """The keys as they are counted, those with dimensions as :func:`check_row_key` has made them,
    with their amounts.

    Raises:
        TypeError: not a mapping. TypeError, ValueError: as :func:`_key_bytes`, and as
            :func:`countersink.runtime.limits.check_amount`.
    """
    if not isinstance(amounts, Mapping):
        raise TypeError(f"amounts is a mapping of key to amount, not {type(amounts).__name__}")
    # A list of it first: another thread may be changing it.
    return [(_row_key(key), check_amount(amount)) for key, amount in list(amounts.items())]


def _row_key(key: object) -> RowKey:
    """A key, or dimensions that :func:`check_row_key` has made.

    Raises:
        TypeError, ValueError: it is neither.
    """
    if isinstance(key, tuple):
        with suppress(TypeError, ValueError):
            checked = check_row_key(dict(key))
            if checked == key:
                return checked
    return _key_bytes(key).decode()


def _by_bytes(amounts: Iterable[tuple[str, int]]) -> list[tuple[bytes, int]]:
    """One amount for each key as UTF-8, in the order of the table's primary key."""
    found: dict[str, int] = {}
    for key, amount in amounts:
        found[key] = found.get(key, 0) + amount
    return sorted((key.encode(), amount) for key, amount in found.items())


def _broken_down(
    found: Fence, given: Sequence[tuple[RowKey, int]], minute: int
) -> Iterator[tuple[Breakdown, list[tuple[bytes, int]]]]:
    """What each breakdown counts of some rows.

    Raises:
        UnknownDimension: a row has one that is not declared.
    """
    own = found.policies.dimensioned.get(found.counter, Dimensioned(found.counter, ()))
    for key, _ in given:
        own.require(key)
    broken = [(key, amount) for key, amount in given if not key or not isinstance(key, str)]
    for each in own.breakdowns if broken else ():
        if minute >= each.since:
            yield each, _by_bytes((each.key(key), amount) for key, amount in broken)


def _changing(found: Fence) -> Conflict:
    if found.locks_are_local:
        return Conflict(
            f"the connection's Galera node has not applied the settings of {found.counter} yet, or"
            " somebody changes them all the time: try again"
        )
    return Conflict(f"somebody changes the settings of {found.counter} all the time: try again")


DELETED_PER_STATEMENT: Final = 250
"""Below 50 KB, whatever the names: less than any server takes."""

_SECONDS: Final = "TIMESTAMPDIFF(SECOND, '1970-01-01', bucket)"
"""A label; a number, whatever the application has its driver make of dates."""

_ALL: Final = f"LIMIT {2**64 - 1}"
"""Whatever ``sql_select_limit`` the application has set."""


def delete_rows(
    connection: AppConnection, database: str, counter: str, key: bytes, *, members: bool = False
) -> None:
    """Delete a key's rows, and post that they are gone, in the same transaction.

    They are read under a lock, and exactly those are deleted: at READ COMMITTED there may be others
    by then.

    Args:
        connection: in a transaction, which holds the counter's row of ``app_counter``.
        database: where the tables are, quoted.
        counter: the counter; its name was checked.
        key: the key.
        members: the counter counts its different members, whose rows lie beside these.

    Raises:
        The driver's own errors, as they are.
    """
    this = f"counter = '{counter}' AND counter_key = X'{key.hex()}'"
    found = {
        table: [
            (int(label), int(at), int(amount))
            for label, at, amount in query(
                connection,
                f"SELECT {_SECONDS} AS label, {column} AS slot, CAST(amount AS CHAR) AS amount"
                f" FROM {database}.{table} FORCE INDEX (by_key) WHERE {this} {_ALL} FOR UPDATE",
            )
        ]
        for table, column in (("counter_slot", "slot"), ("counter_month", "0"))
    }
    # On a row of this connection: nobody waits for this transaction.
    for table, rows in found.items():
        month = table == "counter_month"
        gone = BucketSums(month=month)
        conditions = []
        for label, at, amount in rows:
            gone.add_row(counter, label, key, amount)
            one_slot = "" if month else f" AND slot = {at:d}"
            conditions.append(f"{this} AND bucket = '{label_text(label)}'{one_slot}")
        _delete(connection, f"{database}.{table}", conditions)
        if members:
            beside = "visitor_month" if month else "visitor_slot"
            _delete(connection, f"{database}.{beside}", conditions)
        for posting in gone.postings().values():
            post_in(connection, database, counter, -posting)


def _delete(connection: AppConnection, table: str, conditions: Sequence[str]) -> None:
    for part in parts(sorted(conditions), DELETED_PER_STATEMENT):
        rows = " OR ".join(f"({condition})" for condition in part)
        # With a table in front, as MariaDB knows no index hints without. By the primary key: each
        # condition is one row of it, and no other row is looked at, or waited for.
        execute(connection, f"DELETE {table} FROM {table} FORCE INDEX (PRIMARY) WHERE {rows}")

"""Increments in the application's own transactions, and deletions of keys (``Increments``). The
settings of counters that they need are kept for a minute (``SettingsCache``).

The number of the connection decides which slot a row goes to (see
:mod:`countersink.database.app_connection`), so that transactions of different connections do not
wait for each other. Compaction moves the rows to slot 0 later. One more statement for the counter,
and one for each breakdown, adds the sums to the ledger, in rows for this connection. If one
statement fails, all are rolled back.

The transaction locks neither the row ``control`` nor the counter's row, so it does not wait for a
change of settings. (Nor does a change wait for it, except for transactions that have counted events
from the future, or count a counter for the first time.) So it may use settings that were changed a
minute ago, or longer ago if its process was stopped in between. Counts are exact nevertheless:

- A row says its own width. If the resolution has changed, the row only has another width.
- The column ``zone_fixed`` of a counter has a time at which an application was about to count in
  it. It is committed before the first bucket is computed, and for ten minutes from then on the
  counter's time zone cannot change. (Once the counter was counted, it never changes.)
- A breakdown (a counter of the same events by dimensions) begins at a midnight that is at least
  ten minutes after its declaration. The minute of an event is computed from settings that are at
  most a minute old. So an event that misses a new breakdown is before that midnight, however late
  its row is written. For an event from the future the settings are read anew.

Two clocks measure the settings' age, because the monotonic clock may stop while a machine sleeps,
and the wall clock may be set."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from countersink.counting.apply.amounts import Amounts, Cell
from countersink.counting.apply.guards import read_control
from countersink.counting.counters import breakdowns
from countersink.counting.counters.all_counters import insert_rows, known_names, refuse_tracked
from countersink.counting.counters.breakdowns import Dimensioned, read_dimensioned
from countersink.counting.counters.catalog import Catalog, read_schemes
from countersink.counting.counters.settings import check_name
from countersink.counting.errors import UnknownCounter
from countersink.counting.ledger import BucketSums, post_in
from countersink.database.app_connection import AppConnection, all_or_nothing, execute, query, slot
from countersink.database.errors import Conflict, UnknownZone
from countersink.database.session import Connect, Session, rerun
from countersink.database.sessions import Pool
from countersink.database.sql import LABEL, Dialect, label_text, parts, quoted, width_number
from countersink.runtime.dimensions import RowKey, check_dimensions
from countersink.runtime.limits import check_amount, check_key, minute_of

MAX_AGE_S: Final = 60.0
"""Seconds for which the settings of a counter are kept."""
MAX_KEPT: Final = 10_000
"""Maximum of counters whose settings are kept. At the next one all are dropped."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The times of this machine's monotonic clock and wall clock, in seconds."""

    monotonic: float
    wall: float

    @staticmethod
    def now() -> "Clocks":
        """Return the present times."""
        return Clocks(time.monotonic(), time.time())


@dataclass(frozen=True, slots=True)
class AppSettings:
    """The settings of a counter, and the time at which they were read.

    Attributes:
        catalog: catalog of the counter and its breakdowns, without caps, marks and salts.
        app_slots: number of slots that the application's connections share.
        dialect: the server's kind and version.
        snapshot_isolation: True if the server has the variable ``innodb_snapshot_isolation``.
        asked: both clocks just before the settings were read.
        answered: time on the monotonic clock just after they were read.
        now_ms: time on the server's clock while they were read, in Unix milliseconds."""

    catalog: Catalog
    app_slots: int
    dialect: Dialect
    snapshot_isolation: bool
    asked: Clocks
    answered: float
    now_ms: int

    def are_fresh(self, now: Clocks) -> bool:
        """Return whether both clocks say that the settings are 0 to less than 60 seconds old."""
        return all(
            0 <= age < MAX_AGE_S
            for age in (now.monotonic - self.asked.monotonic, now.wall - self.asked.wall)
        )

    def minute(self, now: Clocks) -> int:
        """Return the present Unix minute on the server's clock. It may lag behind by the time that
        the server's answer took, but it is never ahead."""
        return int(self.now_ms + 1000 * (now.monotonic - self.answered)) // 60_000


class SettingsCache:
    """Keeps the settings of counters for a minute. Thread-safe and fork-safe.

    Args:
        connect: opens a session to write, at REPEATABLE READ, and checks the tables' version.
        pool: sessions for reading.
        clocks: returns the present times. Tests pass another function."""

    def __init__(
        self, connect: Connect, pool: Pool, clocks: Callable[[], Clocks] = Clocks.now
    ) -> None:
        self._connect = connect
        self._pool = pool
        self._clocks = clocks
        # Each change is one assignment, so no lock is needed, which a fork could leave locked.
        self._known: dict[str, AppSettings] = {}

    def for_event(self, counter: str, at: datetime | None) -> tuple[AppSettings, int]:
        """Return the settings by which an event is counted, and the event's Unix minute. Settings
        are read anew if none are kept, if the kept ones are not fresh (see
        :meth:`AppSettings.are_fresh`), or if the event is in the future.

        Args:
            counter: the counter's name, which was checked.
            at: time of the event, an aware datetime; None for the present time of the server.

        Raises:
            TypeError, ValueError: ``at`` is invalid (:func:`countersink.runtime.limits.minute_of`).
            UnknownCounter: strict mode is on, and the counter was neither created nor ever counted.
            TrackedCounter: triggers count the rows of a tracked table in this counter.
            StoreError: a query failed."""
        minute = None if at is None else minute_of(at)
        found, anew = self._known.get(counter), False
        while True:
            now = self._clocks()
            if found is not None and found.are_fresh(now):
                current = found.minute(now)
                if minute is None:
                    return found, current
                if anew or minute <= current:
                    return found, minute
            found, anew = self.read(counter), True

    def dimensioned(self, counter: str) -> tuple[Dimensioned | None, Dialect]:
        """Return the dimensions and breakdowns of a counter (None if it has no dimensions or does
        not exist), and the server's kind and version. Kept settings are not used.

        Raises:
            TrackedCounter: triggers count the rows of a tracked table in this counter.
            StoreError: a query failed."""

        def work(session: Session) -> tuple[Dimensioned | None, Dialect]:
            refuse_tracked(session, counter)
            return read_dimensioned(session, counter).get(counter), session.dialect

        return self._pool.read(work)

    def forget(self, counter: str) -> None:
        """Drop a counter's kept settings, so that the next use reads them anew: the caller got an
        UnknownZone with them, and somebody may correct the settings."""
        self._known.pop(counter, None)

    def read(self, counter: str) -> AppSettings:
        """Read, keep and return a counter's settings. Call :func:`_fix_zone` before if the
        counter's time zone could change soon.

        Raises:
            UnknownCounter: strict mode is on, and the counter was neither created nor ever counted.
            TrackedCounter, StoreError: a tracked table's triggers count in it; a query failed."""
        work = partial(_read, counter=counter, asked=self._clocks(), clocks=self._clocks)
        while (settings := self._pool.read(work)) is None:
            with self._connect() as session:
                rerun(partial(_fix_zone, session, counter))
        if len(self._known) >= MAX_KEPT:
            self._known.clear()
        self._known[counter] = settings
        return settings


_FIXED: Final = "zone_fixed > UTC_TIMESTAMP(3) - INTERVAL 5 MINUTE"
"""SQL condition for a counter whose time zone stays the same for five more minutes: a time zone may
change again ten minutes after it was fixed."""


def _read(
    session: Session, counter: str, asked: Clocks, clocks: Callable[[], Clocks]
) -> AppSettings | None:
    """Read a counter's settings; None if :func:`_fix_zone` must be called first, because the
    counter's time zone could change within five minutes. ``asked``: the times just before the call;
    ``clocks``: returns the present times. Errors are those of :meth:`SettingsCache.read`."""
    refuse_tracked(session, counter)
    control = read_control(session, lock="")
    if control.strict and not known_names(session, (counter,)):
        raise UnknownCounter(
            f"no counter is called {counter!r}, and strict mode allows only known counters:"
            f" `countersink counter set {counter}` creates it"
        )
    fixed = session.query(
        f"SELECT app_slots, {_FIXED}"
        " OR EXISTS (SELECT 1 FROM counter_ledger AS l WHERE l.counter = name)"
        " FROM counter WHERE name = %s",
        (counter,),
    )
    if not fixed or not fixed[0][1]:
        return None
    dimensioned = read_dimensioned(session, counter)
    broken_down = dimensioned[counter].breakdowns if counter in dimensioned else ()
    schemes = read_schemes(session, [counter, *(each.name for each in broken_down)])
    return AppSettings(
        Catalog(control.catalog_version, control.strict, schemes, dimensioned=dimensioned),
        int(fixed[0][0]),
        session.dialect,
        session.snapshot_isolation,
        asked,
        clocks().monotonic,
        control.now,
    )


def _fix_zone(session: Session, counter: str) -> None:
    """Keep a counter's time zone from changing for ten minutes from now on, by ``zone_fixed`` in
    the counter's row. If there is no row, insert it with the default settings."""
    update = "UPDATE counter SET zone_fixed = UTC_TIMESTAMP(3) WHERE name = %s"
    if not session.execute(update, (counter,)):
        with session.transaction():
            insert_rows(session, [counter], read_control(session).defaults)
            session.execute(update, (counter,))


ROWS_PER_STATEMENT: Final = 1000
_DELETIONS: Final = 20
"""Attempts to delete all rows of a key while other transactions add rows."""


class Increments:
    """Adds to counters and deletes keys on the application's connections. Thread- and fork-safe.

    Args:
        connect, pool: sessions to read and write settings; see :class:`SettingsCache`.
        database: name of countersink's database, not quoted."""

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
        """Add amounts to keys, in the connection's transaction or, if it has none, in a new one,
        which is committed.

        Args:
            connection: a connection of the application.
            counter: name of the counter.
            amounts: pairs of a key and an amount. Instead of a key: a mapping of dimensions to
                values, whose amount is also added to breakdowns of the counter.
            at: time of the events, an aware datetime; None for the present time.

        Raises:
            TypeError, ValueError: an argument is invalid. Nothing was sent.
            UnknownCounter: strict mode is on, and the counter was neither created nor ever counted.
            TrackedCounter: triggers count the rows of a tracked table in this counter.
            UnknownDimension: the counter has not declared a dimension in ``amounts``.
            StoreError: the counter's settings could not be read, or its time zone is unknown here.
            The driver's own exceptions, unchanged."""
        check_name(counter)
        given = [(_row_key(key), check_amount(amount)) for key, amount in amounts]
        found, minute = self._settings.for_event(counter, at)
        declared = found.catalog.dimensioned.get(counter) or Dimensioned(counter, ())
        added, sums = Amounts(), BucketSums()
        try:
            for key, amount in given:
                declared.require(key)
                for name, label, cell_key in found.catalog.cells(counter, key, minute):
                    added.add(name, label, cell_key, amount)
                    sums.add_row(name, label, cell_key.encode(), amount)
        except UnknownZone:
            self._settings.forget(counter)  # tzdata or the settings may be corrected
            raise
        if not given:
            return
        with all_or_nothing(connection):
            for cells in added.chunks(ROWS_PER_STATEMENT):
                execute(connection, self._insert(found, cells))
            post_in(connection, self._database, sums, found.dialect)

    def delete(self, connection: AppConnection, counter: str, key: str) -> None:
        """Delete the rows of a key, if any, with their sketches: in the connection's transaction
        or, if it has none, in a new one, which is committed.

        Raises:
            TypeError, ValueError: an argument is invalid, or the counter has breakdowns and the key
                is empty.
            TrackedCounter: triggers count the rows of a tracked table in this counter.
            StoreError: the counter's dimensions could not be read.
            Conflict: other transactions went on adding rows of the key; nothing was deleted.
            The driver's own exceptions, unchanged."""
        check_name(counter)
        wanted = _key_bytes(key)
        dimensioned, dialect = self._settings.dimensioned(counter)
        if dimensioned is not None and dimensioned.breakdowns and not wanted:
            raise breakdowns.empty_key(counter)
        with all_or_nothing(connection):
            # Repeated, as rows may have moved meanwhile to places that were read before.
            for _ in range(_DELETIONS):
                if not delete_rows(connection, self._database, counter, wanted, dialect):
                    return
            raise Conflict(f"the key {key!r} of {counter} is counted by others all the time")

    def _insert(self, found: AppSettings, cells: Sequence[Cell]) -> str:
        """Return the SQL, with all values in it, that adds to cells of a counter and breakdowns."""
        slot_sql = slot(found.app_slots, found.snapshot_isolation)
        values = ", ".join(
            f"('{name}', '{label_text(label)}', X'{key.encode().hex()}', {width_number(label):d},"
            f" {slot_sql}, {amount:d})"
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
    """Return a key in UTF-8, cut if it has more than 255 bytes. The key may be of any subclass of
    ``str``, such as an enum. Raises TypeError if it is no ``str``, ValueError if it has no UTF-8
    form."""
    return check_key(str.__str__(key) if isinstance(key, str) else key).encode()


def _row_key(key: object) -> RowKey:
    """Check a key, or a mapping of dimensions to values, and return it as a ``RowKey``. Raises
    TypeError or ValueError if it is invalid."""
    return check_dimensions(key) if isinstance(key, Mapping) else _key_bytes(key).decode()


DELETED_PER_STATEMENT: Final = 250
"""Maximum of rows in a DELETE, which then has at most 50 KB, within any server's limit."""

_NO_LIMIT: Final = f"LIMIT {2**64 - 1}"
"""SQL that overrides the application's ``sql_select_limit``."""


def delete_rows(
    connection: AppConnection, database: str, counter: str, key: bytes, dialect: Dialect
) -> bool:
    """Delete the rows of a key with their sketches, and post the change to the ledger, in the same
    transaction. Return True if there were rows: the caller then calls this function again, because
    rows may have been added or moved meanwhile. Return False if there were none.

    The DELETE names exactly the rows that were read under a lock, because at READ COMMITTED other
    transactions may insert more rows in between.

    Args:
        connection: a connection of the application, in a transaction.
        database: name of countersink's database, quoted.
        counter: name of the counter, which was checked.
        key: the key in UTF-8.
        dialect: the server's kind and version.

    The driver's own exceptions are raised, unchanged."""
    of_key = f"counter = '{counter}' AND counter_key = X'{key.hex()}'"
    table = f"{database}.counter_slot"
    # Labels are numbers, as drivers convert dates by the application's options.
    found = query(
        connection,
        f"SELECT {LABEL} AS label, slot, CAST(amount AS CHAR) AS amount, sketched"
        f" FROM {table} FORCE INDEX (by_key) WHERE {of_key} {_NO_LIMIT} FOR UPDATE",
    )
    deleted = BucketSums()
    conditions, sketched = [], []
    for label, row_slot, amount, has_members in (map(int, row) for row in found):
        deleted.add_row(counter, label, key, amount)
        bucket = f"bucket = '{label_text(label)}' AND width = {width_number(label):d}"
        conditions.append(f"{of_key} AND {bucket} AND slot = {row_slot:d}")
        sketched += conditions[-1:] if has_members else []
    _delete(connection, table, conditions)
    _delete(connection, f"{database}.visitor_slot", sketched)
    # On this connection's rows of the ledger, so that no other transaction waits for this one.
    post_in(connection, database, -deleted, dialect)
    return bool(found)


def _delete(connection: AppConnection, table: str, conditions: Sequence[str]) -> None:
    for part in parts(sorted(conditions), DELETED_PER_STATEMENT):
        rows = " OR ".join(f"({condition})" for condition in part)
        # With a table name first, as MariaDB has no index hints otherwise. By the primary key: each
        # condition is one of its rows, and no other row is read or locked.
        execute(connection, f"DELETE {table} FROM {table} FORCE INDEX (PRIMARY) WHERE {rows}")

"""Counting in the application's own transactions, on its own connections. ``Store.increment`` and
``Store.delete`` on an application's connection: the SQL, and rows per statement. Settings by which
an application's own transactions count (``AppSettings``), remembered for a minute; the row of
``counter`` that fixes a time zone before anything is counted in it; refusals of tracked counters
and, in strict mode, of unknown ones.

Rows go to slots by ``CONNECTION_ID()`` (see :mod:`countersink.database.app_connection`), so that
transactions of different connections do not wait for each other; compaction moves them to slot 0.
What they go by: :mod:`countersink.transactions`. Another statement posts to the
ledger, on a row of the connection, and all are undone where one fails.

Such a transaction takes no lock for them, neither on ``control`` nor on the counter. A change waits
for no application (but that of a resolution for one that has counted events from the future), and
none waits for a change. So a transaction may count by settings that were
changed a minute ago, or, if its process was stopped in between, longer ago. That is exact all the
same:

- A row says the width of its bucket, so another resolution only means rows of another width.
- The time zone of a counter does not change once its row says that applications count in it
  (``zone_fixed``), which is written, and committed, before the first bucket is computed.
- A breakdown begins at a midnight at least ten minutes after it was declared. The minute of an
  event is taken while the settings are at most a minute old: then it is before that midnight,
  however much later the row is written. For an event from the future they are read anew.

Ages are measured by two clocks: the monotonic one may stand still while a machine sleeps, the other
one may be set.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from countersink.counting.apply.amounts import Amounts, Cell
from countersink.counting.apply.control import read_control
from countersink.counting.counters import breakdowns
from countersink.counting.counters.all_counters import known_names, refuse_tracked
from countersink.counting.counters.breakdowns import Dimensioned, read_dimensioned
from countersink.counting.counters.catalog import Catalog, read_schemes
from countersink.counting.counters.settings import check_name
from countersink.counting.errors import UnknownCounter
from countersink.counting.ledger import BucketSums, post_in
from countersink.database.app_connection import AppConnection, as_one, execute, query, slot
from countersink.database.errors import Conflict, UnknownZone
from countersink.database.session import Connect, Session, rerun
from countersink.database.sessions import Pool
from countersink.database.sql import LABEL, Dialect, label_text, parts, quoted, width_number
from countersink.runtime.dimensions import RowKey, check_dimensions
from countersink.runtime.limits import check_amount, check_key, minute_of

KEPT_S: Final = 60.0
"""For how long settings are remembered."""
REMEMBERED: Final = 10_000
"""Counters whose settings are remembered; then all are forgotten, and read again when counted."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The monotonic clock and the wall clock of this machine, in seconds."""

    monotonic: float
    wall: float

    @staticmethod
    def now() -> "Clocks":
        """What they show."""
        return Clocks(time.monotonic(), time.time())


@dataclass(frozen=True, slots=True)
class AppSettings:
    """Settings of a counter, as of one moment.

    Attributes:
        catalog: of it and its breakdowns.
        app_slots: over how many slots the application's transactions spread.
        dialect: of the server.
        snapshot_isolation: whether the server has ``innodb_snapshot_isolation``.
        asked: the clocks before they were read.
        answered: the monotonic clock after it.
        now_ms: Unix ms of the server's clock in between.
    """

    catalog: Catalog
    app_slots: int
    dialect: Dialect
    snapshot_isolation: bool
    asked: Clocks
    answered: float
    now_ms: int

    def are_fresh(self, now: Clocks) -> bool:
        """Whether they are at most a minute old, by both clocks."""
        return all(
            0 <= age < KEPT_S
            for age in (now.monotonic - self.asked.monotonic, now.wall - self.asked.wall)
        )

    def minute(self, now: Clocks) -> int:
        """The Unix minute on the server's clock, or an earlier one."""
        return int(self.now_ms + 1000 * (now.monotonic - self.answered)) // 60_000


class SettingsCache:
    """Settings of counters, read where they are not remembered. Thread-safe and fork-safe.

    Args:
        connect: makes sessions at REPEATABLE READ whose tables were checked.
        pool: for reading.
        clocks: what the time is; for tests.
    """

    def __init__(
        self, connect: Connect, pool: Pool, clocks: Callable[[], Clocks] = Clocks.now
    ) -> None:
        self._connect = connect
        self._pool = pool
        self._clocks = clocks
        # One assignment replaces a value as a whole: no lock, and nothing that a fork could break.
        self._known: dict[str, AppSettings] = {}

    def of(self, counter: str, at: datetime | None) -> tuple[AppSettings, int]:
        """The settings to count a counter by, and the Unix minute of the event.

        Args:
            counter: its name, which was checked.
            at: when the event happened, aware; None: now, on the server's clock.

        Raises:
            TypeError, ValueError: as :func:`countersink.runtime.limits.minute_of`.
            UnknownCounter: in strict mode, of a counter that was neither made nor ever counted.
            TrackedCounter: it is that of a tracked table.
            StoreError: MySQL did not do its part.
        """
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

    def dimensioned(self, counter: str) -> Dimensioned | None:
        """What a counter with dimensions has declared; of one that is not known, too.

        Raises:
            TrackedCounter, StoreError: as :meth:`of`.
        """

        def work(session: Session) -> Dimensioned | None:
            refuse_tracked(session, counter)
            return read_dimensioned(session, counter).get(counter)

        return self._pool.read(work)

    def forget(self, counter: str) -> None:
        """Read the settings anew the next time."""
        self._known.pop(counter, None)

    def read(self, counter: str) -> AppSettings:
        """The settings as they are now, and to be remembered.

        Raises:
            As :meth:`of`.
        """
        look = partial(_read, counter=counter, asked=self._clocks(), clocks=self._clocks)
        while (settings := self._pool.read(look)) is None:
            with self._connect() as session:
                rerun(partial(_fix_zone, session, counter))
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[counter] = settings
        return settings


_FIXED: Final = "zone_fixed > UTC_TIMESTAMP(3) - INTERVAL 5 MINUTE"
"""Whether a time zone stays for five minutes: it may change ten minutes after it was fixed."""


def _read(
    session: Session, counter: str, asked: Clocks, clocks: Callable[[], Clocks]
) -> AppSettings | None:
    """The settings in one snapshot; None where the time zone is to be fixed first."""
    refuse_tracked(session, counter)
    control = read_control(session, lock="")
    if control.strict and not known_names(session, (counter,)):
        raise UnknownCounter(
            f"no counter is called {counter!r}, and only known ones are counted here:"
            f" `countersink counter set {counter}` makes it"
        )
    fixed = session.query(
        f"SELECT app_slots, {_FIXED}"
        " OR EXISTS (SELECT 1 FROM counter_ledger AS l WHERE l.counter = name)"
        " FROM counter WHERE name = %s",
        (counter,),
    )
    if not fixed or not fixed[0][1]:
        return None
    own = read_dimensioned(session, counter)
    broken_down = own[counter].breakdowns if counter in own else ()
    schemes = read_schemes(session, [counter, *(each.name for each in broken_down)])
    return AppSettings(
        Catalog(control.catalog_version, control.strict, schemes, dimensioned=own),
        int(fixed[0][0]),
        session.dialect,
        session.snapshot_isolation,
        asked,
        clocks().monotonic,
        control.now,
    )


def _fix_zone(session: Session, counter: str) -> None:
    """Keep the time zone of a counter from being changed for ten minutes."""
    session.execute(
        "INSERT INTO counter (name, zone_fixed) VALUES (%s, UTC_TIMESTAMP(3))"
        " ON DUPLICATE KEY UPDATE zone_fixed = UTC_TIMESTAMP(3)",
        (counter,),
    )


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

"""``Store``, through which an application uses the database: totals, counters, sequences, tracked
tables, increments in the application's own transactions, and migrations.

::

    from countersink.store import Store

    store = Store.from_env()
    store.totals.daily("page_views", key="/home")"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import date, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Final, Literal, TypeVar, Unpack

from countersink.counting.counters.counters import Counters
from countersink.counting.errors import (
    DamagedSketch,
    IncompleteBreakdown,
    InexactZone,
    NoSketches,
    NotUnique,
    RolledUp,
    TrackedCounter,
    UnknownCounter,
    UnknownDimension,
)
from countersink.counting.totals import Totals
from countersink.counting.totals.query import Query
from countersink.counting.totals.selection import KeyMatch, Last, Selection
from countersink.database import migrate as migrations
from countersink.database.app_connection import AppConnection
from countersink.database.connection import LOCK_WAIT, SessionOptions
from countersink.database.errors import (
    BadData,
    Conflict,
    DuplicateKey,
    Misconfigured,
    Refused,
    SchemaMismatch,
    StoreError,
    Unavailable,
)
from countersink.database.replicas import ReplicaPool
from countersink.database.session import Session
from countersink.database.sessions import Pool, open_tables
from countersink.database.url import OFF, Settings
from countersink.row_counts import TrackedTables, row_count
from countersink.row_counts.check import COUNT_SECONDS
from countersink.sequences import HANDING_IDLE_SECONDS, Sequences
from countersink.sequences.errors import SequenceExhausted, SequenceUncertain
from countersink.sequences.records import CHANGE_LOCK_WAIT
from countersink.transactions import Increments

__all__ = [
    "BadData",
    "Conflict",
    "DamagedSketch",
    "DuplicateKey",
    "IncompleteBreakdown",
    "InexactZone",
    "KeyMatch",
    "Last",
    "Misconfigured",
    "NoSketches",
    "NotUnique",
    "Query",
    "Refused",
    "RolledUp",
    "SchemaMismatch",
    "Selection",
    "SequenceExhausted",
    "SequenceUncertain",
    "Store",
    "StoreError",
    "TrackedCounter",
    "Unavailable",
    "UnknownCounter",
    "UnknownDimension",
]


ENVIRONMENT: Final = "COUNTERSINK_MYSQL_URL"
"""Name of the environment variable with the database's URL."""
READ_ENVIRONMENT: Final = "COUNTERSINK_MYSQL_READ_URL"
"""Name of the environment variable with the URL of the replicas."""
READ_SECONDS: Final = 300.0
"""Seconds that a read may take without a reply. The server sends nothing while it adds up years."""

LONG_READ_SECONDS: Final = 3600.0
"""Seconds that the server may take to send the first row within :meth:`Store.reading`."""
PAUSE_SECONDS: Final = 600
"""Seconds for which a caller of :meth:`Store.reading` may pause between two rows."""
SUMS_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the server's memory that the sums of a query may take before they go to disk."""

Result = TypeVar("Result")


class Store(AbstractContextManager["Store", None]):
    """The database of counts, for an application. It connects at its first use. Thread-safe and
    fork-safe."""

    def __init__(
        self, url: str, *, read_url: str | None = None, statement_seconds: float | None = None
    ) -> None:
        """Read the URLs. This does not connect.

        Args:
            url: ``mysql://user:password@host:3306/database``; see :meth:`Settings.parse`.
            read_url: URL of the replicas. Totals are read on a replica that has applied all
                commits; if there is none, on the server of ``url``. None or empty if there are no
                replicas.
            statement_seconds: time limit in seconds of each query of totals, lists and snapshots;
                not within :meth:`reading`, nor where :attr:`tracked` counts rows. A query that
                takes longer raises ReadInterrupted. None for no limit.

        Raises:
            Misconfigured: a URL cannot be used."""
        self._settings = Settings.parse(url)
        if self._settings.database is None:
            raise Misconfigured("the MySQL URL names no database: add /name to it")
        connect = partial(_connect, self._settings, statement_seconds)
        self._pool = Pool(connect)
        self._replicas: ReplicaPool | None = None
        if read_url:
            try:
                found = Settings.parse(read_url)
            except Misconfigured as error:
                raise Misconfigured(f"{READ_ENVIRONMENT}: {error}") from error
            if found.database is None:
                database = self._settings.database
                raise Misconfigured(f"{READ_ENVIRONMENT} names no database: add /{database} to it")
            replica = partial(_connect, statement_seconds=statement_seconds, to_read=True)
            self._replicas = ReplicaPool(connect, found, replica)
        self._database = self._settings.database
        self._sequences: dict[int, Sequences] = {}

    @classmethod
    def from_env(cls, *, missing: Literal["error", "off"] = "error") -> "Store":
        """Return a store for the URL in the environment variable ``COUNTERSINK_MYSQL_URL``, or in
        the file that ``COUNTERSINK_MYSQL_URL_FILE`` names. The URL of the replicas, if there are
        any, is in ``COUNTERSINK_MYSQL_READ_URL`` or in the file that
        ``COUNTERSINK_MYSQL_READ_URL_FILE`` names.

        Args:
            missing: ``"off"`` returns a store for the URL ``off://`` where neither of the first two
                variables is set, so that a module can be imported without settings. Each use of it
                raises Misconfigured.

        Raises:
            Misconfigured: there is no URL of the database (unless ``missing`` is ``"off"``); or a
                variable and its ``_FILE`` variant are both set; or a file cannot be read, or a URL
                cannot be used.
        """
        if missing not in ("error", "off"):
            raise ValueError(f"missing must be 'error' or 'off', not {missing!r}")
        url = _from_environment(ENVIRONMENT) or (OFF if missing == "off" else None)
        if not url:
            raise Misconfigured(f"set {ENVIRONMENT} to mysql://user:password@host:3306/database")
        return cls(url, read_url=_from_environment(READ_ENVIRONMENT))

    # Each of these is created at its first use; two threads may create one each at the same time,
    # which costs a connection and nothing else.

    @cached_property
    def totals(self) -> Totals:
        """The totals of counters."""
        return Totals(self._replicas or self._pool)

    @cached_property
    def counters(self) -> Counters:
        """The counters and their settings."""
        return Counters(partial(_connect, self._settings), self._pool)

    @property
    def sequences(self) -> Sequences:
        """The sequences: numbers that are handed out once."""
        return self.sequences_waiting(LOCK_WAIT)

    def sequences_waiting(self, lock_wait: int) -> Sequences:
        """Return the sequences, as :attr:`sequences` does, with another time limit for locks: each
        attempt to hand out a value waits for a lock for at most ``lock_wait`` seconds. Calls with
        the same ``lock_wait`` return the same object.
        """
        found = self._sequences.get(lock_wait)
        if found is None:
            idle = HANDING_IDLE_SECONDS
            found = self._sequences[lock_wait] = Sequences(
                partial(open_tables, self._settings, idle_seconds=idle, lock_wait=lock_wait),
                partial(open_tables, self._settings, lock_wait=CHANGE_LOCK_WAIT),
                self._pool,
                self._database,
            )
        return found

    @cached_property
    def tracked(self) -> TrackedTables:
        """The tracked tables: tables of the application whose rows are counted by triggers."""
        connect = partial(_connect, self._settings, read_timeout=COUNT_SECONDS)
        return TrackedTables(connect, self._pool, self._database)

    @cached_property
    def _increments(self) -> Increments:
        return Increments(partial(_connect, self._settings), self._pool, self._database)

    def migrate(self) -> list[str]:
        """Create the database if need be, bring its tables up to date, and return the names of the
        migrations that were applied. The errors are those of
        :func:`countersink.database.migrate.migrate`."""
        return migrations.migrate(self._settings)

    def increment(
        self,
        connection: AppConnection,
        counter: str,
        key: str | Mapping[str, str] = "",
        amount: int = 1,
        *,
        at: datetime | None = None,
    ) -> None:
        """Add ``amount`` to ``key`` of ``counter``, in the transaction of ``connection``.

        The amount is committed or rolled back together with the application's own rows; outside a
        transaction (with autocommit), it is committed at once. See ``docs/transactions.md`` for the
        errors after which to retry, and for the rights that the connection's user needs.

        Args:
            connection: a DB-API connection of the application to the server of this store.
            counter: the counter's name: 1 to 64 characters of ``A-Z a-z 0-9 _ . : -``.
            key: any text. If it has more than 255 bytes of UTF-8, the amount is counted under its
                beginning and a digest of it (see :func:`countersink.runtime.limits.cut_key`).
                Instead of a text: values of dimensions that the counter has declared, such as
                ``{"page": "/home", "country": "DE"}``.
            amount: a signed 64-bit integer; 0 creates the key without counting.
            at: time of the event, an aware datetime from 1970 to 366 days ahead. By default the
                present minute on the database server's clock.

        Raises:
            TypeError, ValueError: an argument is not as described above. Nothing was sent.
            UnknownCounter: strict mode is on, and the counter was neither created nor ever counted.
            TrackedCounter: triggers count the rows of a tracked table in this counter.
            UnknownDimension: ``key`` has a dimension that the counter has not declared.
            StoreError: the counter's settings could not be read.
            Exception: the driver raised it, and it is passed on unchanged. Roll back. After a
                deadlock (error 1213 or 1020) or a lock wait timeout (1205) run the transaction
                again.
        """
        self._increments.add(connection, counter, [(key, amount)], at)

    def increment_many(
        self,
        connection: AppConnection,
        counter: str,
        amounts: Mapping[str, int],
        *,
        at: datetime | None = None,
    ) -> None:
        """Add ``amounts[key]`` to each key of ``counter``, in the transaction of ``connection``.

        Either all amounts are added or none. The keys are written in a fixed order, so that two
        such calls do not deadlock each other. The other arguments and the errors are those of
        :meth:`increment`.
        """
        if not isinstance(amounts, Mapping):
            raise TypeError(f"amounts is a mapping of key to amount, not {type(amounts).__name__}")
        # A copy, as another thread may change the mapping.
        self._increments.add(connection, counter, list(amounts.items()), at)

    def delete(self, connection: AppConnection, counter: str, key: str) -> None:
        """Delete all counts of ``key``, in the transaction of ``connection``.

        Other transactions that count the key wait until this one ends. The arguments and the errors
        are those of :meth:`increment`, with three differences: an unknown counter or key is no
        error; the empty key of a counter with breakdowns raises ValueError; and Conflict is raised
        if other transactions keep counting the key.
        """
        self._increments.delete(connection, counter, key)

    def row_count(
        self,
        table: str,
        *,
        start: date | None = None,
        end: date | None = None,
        where: Mapping[str, object] | None = None,
        **values: object,
    ) -> int:
        """Return the number of rows of a tracked table, as SELECT COUNT(*) would, from the table's
        counter.

        ``store.row_count("shop.orders", status="paid")`` returns the result of ``SELECT COUNT(*)
        FROM shop.orders WHERE status = 'paid'``. The errors are those of
        :func:`countersink.row_counts.row_count.row_count`, such as ValueError for a column that is
        given twice.

        Args:
            table: the table as it was given to ``track``, or its counter.
            start, end: first and last day to count, by the table's day column; None for no limit.
            where: column → value of the rows to count, for columns that the table is tracked by.
                The value None stands for NULL.
            values: the same as keyword arguments, for columns whose names are Python identifiers.
        """
        given = {**(where or {}), **values}
        if twice := sorted(values.keys() & (where or {}).keys()):
            raise ValueError(f"{', '.join(twice)}: given as an argument and in where")

        def work(session: Session) -> int:
            return row_count.row_count(session, self._database, table, given, start, end)

        return self._pool.read(work)

    def snapshot(self, work: Callable[[Session], Result]) -> Result:
        """Call ``work`` with a session in one snapshot of the database, and return its result. If a
        connection of the pool turns out to be broken, ``work`` is called again with another
        session.

        Args:
            work: a function that only reads.

        Raises:
            StoreError: a query failed.
        """
        return self._pool.read(work)

    def replica_snapshot(self, work: Callable[[Session], Result]) -> Result:
        """Do the same as :meth:`snapshot`, but on a replica that has applied all commits, or, if
        there is none, on the server of ``url``. If a replica fails, ``work`` is called again with a
        session on another server."""
        return (self._pool if self._replicas is None else self._replicas).read(work)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a new session in one snapshot, for a long read that may pause between two rows. The
        session is on a replica that has applied all commits, if there is one. If the connection
        breaks, StoreError is raised: nothing is read again.

        Until the block ends, the server keeps the old versions of rows that change.

        Raises:
            StoreError: a query failed.
        """
        long = partial(_connect, read_timeout=LONG_READ_SECONDS, idle_seconds=PAUSE_SECONDS)
        found = None
        if self._replicas is not None:
            found = self._replicas.open_session(partial(long, to_read=True))
        with found or long(self._settings) as session:
            session.execute(f"SET SESSION net_write_timeout = {PAUSE_SECONDS}")
            with session.transaction(snapshot=True):
                yield session

    def close(self) -> None:
        """Close the idle connections. The next use opens them again."""
        for sequences in self._sequences.values():
            sequences.close()
        self._pool.close()
        if self._replicas is not None:
            self._replicas.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({str(self._settings)!r})"


def _connect(
    settings: Settings, statement_seconds: float | None = None, **given: Unpack[SessionOptions]
) -> Session:
    options: SessionOptions = {"isolation": "REPEATABLE READ", "read_timeout": READ_SECONDS}
    options.update(given)
    session = open_tables(settings, **options)
    # By default MariaDB keeps 16 MB of sums by key in memory, and is ten times slower beyond.
    session.execute(
        f"SET SESSION tmp_table_size = {SUMS_BYTES}, SESSION max_heap_table_size = {SUMS_BYTES}"
    )
    if statement_seconds is not None:
        session.execute(session.dialect.limit_statements(statement_seconds))
    return session


def _from_environment(variable: str) -> str | None:
    """Return the value of an environment variable, or the text of the file that ``<variable>_FILE``
    names. Return None if neither is set.

    Raises:
        Misconfigured: both are set, or the file cannot be read.
    """
    value, file = os.environ.get(variable), os.environ.get(f"{variable}_FILE")
    if value and file:
        raise Misconfigured(f"{variable} and {variable}_FILE are both set: unset one")
    if not file:
        return value or None
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise Misconfigured(f"{variable}_FILE cannot be read: {error}") from error

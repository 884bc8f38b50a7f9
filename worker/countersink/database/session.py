"""``Session``, a connection to MySQL: login, timeouts, TLS, session variables, and ``rerun``, which
runs a transaction again after a conflict. See ``hosts.py`` for the choice among several hosts.

Everything on which exactness depends is set on each session, whatever the server's defaults are:
strict ``sql_mode`` (else a sum beyond its column is clipped without an error), UTC, the isolation
level, no chained transactions, no limit on results, short lock waits, and ``wait_timeout`` (a
half-dead client would keep its row locks for the default of 8 hours).
"""

import math
import random
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack

import pymysql
from pymysql.constants.FIELD_TYPE import NEWDECIMAL
from pymysql.converters import conversions
from pymysql.cursors import SSCursor

from countersink.database import hosts
from countersink.database.app_connection import Executed, execute
from countersink.database.errors import (
    Conflict,
    Misconfigured,
    OtherWriter,
    ReadInterrupted,
    Refused,
    StoreError,
    Unavailable,
    translate,
)
from countersink.database.sql import (
    GROUP,
    SEVERAL_PRIMARIES,
    Dialect,
    has_several_primaries,
    is_galera,
    marks,
    parse_version,
    parts,
    show,
)
from countersink.database.url import Settings

Result = TypeVar("Result")
Isolation = Literal["READ COMMITTED", "REPEATABLE READ"]
Connect = Callable[[], "Session"]
"""Makes a new session; raises StoreError."""

CONNECT_TIMEOUT: Final = 5.0
"""Seconds for the TCP connection, and for each reply during login."""
READ_TIMEOUT: Final = 15.0
"""Seconds until a silent server counts as unavailable; longer than the lock waits."""
LOCK_WAIT: Final = 5
"""Seconds that a statement waits for a row lock or a metadata lock."""
MIN_PACKET: Final = 16 * 1024 * 1024
"""Least ``max_allowed_packet`` in bytes; the default of both servers, far above our statements."""
_ROWS_PER_FETCH: Final = 1000
"""Rows of :meth:`Session.stream` that are fetched at once."""
ATTEMPTS: Final = 6
"""Attempts of :func:`rerun` at a transaction."""
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5

IDLE_SECONDS: Final = 30
"""Idle seconds after which the server ends a session, with its locks."""

SQL_MODE: Final = (
    "STRICT_ALL_TABLES,STRICT_TRANS_TABLES,ONLY_FULL_GROUP_BY,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
)

_NO_LIMIT: Final = f"SET SESSION sql_select_limit = {2**64 - 1}"
_SNAPSHOT_ISOLATION: Final = "innodb_snapshot_isolation"
_CONSISTENCY: Final = "group_replication_consistency"
_LOGIN_VARIABLES: Final = (
    *("version", "max_allowed_packet", _SNAPSHOT_ISOLATION, _CONSISTENCY),
    *("transaction_isolation", "tx_isolation", "hostname", "port"),
    *hosts.GALERA,
    *GROUP,
)
MOVE_S: Final = 10.0
"""With several hosts: seconds after which a pool closes a session. Readers get no error when their
server becomes a replica."""


@dataclass(eq=False, repr=False)
class Session(AbstractContextManager["Session", None]):
    """A connection with its session variables set. Other threads may call only :meth:`abort` and
    :meth:`interrupt`.

    Outside a transaction every statement commits by itself. Every method raises only
    :class:`~countersink.database.errors.StoreError`; after Unavailable the session is closed.

    Attributes:
        dialect: the server's kind and version.
        snapshot_isolation: whether the server has ``innodb_snapshot_isolation``, which is off here.
        server: the server's own host name and port.
        cluster: UUID of the server's Galera cluster at login; empty: it was in none.
        address: the server's address within that cluster; empty: the cluster did not know it.
        where: the host that it is connected to, and the login.
        keep_until: time on the monotonic clock at which a pool closes it.
        interrupted: :meth:`interrupt` was called: the session can only be closed.
        waiting_since: time on the monotonic clock since which it waits for a reply; None: it does
            not wait.
    """

    _connection: "pymysql.connections.Connection[Any]"
    dialect: Dialect
    snapshot_isolation: bool
    where: Settings
    server: tuple[str, ...]
    keep_until: float = math.inf
    interrupted: bool = False
    waiting_since: float | None = None
    cluster: str = ""
    address: str = ""

    @property
    def checked(self) -> bool:
        """Whether commits are checked against other servers that take writes."""
        return True

    @property
    def connection_id(self) -> int:
        """The connection's number on its server, from the server's greeting."""
        driver: Any = self._connection
        return int(driver.thread_id())

    @property
    def closed(self) -> bool:
        """Whether the connection was closed, or is known to be broken."""
        return not self._connection.open

    def excludes(self, other: "Session") -> bool:
        """Whether this server's Galera cluster has excluded the node of another session."""
        return False

    def execute(self, sql: str, args: Sequence[object] | None = None) -> int:
        """Run a statement; number of changed rows (of an upsert 1 for a new row, 2 for another)."""
        with self._translated(), self._connection.cursor() as cursor:
            return int(cursor.execute(sql, args or None))

    def hand_out(self, sql: str) -> Executed:
        """Run a statement; its changed rows, and its insert id: the value that it handed out."""
        with self._translated():
            return execute(self._connection, sql)

    def query(self, sql: str, args: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """Run a query; its rows, with binary columns as bytes, DATETIME as naive UTC, and DECIMAL
        of scale 0 as int.
        """
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return list(cursor.fetchall())

    def stream(self, sql: str, args: Sequence[object] | None = None) -> Iterator[tuple[Any, ...]]:
        """The rows of a query one by one, so that memory does not grow with their number.

        No other query can run meanwhile; an iteration that ends early closes the session.
        """
        with self._translated():
            cursor = self._connection.cursor(SSCursor)
            cursor.execute(sql, args or None)
        try:
            while True:
                with self._translated():
                    rows = cursor.fetchmany(_ROWS_PER_FETCH)
                if not rows:
                    return
                yield from rows
        except BaseException:
            # The driver would read all remaining rows before the next query; and on the cursor's
            # deletion, when the connection is closed.
            driver: Any = cursor
            if driver._result is not None:
                driver._result.unbuffered_active = False
            driver.connection = None
            self.close(hard=True)
            raise

    def insert_rows(
        self, into: str, rows: Sequence[Sequence[object]], size: int, clause: str = ""
    ) -> None:
        """INSERT rows; the caller has begun a transaction.

        Args:
            into: the table and, in brackets, its columns.
            rows: their values.
            size: rows in a statement.
            clause: SQL that follows the values.
        """
        for part in parts(rows, size):
            values = ", ".join([f"({marks(part[0])})"] * len(part))
            args = [value for row in part for value in row]
            self.execute(f"INSERT INTO {into} VALUES {values}{clause}", args)

    def literal(self, text: str) -> str:
        """``text`` as a quoted SQL literal, by the driver, for statements built in bulk."""
        return self._connection.escape(text)

    def see_all_commits(self) -> None:
        """Let each later transaction see all earlier commits on any server. Galera overrides it."""

    def begin(self, *, snapshot: bool = False) -> None:
        """Begin a transaction; with ``snapshot`` a read-only one on a snapshot taken now, which
        needs REPEATABLE READ.
        """
        options = " WITH CONSISTENT SNAPSHOT, READ ONLY" if snapshot else ""
        self.execute(f"START TRANSACTION{options}")

    def commit(self) -> None:
        """Commit. If it raises, the outcome is unknown: rerun, and the guards decide."""
        with self._translated():
            self._connection.commit()

    def rollback(self) -> None:
        """Roll back the open transaction, if any. For a closed session the server has done so."""
        if self.closed:
            return
        with self._translated():
            self._connection.rollback()

    @contextmanager
    def transaction(self, *, snapshot: bool = False) -> Iterator[None]:
        """BEGIN, the block, COMMIT; ROLLBACK on any error, even if the server has rolled back."""
        self.begin(snapshot=snapshot)
        try:
            yield
            self.commit()
        except BaseException:
            self.rollback_or_close()
            raise

    @contextmanager
    def variable(self, name: str, within: object, afterwards: object) -> Iterator[None]:
        """Set a session variable to ``within`` for the block, and to ``afterwards`` at its end."""
        self.execute(f"SET SESSION {name} = %s", (within,))
        try:
            yield
        finally:
            if not self.closed:
                self.execute(f"SET SESSION {name} = %s", (afterwards,))

    def rollback_or_close(self) -> None:
        """Roll back the open transaction, or else close the connection. Never raises."""
        try:
            self.rollback()
        except StoreError:
            self.close(hard=True)

    def silent(self) -> bool:
        """Whether the connection is open and the server has sent nothing since its last reply."""
        sock = getattr(self._connection, "_sock", None)
        if self.closed or sock is None:
            return False
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)

    def answers(self) -> bool:
        """Whether the server answers ``DO 0``; else the session is closed. Never raises."""
        try:
            self.execute("DO 0")
        except StoreError:
            self.close(hard=True)
            return False
        return True

    @contextmanager
    def reply_timeout(self, seconds: float) -> Iterator[None]:
        """Let a silent server count as unavailable after so many seconds within the block."""
        driver: Any = self._connection
        usual = driver._read_timeout
        driver._read_timeout = min(usual, seconds)
        try:
            yield
        finally:
            driver._read_timeout = usual

    def takes_writes(self) -> bool:
        """Whether the server still takes writes, by asking it; never raises."""
        try:
            found = dict(self.query(show("VARIABLES", hosts.VARIABLES)))
            return not hosts.why_read_only(found, self.query)
        except StoreError:
            self.close(hard=True)
            return False

    def close(self, *, hard: bool = False) -> None:
        """Close the connection, ``hard`` without telling the server. Never raises."""
        if hard:
            self.abort()
        _end(self._connection)

    def abort(self) -> None:
        """Break the connection, from any thread: a waiting method raises Unavailable."""
        sock = getattr(self._connection, "_sock", None)
        if isinstance(sock, socket.socket):
            with suppress(OSError):  # not connected any more
                # Not sock.shutdown(): on a TLS socket it drops state that another thread uses.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def interrupt(self) -> None:
        """End the running statement and all later ones with ReadInterrupted, from another thread.
        Never raises.

        It logs in as the session's user, so it needs no further right. A call between two
        statements may have no effect: call it again until the session is closed.
        """
        self.interrupted = True
        try:
            with connect(self.where, database=False) as other:
                if other.server != self.server:  # where the number is another connection's
                    raise Unavailable("another server answers to this name")
                other.execute(f"KILL QUERY {self.connection_id:d}")
        except StoreError:
            self.abort()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        if self.interrupted:
            raise ReadInterrupted("the session was interrupted")
        self.waiting_since = time.monotonic()
        try:
            yield
        except Exception as error:
            ours = translate(error)
            if self.interrupted:
                raise ReadInterrupted(str(ours), code=ours.code) from error
            if isinstance(ours, Unavailable):
                self.close(hard=True)
            raise ours from error
        except BaseException:
            # Interrupted, maybe within a reply: the connection cannot be used any more.
            self.close(hard=True)
            raise
        finally:
            self.waiting_since = None


class SessionOptions(TypedDict, total=False):
    """Options of a session, for :func:`connect`.

    Attributes:
        isolation: isolation level of its transactions.
        read_timeout: seconds until a silent server counts as unavailable.
        lock_wait: seconds that a statement waits for a lock.
        idle_seconds: idle seconds after which the server ends the session.
        to_read: the session will not write, so any node of a Galera cluster may serve it.
    """

    isolation: Isolation
    read_timeout: float
    lock_wait: int
    idle_seconds: int
    to_read: bool


def connect(
    where: Settings | str, *, database: bool = True, **options: Unpack[SessionOptions]
) -> Session:
    """Log in, and set the session's variables; of several hosts, the first that takes writes.

    Args:
        where: a URL (see :meth:`Settings.parse`), or its settings.
        database: whether to use the URL's database; False where it may not exist yet.
        options: options of the session.

    Raises:
        Misconfigured: the URL cannot be used, or names no database.
        SchemaMismatch: the database does not exist.
        Refused: wrong password, a certificate that does not verify, too old a server.
        Unavailable: no server answers, or none of several hosts takes writes.
    """
    settings = Settings.parse(where) if isinstance(where, str) else where
    if database and settings.database is None:
        raise Misconfigured("the MySQL URL names no database: add /name to it")
    log_in = partial(_log_in, database=database, **options)
    if not settings.others:
        return log_in(settings)
    session = hosts.first_writable(settings, partial(log_in, to_write=True))
    session.keep_until = time.monotonic() + MOVE_S
    _watch.add(session, settings)
    return session


def _probe(host: Settings) -> Session:
    """A session on a host that takes writes, with short time limits."""
    limit = hosts.PROBE_S
    return _log_in(host, database=False, read_timeout=limit, connect_timeout=limit, to_write=True)


_watch: Final = hosts.Watch(_probe)


def _log_in(
    settings: Settings,
    *,
    database: bool,
    former: OtherWriter | None = None,
    isolation: Isolation = "READ COMMITTED",
    read_timeout: float = READ_TIMEOUT,
    lock_wait: int = LOCK_WAIT,
    idle_seconds: int = IDLE_SECONDS,
    to_read: bool = False,
    to_write: bool = False,
    connect_timeout: float | None = None,
) -> Session:
    """A session on one host.

    Raises:
        Unavailable: the host takes no writes; only with ``to_write``, or on a node of Galera.
        OtherWriter: another node of the Galera cluster takes the writes. If that was raised for
            each host, its error is passed as ``former``.
    """
    # With to_write the database is selected later: a replica need not have it.
    connection = _open(settings, database and not to_write, connect_timeout or CONNECT_TIMEOUT)
    cursor = connection.cursor()

    def ask(sql: str) -> list[tuple[Any, ...]]:
        cursor.execute(sql)
        return list(cursor.fetchall())

    try:
        # First, as the server's default limit would truncate the next reply.
        cursor.execute(_NO_LIMIT)
        names = (*_LOGIN_VARIABLES, *(hosts.READ_ONLY if to_write else ()))
        found: dict[str, str] = dict(ask(show("VARIABLES", names)))
        if to_write and (reason := hosts.why_read_only(found, ask)):
            raise Unavailable(reason)
        if database and not to_read and has_several_primaries(found):
            raise Refused(SEVERAL_PRIMARIES)
        if (packet := int(found.get("max_allowed_packet", 0))) < MIN_PACKET:
            raise Refused(
                f"the server's max_allowed_packet is {packet:,} bytes: run SET GLOBAL"
                f" max_allowed_packet = {MIN_PACKET}, and set the same in my.cnf"
            )
        dialect = parse_version(found.get("version", ""))
        pinned = (SQL_MODE, isolation.replace(" ", "-"), idle_seconds, lock_wait, lock_wait)
        cursor.execute(_pin(found), pinned)
        if to_write and database:
            connection.select_db(settings.database)
    except Exception as error:
        _end(connection)
        raise translate(error) from error
    # The login had the short timeout (the driver uses read_timeout there, too).
    driver: Any = connection
    driver._read_timeout = driver._write_timeout = read_timeout
    server = (found.get("hostname", ""), found.get("port", ""))
    fields = connection, dialect, _SNAPSHOT_ISOLATION in found, settings, server
    if not is_galera(found):
        return Session(*fields)
    from countersink.database import galera  # noqa: PLC0415  # only where it is needed

    session = galera.GaleraSession(*fields)
    return galera.admit(session, database and not to_read, to_write or to_read, former)


_SPARE_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@cache
def _unverified_tls() -> ssl.SSLContext:
    """TLS without a certificate check, for URLs without TLS options."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _end(connection: "pymysql.connections.Connection[Any]") -> None:
    """Close a connection, which may be broken or closed. Never raises."""
    with suppress(Exception):  # after any error the socket is closed
        if connection.open:
            connection.close()
    _forget_tls_errors()


def _forget_tls_errors() -> None:
    """Clear the thread's OpenSSL error queue after a broken TLS connection.

    Python 3.13 leaves the error in the queue, where the next read of any connection of this thread
    takes it for its own. Python does clear the queue after a refused list of ciphers.
    """
    with suppress(ssl.SSLError):
        _SPARE_TLS.set_ciphers("NONE")


class _Connection(pymysql.connections.Connection):
    """The driver's connection, with one TLS context for all connections without TLS options.

    The driver would make a context for each connection, and load all certificates of the machine's
    authorities, of which it checks none: 28 ms.
    """

    def _create_ssl_ctx(self, options: ssl.SSLContext | dict[str, Any]) -> ssl.SSLContext:
        if not options:
            return _unverified_tls()
        made: ssl.SSLContext = super()._create_ssl_ctx(options)  # type: ignore[misc]
        return made


def _number(text: str) -> int | Decimal:
    """The value of a DECIMAL: an int where it is a whole number."""
    try:
        return int(text)
    except ValueError:
        return Decimal(text)


_CONVERSIONS: Final = conversions | {NEWDECIMAL: _number}
"""The driver's conversions, with whole DECIMAL numbers as ints."""


def _open(
    settings: Settings, database: bool, timeout: float
) -> "pymysql.connections.Connection[Any]":
    tls: dict[str, Any] = {}
    context = settings.ssl_context()
    if context is not None:
        tls["ssl"] = context
    elif settings.tls == "off":
        tls["ssl_disabled"] = True
    try:
        connection = _Connection(
            host=settings.host,
            port=settings.port,
            user=settings.user,
            # As bytes: the driver would encode a str as Latin-1.
            password=settings.password.encode(),
            database=settings.database if database else None,
            unix_socket=settings.unix_socket,
            charset="utf8mb4",
            autocommit=None,  # set with the rest
            conv=_CONVERSIONS,
            connect_timeout=timeout,
            read_timeout=timeout,
            write_timeout=timeout,
            **tls,
        )
    except Exception as error:
        _forget_tls_errors()
        raise translate(error) from error
    # Older drivers go on without encryption where the server offers none.
    if context is not None and not isinstance(getattr(connection, "_sock", None), ssl.SSLSocket):
        _end(connection)
        raise Refused("the MySQL URL asks for TLS (SSL), which the server does not offer")
    return connection


def _pin(found: dict[str, str]) -> str:
    isolation = "transaction_isolation" if "transaction_isolation" in found else "tx_isolation"
    pins = [
        "sql_mode = %s",
        f"{isolation} = %s",
        "wait_timeout = %s",
        "innodb_lock_wait_timeout = %s",
        "lock_wait_timeout = %s",
        "time_zone = '+00:00'",
        "autocommit = 1",
        "completion_type = 0",
    ]
    if _SNAPSHOT_ISOLATION in found:
        pins.append(f"{_SNAPSHOT_ISOLATION} = OFF")
    if is_galera(found):
        # With dirty reads no read waits for what the cluster has committed.
        pins.append("wsrep_dirty_reads = OFF")
    if found.get(_CONSISTENCY) == "EVENTUAL":
        # A new primary would serve old settings and sums before it has applied the old primary's
        # commits.
        pins.append(f"{_CONSISTENCY} = BEFORE_ON_PRIMARY_FAILOVER")
    return "SET " + ", ".join(f"SESSION {pin}" for pin in pins)


def rerun(
    work: Callable[[], Result],
    *,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
) -> Result:
    """Call ``work``, a transaction that rolls back if it raises, until it raises no Conflict.

    The pauses, up to half a second, are random, so that the same two do not conflict again.

    Raises:
        Conflict: raised by the last of ``attempts`` calls.
    """
    longest = _FIRST_PAUSE
    for _ in range(attempts - 1):
        try:
            return work()
        except Conflict:
            pause(random.uniform(0.0, longest))
            longest = min(2.0 * longest, _LONGEST_PAUSE)
    return work()


@contextmanager
def explained(reason: str, advice: str) -> Iterator[None]:
    """Give a Conflict within the block a message with its reason and advice."""
    try:
        yield
    except Conflict as error:
        raise Conflict(f"{reason} ({error}): {advice}", code=error.code) from error


def rerun_transaction(
    session: Session, work: Callable[[], Result], *, attempts: int = ATTEMPTS
) -> Result:
    """As :func:`rerun`, with a transaction around ``work``."""

    def attempt() -> Result:
        with session.transaction():
            return work()

    return rerun(attempt, attempts=attempts)

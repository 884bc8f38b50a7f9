"""``Session``, one connection to MySQL: timeouts, after how long idle the server ends it
(``IDLE_SECONDS``), lock wait, isolation, ``sql_mode``, TLS, least max_allowed_packet, errors at
login, and how often and after which pause a transaction is run again (``rerun``). Which of several
hosts it goes to: ``hosts.py``.

Everything on which exactness depends is set on each session of ours and never taken from the
server: strict ``sql_mode`` (else a sum beyond its column is clipped in silence), UTC, the isolation
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
from countersink.database.app_connection import Done, execute
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
"""Seconds for the TCP connection, and for each reply while logging in."""
READ_TIMEOUT: Final = 15.0
"""Seconds until a silent server counts as gone: above the lock waits, below anybody's patience."""
LOCK_WAIT: Final = 5
"""Seconds a statement waits for a row lock or a metadata lock."""
MIN_PACKET: Final = 16 * 1024 * 1024
"""Bytes a server must take in one statement, which both do by default; ours are far smaller."""
_AT_ONCE: Final = 1000
"""Rows of a stream that are read at once."""
ATTEMPTS: Final = 6
"""How often :func:`rerun` tries a transaction."""
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5

IDLE_SECONDS: Final = 30
"""The server ends a session, with its locks, after so many idle seconds."""

SQL_MODE: Final = (
    "STRICT_ALL_TABLES,STRICT_TRANS_TABLES,ONLY_FULL_GROUP_BY,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
)

_NO_LIMIT: Final = f"SET SESSION sql_select_limit = {2**64 - 1}"
_SNAPSHOT_ISOLATION: Final = "innodb_snapshot_isolation"
_CONSISTENCY: Final = "group_replication_consistency"
_ASKED: Final = (
    *("version", "max_allowed_packet", _SNAPSHOT_ISOLATION, _CONSISTENCY),
    *("transaction_isolation", "tx_isolation", "hostname", "port"),
    *hosts.GALERA,
    *GROUP,
)
MOVE_S: Final = 10.0
"""With several hosts: seconds after which a session that threads share is not kept any longer. Who
only reads gets no error when the server becomes a replica."""


@dataclass(eq=False, repr=False)
class Session(AbstractContextManager["Session", None]):
    """One connection with our settings on it. Not for two threads at once, but for :meth:`abort`.

    Outside a transaction every statement commits by itself. Every method raises only
    :class:`~countersink.database.errors.StoreError`; after Unavailable the session is closed.

    Attributes:
        dialect: which server it is.
        snapshot_isolation: whether the server has ``innodb_snapshot_isolation``; it is off here.
        server: what the server calls itself: host and port.
        cluster: UUID of the Galera cluster that it was in at login; empty: it is in none.
        address: by which that cluster knew the server; empty: it did not.
        where: the host that it is connected to, and how to log in.
        keep_until: on the monotonic clock; threads that share sessions open another one then.
        interrupted: :meth:`interrupt` was called: it is good for nothing but to be closed.
        waiting_since: on the monotonic clock, while an answer is waited for.
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
        """Whether other servers that take writes too are kept from counting by it, if there are."""
        return True

    @property
    def connection_id(self) -> int:
        """The connection's number on its server, which that told in its greeting."""
        driver: Any = self._connection
        return int(driver.thread_id())

    @property
    def closed(self) -> bool:
        """Whether the connection is known to be gone."""
        return not self._connection.open

    def leaves_out(self, other: "Session") -> bool:
        """Whether this server's cluster has left out the node of another session: Galera only."""
        return False

    def execute(self, sql: str, args: Sequence[object] | None = None) -> int:
        """Run a statement; how many rows it changed (an upsert: 1 a new row, 2 a changed one)."""
        with self._translated(), self._connection.cursor() as cursor:
            return int(cursor.execute(sql, args or None))

    def hand_out(self, sql: str) -> Done:
        """Run a statement; how many rows it changed, and the value that it handed out."""
        with self._translated():
            return execute(self._connection, sql)

    def query(self, sql: str, args: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """Run a query; all its rows: binary columns as bytes, DATETIME as naive UTC, DECIMAL as int
        where its scale is 0.
        """
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return list(cursor.fetchall())

    def stream(self, sql: str, args: Sequence[object] | None = None) -> Iterator[tuple[Any, ...]]:
        """The rows of a query one by one, as they come, so that memory does not grow with them.

        Nothing else can be asked meanwhile; whoever does not read to the end closes the session.
        """
        with self._translated():
            cursor = self._connection.cursor(SSCursor)
            cursor.execute(sql, args or None)
        try:
            while True:
                with self._translated():
                    rows = cursor.fetchmany(_AT_ONCE)
                if not rows:
                    return
                yield from rows
        except BaseException:
            # The driver would read all that is left before it could go on; and, when the cursor
            # is thrown away, from a connection that is closed by then.
            driver: Any = cursor
            if driver._result is not None:
                driver._result.unbuffered_active = False
            driver.connection = None
            self.close(hard=True)
            raise

    def insert_rows(
        self, into: str, rows: Sequence[Sequence[object]], size: int, clause: str = ""
    ) -> None:
        """INSERT rows, so many in a statement; in a transaction.

        Args:
            into: the table and, in brackets, its columns.
            rows: their values.
            size: how many in a statement.
            clause: what follows the values.
        """
        for part in parts(rows, size):
            values = ", ".join([f"({marks(part[0])})"] * len(part))
            args = [value for row in part for value in row]
            self.execute(f"INSERT INTO {into} VALUES {values}{clause}", args)

    def literal(self, text: str) -> str:
        """``text`` as a quoted SQL literal, by the driver, for statements built in bulk."""
        return self._connection.escape(text)

    def read_all(self) -> None:
        """Have each transaction from now on see what was committed before it on any server that
        takes writes; that is so but for Galera.
        """

    def begin(self, *, snapshot: bool = False) -> None:
        """Begin a transaction; with ``snapshot`` a read-only one that sees the database as of now.

        A snapshot needs REPEATABLE READ.
        """
        options = " WITH CONSISTENT SNAPSHOT, READ ONLY" if snapshot else ""
        self.execute(f"START TRANSACTION{options}")

    def commit(self) -> None:
        """Commit. If it raises, the outcome is unknown: rerun, and let the guards decide."""
        with self._translated():
            self._connection.commit()

    def rollback(self) -> None:
        """Undo the open transaction, if any. On a closed session the server has done it."""
        if self.closed:
            return
        with self._translated():
            self._connection.rollback()

    @contextmanager
    def transaction(self, *, snapshot: bool = False) -> Iterator[None]:
        """BEGIN, the block, COMMIT; ROLLBACK on any error, whatever the server undid on its own."""
        self.begin(snapshot=snapshot)
        try:
            yield
            self.commit()
        except BaseException:
            self.rollback_or_close()
            raise

    @contextmanager
    def variable(self, name: str, within: object, afterwards: object) -> Iterator[None]:
        """A session variable has one value within the block, and another one from then on."""
        self.execute(f"SET SESSION {name} = %s", (within,))
        try:
            yield
        finally:
            if not self.closed:
                self.execute(f"SET SESSION {name} = %s", (afterwards,))

    def rollback_or_close(self) -> None:
        """Undo the open transaction, if need be by closing the connection. Never raises."""
        try:
            self.rollback()
        except StoreError:
            self.close(hard=True)

    def silent(self) -> bool:
        """Whether nothing has come from the server since its last reply, not even a goodbye."""
        sock = getattr(self._connection, "_sock", None)
        if self.closed or sock is None:
            return False
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)

    def answers(self) -> bool:
        """Ask the server something that does nothing; never raises."""
        try:
            self.execute("DO 0")
        except StoreError:
            self.close(hard=True)
            return False
        return True

    @contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Within the block a server that is silent for so many seconds counts as gone."""
        driver: Any = self._connection
        usual = driver._read_timeout
        driver._read_timeout = min(usual, seconds)
        try:
            yield
        finally:
            driver._read_timeout = usual

    def takes_writes(self) -> bool:
        """Ask the server whether it still does; never raises."""
        try:
            found = dict(self.query(show("VARIABLES", hosts.VARIABLES)))
            return not hosts.why_not(found, self.query)
        except StoreError:
            self.close(hard=True)
            return False

    def close(self, *, hard: bool = False) -> None:
        """Close the connection, ``hard`` without a word; the server rolls back. Never raises."""
        if hard:
            self.abort()
        _end(self._connection)

    def abort(self) -> None:
        """Break the connection, from any thread: a waiting method raises Unavailable."""
        sock = getattr(self._connection, "_sock", None)
        if isinstance(sock, socket.socket):
            with suppress(OSError):  # not connected any more
                # Not sock.shutdown(): on a TLS socket that also drops state another thread is
                # using.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def interrupt(self) -> None:
        """From another thread, have the statement under way, and all that follow, end with
        ReadInterrupted. Never raises.

        As its own user, so it needs no right. What comes between two statements may end none:
        until the session is closed, call it again.
        """
        self.interrupted = True
        try:
            with connect(self.where, database=False) as other:
                if other.server != self.server:  # behind one name: there the number is another's
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
            # Interrupted, maybe in mid-reply: nothing more can be said on this connection.
            self.close(hard=True)
            raise
        finally:
            self.waiting_since = None


class SessionOptions(TypedDict, total=False):
    """Arguments of :func:`connect` on how a session is.

    Attributes:
        isolation: of every transaction on it.
        read_timeout: seconds until a silent server counts as gone.
        lock_wait: seconds a statement waits for a lock.
        idle_seconds: the server ends the session after so many idle seconds.
        to_read: nothing will be written on it, so that a node of Galera will do that is not the one
            which takes writes.
    """

    isolation: Isolation
    read_timeout: float
    lock_wait: int
    idle_seconds: int
    to_read: bool


def connect(
    where: Settings | str, *, database: bool = True, **options: Unpack[SessionOptions]
) -> Session:
    """Log in and pin the session's settings; of several hosts to the first one that takes writes.

    Args:
        where: a URL (see :meth:`Settings.parse`) or what was read from one.
        database: whether to use the URL's database; False where it may not exist yet.
        options: how the session is.

    Raises:
        Misconfigured: the URL, or that it names no database.
        SchemaMismatch: the database does not exist.
        Refused: wrong password, a certificate that does not verify, too old a server.
        Unavailable: nobody answers, or none of several hosts takes writes.
    """
    settings = Settings.parse(where) if isinstance(where, str) else where
    if database and settings.database is None:
        raise Misconfigured("the MySQL URL names no database: add /name to it")
    log_in = partial(_log_in, database=database, **options)
    if not settings.others:
        return log_in(settings)
    session = hosts.first_of(settings, partial(log_in, to_write=True))
    session.keep_until = time.monotonic() + MOVE_S
    _watch.add(session, settings)
    return session


def _probe(host: Settings) -> Session:
    """A session on a host that takes writes, in little time."""
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
    """A session on one host; with ``to_write`` Unavailable if the host takes no writes.

    On a node of Galera always, and OtherWriter where another node takes them; ``former`` is the one
    that did, and does not any more.
    """
    # Whether a replica has the database means nothing: only who takes writes is asked for it.
    connection = _open(settings, database and not to_write, connect_timeout or CONNECT_TIMEOUT)
    cursor = connection.cursor()

    def ask(sql: str) -> list[tuple[Any, ...]]:
        cursor.execute(sql)
        return list(cursor.fetchall())

    try:
        # First, and by itself: the server's own limit would cut off the answer to what follows.
        cursor.execute(_NO_LIMIT)
        names = (*_ASKED, *(hosts.READ_ONLY if to_write else ()))
        found: dict[str, str] = dict(ask(show("VARIABLES", names)))
        if to_write and (why_not := hosts.why_not(found, ask)):
            raise Unavailable(why_not)
        if database and not to_read and has_several_primaries(found):
            raise Refused(SEVERAL_PRIMARIES)
        if (packet := int(found.get("max_allowed_packet", 0))) < MIN_PACKET:
            raise Refused(
                f"the server's max_allowed_packet is {packet:,} bytes: SET GLOBAL"
                f" max_allowed_packet = {MIN_PACKET}, and in my.cnf"
            )
        dialect = parse_version(found.get("version", ""))
        pinned = (SQL_MODE, isolation.replace(" ", "-"), idle_seconds, lock_wait, lock_wait)
        cursor.execute(_pin(found), pinned)
        if to_write and database:
            connection.select_db(settings.database)
    except Exception as error:
        _end(connection)
        raise translate(error) from error
    # Logging in is bounded by the short timeout (the driver reads with read_timeout there too),
    # work by the long one.
    driver: Any = connection
    driver._read_timeout = driver._write_timeout = read_timeout
    server = (found.get("hostname", ""), found.get("port", ""))
    of = connection, dialect, _SNAPSHOT_ISOLATION in found, settings, server
    if not is_galera(found):
        return Session(*of)
    from countersink.database import galera  # noqa: PLC0415  # only where it is needed

    session = galera.GaleraSession(*of)
    return galera.opened(session, database and not to_read, to_write or to_read, former)


_SPARE_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@cache
def _unverified_tls() -> ssl.SSLContext:
    """TLS without a certificate check: for whoever asks for no more than what there is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _end(connection: "pymysql.connections.Connection[Any]") -> None:
    """Close a connection, which may be broken or closed. Never raises."""
    with suppress(Exception):  # whatever it is, the socket is closed
        if connection.open:
            connection.close()
    _forget_tls_errors()


def _forget_tls_errors() -> None:
    """Keep the error of a broken TLS connection from the other connections of this thread.

    Python 3.13 leaves it in OpenSSL's queue of the thread, where the next read of any connection
    takes it for its own. What a refused list of ciphers leaves in that queue Python does clear.
    """
    with suppress(ssl.SSLError):
        _SPARE_TLS.set_ciphers("NONE")


class _Connection(pymysql.connections.Connection):
    """The driver's, but where no TLS option is given all share one context.

    The driver makes one for each connection then, and reads all certificates of the machine's
    authorities for it, of which it checks none: 28 ms.
    """

    def _create_ssl_ctx(self, options: ssl.SSLContext | dict[str, Any]) -> ssl.SSLContext:
        if not options:
            return _unverified_tls()
        made: ssl.SSLContext = super()._create_ssl_ctx(options)  # type: ignore[misc]
        return made


def _number(text: str) -> int | Decimal:
    """A DECIMAL, of which sums and amounts are whole numbers."""
    try:
        return int(text)
    except ValueError:
        return Decimal(text)


_CONVERSIONS: Final = conversions | {NEWDECIMAL: _number}
"""The driver's, but whole numbers of any size are ints."""


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
        raise Refused("the URL asks for TLS (SSL), which the server does not offer")
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
        # A new primary would serve before it has applied what the old one committed: settings and
        # sums that are read there would be old ones.
        pins.append(f"{_CONSISTENCY} = BEFORE_ON_PRIMARY_FAILOVER")
    return "SET " + ", ".join(f"SESSION {pin}" for pin in pins)


def rerun(
    work: Callable[[], Result],
    *,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
) -> Result:
    """Call ``work``, a whole transaction that undoes itself if it raises, until it has its way.

    The pauses, up to half a second, are random, so that two that met do not meet again.

    Raises:
        Conflict: the last of ``attempts``.
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
def held(what: str, then: str) -> Iterator[None]:
    """A Conflict within says what others held all the time, and what to do."""
    try:
        yield
    except Conflict as error:
        raise Conflict(f"{what} ({error}): {then}", code=error.code) from error


def rerun_transaction(
    session: Session, work: Callable[[], Result], *, attempts: int = ATTEMPTS
) -> Result:
    """As :func:`rerun`, with a transaction around ``work``."""

    def attempt() -> Result:
        with session.transaction():
            return work()

    return rerun(attempt, attempts=attempts)

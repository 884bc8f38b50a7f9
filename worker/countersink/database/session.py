"""``Session``, a connection to MySQL with statements, transactions and timeouts; and ``rerun``,
which runs a transaction again after a conflict. See ``connection.py`` for logins and session
variables.
"""

import math
import random
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pymysql
from pymysql.cursors import SSCursor

from countersink.database import hosts
from countersink.database.app_connection import Executed, execute
from countersink.database.errors import (
    Conflict,
    ReadInterrupted,
    StoreError,
    Unavailable,
    translate,
)
from countersink.database.sql import Dialect, marks, parts, show
from countersink.database.url import Settings
from countersink.runtime.process import Closable

Result = TypeVar("Result")
Connect = Callable[[], "Session"]
"""A function that opens a new session. It may raise StoreError."""
_ROWS_PER_FETCH: Final = 1000
"""Number of rows that :meth:`Session.stream` fetches at once."""
ATTEMPTS: Final = 6
"""Number of times that :func:`rerun` calls a transaction at most, by default."""
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5


@dataclass(eq=False, repr=False)
class Session(Closable):
    """A connection to MySQL whose session variables are set. Only the thread that uses it may call
    its methods, except that any thread may call :meth:`abort` and
    :func:`countersink.database.connection.interrupt`.

    Outside a transaction every statement commits by itself. Errors of the database are raised as
    :class:`~countersink.database.errors.StoreError`; after Unavailable the session is closed.

    Attributes:
        dialect: the server's kind and version.
        snapshot_isolation: whether the server has the variable ``innodb_snapshot_isolation``. If
            so, it is off in this session.
        server: host name and port of the server, as the server itself says.
        cluster: UUID of the server's Galera cluster at the login; empty if it was in none.
        address: the server's address within that cluster; empty if the cluster did not know it.
        where: the host that the session is connected to, and the login.
        keep_until: time on the monotonic clock after which a pool does not use the session again.
        interrupted: True after ``interrupt`` was called. Then the session can only be closed.
        waiting_since: time on the monotonic clock since which the session has been waiting for a
            reply; None while it does not wait.
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
        """Whether it is safe to write. Without Galera: True. On Galera: True if each COMMIT of
        changes checks that this node is the writer; False if the login was for reading only,
        selected no database, or found no tables.
        """
        return True

    @property
    def connection_id(self) -> int:
        """The number of this connection on its server, as CONNECTION_ID() returns it."""
        driver: Any = self._connection
        return int(driver.thread_id())

    @property
    def closed(self) -> bool:
        """Whether the connection was closed, or is known to be broken."""
        return not self._connection.open

    def excludes(self, other: "Session") -> bool:
        """Return whether this server's Galera cluster has excluded the node of ``other``. If so,
        the caller breaks that session. False without Galera; the subclass for Galera overrides it.
        """
        return False

    def execute(self, sql: str, args: Sequence[object] | None = None) -> int:
        """Run a statement, with ``args`` for its ``%s``. Return the number of changed rows. INSERT
        … ON DUPLICATE KEY UPDATE counts 1 for a new row, 2 for a row that it changes, and 0 for a
        row that keeps its values.
        """
        with self._translated(), self._connection.cursor() as cursor:
            return int(cursor.execute(sql, args or None))

    def hand_out(self, sql: str) -> Executed:
        """Run a statement that takes values of a sequence. Return the number of changed rows and
        the insert id. If values were taken, the insert id is the last of them.
        """
        with self._translated():
            return execute(self._connection, sql)

    def query(self, sql: str, args: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """Run a query, with ``args`` for its ``%s``, and return its rows. Binary columns are bytes,
        a DATETIME is a naive datetime in UTC, and a DECIMAL without decimals is an int.
        """
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return list(cursor.fetchall())

    def stream(self, sql: str, args: Sequence[object] | None = None) -> Iterator[tuple[Any, ...]]:
        """Run a query, with ``args`` for its ``%s``, and yield its rows one by one, so that the use
        of memory does not grow with the number of rows. No other query can run meanwhile. If the
        iteration ends early, the session is closed.
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
        """Insert rows by statements of at most ``size`` rows each. The caller has begun a
        transaction.

        Args:
            into: the table and, in brackets, its columns.
            rows: the values of each row.
            size: maximum of rows in a statement.
            clause: SQL that follows the values; it begins with a space, or is empty.
        """
        for part in parts(rows, size):
            values = ", ".join([f"({marks(part[0])})"] * len(part))
            args = [value for row in part for value in row]
            self.execute(f"INSERT INTO {into} VALUES {values}{clause}", args)

    def literal(self, text: str) -> str:
        """Return ``text`` as an SQL literal, quoted by the driver."""
        return self._connection.escape(text)

    def see_all_commits(self) -> None:
        """Let each later transaction see everything that any Galera node committed before that
        transaction. Does nothing without Galera; the subclass for Galera overrides it.
        """

    def begin(self, *, snapshot: bool = False) -> None:
        """Begin a transaction.

        Args:
            snapshot: True for a read-only transaction whose snapshot is taken now. Then the session
                must have the isolation level REPEATABLE READ.
        """
        options = " WITH CONSISTENT SNAPSHOT, READ ONLY" if snapshot else ""
        self.execute(f"START TRANSACTION{options}")

    def commit(self) -> None:
        """Commit the transaction. If this raises Unavailable, it is unknown whether the transaction
        was committed. It may be run again if it first checks that, for example by guard rows.
        """
        with self._translated():
            self._connection.commit()

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one. In a closed session nothing is done,
        because the server has rolled back already.
        """
        if self.closed:
            return
        with self._translated():
            self._connection.rollback()

    @contextmanager
    def transaction(self, *, snapshot: bool = False) -> Iterator[None]:
        """Run the block in a transaction: BEGIN before it and COMMIT after it. After any exception
        roll back, or close the session if that fails; then raise the exception.

        Args:
            snapshot: True for a read-only transaction in a snapshot; see :meth:`begin`.
        """
        self.begin(snapshot=snapshot)
        try:
            yield
            self.commit()
        except BaseException:
            self.rollback_or_close()
            raise

    @contextmanager
    def variable(self, name: str, within: object, afterwards: object) -> Iterator[None]:
        """Set a session variable to the value ``within`` during the block. At the block's end, also
        after an exception, set it to ``afterwards``, unless the session is closed by then.
        """
        self.execute(f"SET SESSION {name} = %s", (within,))
        try:
            yield
        finally:
            if not self.closed:
                self.execute(f"SET SESSION {name} = %s", (afterwards,))

    def rollback_or_close(self) -> None:
        """Roll back the open transaction; if that fails, close the connection. Never raises."""
        try:
            self.rollback()
        except StoreError:
            self.close(hard=True)

    def silent(self) -> bool:
        """Return whether the connection is open and the server has sent nothing unread. If the
        server has ended the connection, the result is False. Nothing is sent.
        """
        sock = getattr(self._connection, "_sock", None)
        if self.closed or sock is None:
            return False
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)

    def answers(self) -> bool:
        """Return whether the server answers the statement ``DO 0``. If not, close the session. This
        never raises.
        """
        try:
            self.execute("DO 0")
        except StoreError:
            self.close(hard=True)
            return False
        return True

    @contextmanager
    def reply_timeout(self, seconds: float) -> Iterator[None]:
        """Within the block, raise Unavailable after ``seconds`` without a reply from the server, if
        that is less than the session's usual read timeout.
        """
        driver: Any = self._connection
        usual = driver._read_timeout
        driver._read_timeout = min(usual, seconds)
        try:
            yield
        finally:
            driver._read_timeout = usual

    def takes_writes(self) -> bool:
        """Return whether the server still takes writes: it is not read-only and, in a replication
        group, is the only primary, with the majority. Never raises: if the query fails, the session
        is closed and the result is False.
        """
        try:
            found = dict(self.query(show("VARIABLES", hosts.VARIABLES)))
            return not hosts.why_read_only(found, self.query)
        except StoreError:
            self.close(hard=True)
            return False

    def close(self, *, hard: bool = False) -> None:
        """Close the connection. This never raises.

        Args:
            hard: True to break the connection without telling the server.
        """
        if hard:
            self.abort()
        end_connection(self._connection)

    def abort(self) -> None:
        """Break the connection. Any thread may call this. A method that is waiting for a reply then
        raises Unavailable.
        """
        sock = getattr(self._connection, "_sock", None)
        if isinstance(sock, socket.socket):
            with suppress(OSError):  # not connected any more
                # Not sock.shutdown(): on a TLS socket it drops state that another thread uses.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

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


_SPARE_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def end_connection(connection: "pymysql.connections.Connection[Any]") -> None:
    """Close a connection of the driver, even if it is broken or closed. This never raises."""
    with suppress(Exception):  # after any error the socket is closed
        if connection.open:
            connection.close()
    forget_tls_errors()


def forget_tls_errors() -> None:
    """Clear this thread's queue of OpenSSL errors after a TLS connection has broken.

    Python 3.13 leaves the error in the queue. The next read of another connection in the same
    thread would raise it. Python clears the queue when it refuses a list of ciphers, so this
    function sets an invalid one.
    """
    with suppress(ssl.SSLError):
        _SPARE_TLS.set_ciphers("NONE")


def rerun(
    work: Callable[[], Result],
    *,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
) -> Result:
    """Call ``work``, again while it raises Conflict, at most ``attempts`` times. Return its result.

    Before each further call there is a pause of random length, up to half a second, so that the
    same two transactions do not conflict again.

    Args:
        work: a transaction that rolls back if it raises.
        attempts: maximum of calls.
        pause: sleeps for the seconds in its argument.

    Raises:
        Conflict: the last call raised it. Other exceptions of ``work`` are raised at once.
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
    """Run the block. If it raises a Conflict, raise instead a Conflict with a longer message:
    ``reason``, the first message in brackets, and ``advice``.
    """
    try:
        yield
    except Conflict as error:
        raise Conflict(f"{reason} ({error}): {advice}", code=error.code) from error


def rerun_transaction(
    session: Session, work: Callable[[], Result], *, attempts: int = ATTEMPTS
) -> Result:
    """Run ``work`` in a transaction of the session, and return its result. After a Conflict, run
    the whole transaction again, at most ``attempts`` times in all. See :func:`rerun`.
    """

    def attempt() -> Result:
        with session.transaction():
            return work()

    return rerun(attempt, attempts=attempts)

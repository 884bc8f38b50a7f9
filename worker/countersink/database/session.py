"""``Session``, a connection to MySQL: statements, transactions, timeouts; and ``rerun``, which runs
a transaction again after a conflict. See ``connection.py`` for logins and session variables."""

import math
import random
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
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
from countersink.database.sql import (
    Dialect,
    marks,
    parts,
    show,
)
from countersink.database.url import Settings

Result = TypeVar("Result")


Connect = Callable[[], "Session"]
"""Makes a new session; raises StoreError."""


_ROWS_PER_FETCH: Final = 1000
"""Rows of :meth:`Session.stream` that are fetched at once."""


ATTEMPTS: Final = 6
"""Attempts of :func:`rerun` at a transaction."""


_FIRST_PAUSE: Final = 0.01


_LONGEST_PAUSE: Final = 0.5


@dataclass(eq=False, repr=False)
class Session(AbstractContextManager["Session", None]):
    """A connection with its session variables set. Other threads may call only :meth:`abort` and
    :func:`countersink.database.connection.interrupt`.

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
        interrupted: it was interrupted: the session can only be closed.
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
        end_connection(self._connection)

    def abort(self) -> None:
        """Break the connection, from any thread: a waiting method raises Unavailable."""
        sock = getattr(self._connection, "_sock", None)
        if isinstance(sock, socket.socket):
            with suppress(OSError):  # not connected any more
                # Not sock.shutdown(): on a TLS socket it drops state that another thread uses.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

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


_SPARE_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def end_connection(connection: "pymysql.connections.Connection[Any]") -> None:
    """Close a connection, which may be broken or closed. Never raises."""
    with suppress(Exception):  # after any error the socket is closed
        if connection.open:
            connection.close()
    forget_tls_errors()


def forget_tls_errors() -> None:
    """Clear the thread's OpenSSL error queue after a broken TLS connection.

    Python 3.13 leaves the error in the queue, where the next read of any connection of this thread
    takes it for its own. Python does clear the queue after a refused list of ciphers.
    """
    with suppress(ssl.SSLError):
        _SPARE_TLS.set_ciphers("NONE")


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

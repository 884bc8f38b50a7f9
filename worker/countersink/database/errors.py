"""Exceptions of the database, chosen by MySQL error number (``BAD_DATA``, ``DUPLICATE_KEY``,
``CONFLICT``, ``UNAVAILABLE``), with advice for some numbers (``_ADVICE``). See ``rerun`` in
``session.py`` for how long a retry waits.

::

    StoreError
    ├── Unavailable      no server answers (refused, lost, frozen, shutting down, read-only):
    │                    connect again, run the transaction again
    ├── Conflict         another transaction conflicted: roll back, run the transaction again
    │   └── ReadInterrupted  KILL QUERY or max_statement_time ended the statement: run it
    │                        again if there is time left
    ├── BadData          a value that the server will never store
    ├── DuplicateKey     a row with this key exists
    ├── Refused          everything else (disk full, revoked grant, bad password): report it, wait,
    │   │                try again
    │   ├── UnknownZone      a counter's time zone that this machine does not know
    │   └── OtherWriter      a Galera node, while another node takes countersink's writes
    ├── SchemaMismatch   tables missing, older or newer than this program; says what to do
    └── Misconfigured    the URL or a TLS file cannot be used; also a ValueError

Further subclasses of these exceptions are in the ``errors.py`` of ``counting`` and ``sequences``.

Every exception that stems from the driver has the driver's exception as ``__cause__``, and as
``code`` the error number of the server or of the driver, if there is one. After Unavailable it is
unknown whether the statement took effect; this matters most for COMMIT. After Conflict, BadData,
DuplicateKey and Refused the transaction may still be open, with a part of its work done. So roll
back even where the server says that it has rolled back.

Only this module tells the driver's exceptions apart; ``session.py`` and ``connection.py`` pass each
of them to :func:`translate`. The numbers are those of the MySQL and MariaDB error references:
server errors from 1000 on, client errors from 2000 on.
"""

import struct
import time
from typing import Final

# Not pymysql.err: it is replaced where an application loads parts of PyMySQL a second time, under
# the name MySQLdb, as Django does. Our connections keep raising the exceptions of this one.
from pymysql.connections import err as driver  # type: ignore[attr-defined]

from countersink.runtime.errors import ExplainedError

DOCTOR: Final = "run countersink doctor to check the whole installation"
"""Advice for errors that have no advice of their own."""


class StoreError(ExplainedError):
    """The base class of all exceptions of the database.

    Attributes:
        code: the error number of the server or the driver; 0 if there is none.
    """

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Unavailable(StoreError):
    """The server is unavailable: the connection was refused or is lost, the server has too many
    connections, or it takes no writes. Connect again and run the transaction again. It is unknown
    whether the last statement took effect.
    """

    advice = "check that the server runs and that COUNTERSINK_MYSQL_URL names it"


class Conflict(StoreError):
    """Another transaction conflicted with this one: a deadlock, a lock wait that took too long, or
    a lost race. Roll back, and run the whole transaction again.
    """

    advice = DOCTOR


class ReadInterrupted(Conflict):
    """KILL QUERY or a time limit ended a statement, which may also be one that writes. Or a read
    was cancelled before its next statement.
    """


class BadData(StoreError):
    """The server will never store one of the values that were sent. The server's error numbers are
    in :data:`BAD_DATA`.

    Rows are checked before they are sent, so this is a bug of countersink. Roll the transaction
    back.
    """

    advice = DOCTOR


class DuplicateKey(StoreError):
    """A statement failed because a row with the same key exists."""

    advice = DOCTOR


class Refused(StoreError):
    """The server refused the login or a statement for a reason other than the data, such as a
    missing right, a full disk or a version that is too old. Every error of the driver for which
    there is no other class is also a Refused.
    """

    advice = DOCTOR


class UnknownZone(Refused):
    """This machine does not know the time zone of a counter or of a sequence."""


class OtherWriter(Refused):
    """A login to a Galera node was refused, because another node takes all of countersink's writes.

    Attributes:
        writer: address of the other node, or its UUID if its address is unknown.
        uses: sum of the column ``uses`` of ``writer_fence`` when this was raised: each transaction
            that writes adds 1 to it; below 0 if the sum is unknown.
        since: time on the monotonic clock when this was raised, in seconds.
    """

    def __init__(self, writer: str, uses: int = -1) -> None:
        super().__init__(
            f"in this Galera cluster another node, {writer}, takes countersink's writes: name that"
            " node in COUNTERSINK_MYSQL_URL, or several nodes (h1:3306,h2:3306)"
        )
        self.writer = writer
        self.uses = uses
        self.since = time.monotonic()


class SchemaMismatch(StoreError):
    """The tables have another version than this program needs, or the tables or their database do
    not exist. The message says which command to run, or that the program must be upgraded.

    Attributes:
        newer: True if a newer program has migrated the tables, so that this program must be
            upgraded.
    """

    def __init__(self, message: str, *, code: int = 0, newer: bool = False) -> None:
        super().__init__(message, code=code)
        self.newer = newer


class Misconfigured(StoreError, ValueError):
    """The URL of the database, or a file that the URL names, cannot be used."""

    advice = "check COUNTERSINK_MYSQL_URL"


BAD_DATA: Final = frozenset(
    {
        1264,  # Out of range value for column
        1690,  # BIGINT value is out of range in an expression
        1406,  # Data too long for column
        1366,  # Incorrect string value
        1300,  # Invalid character string
        3854,  # Cannot convert string between character sets (MySQL)
        1292,  # Incorrect DATETIME value
        1411,  # Incorrect value for a function
        1441,  # Datetime function overflow
    }
)
"""Server errors that a value of a row causes."""

DUPLICATE_KEY: Final = frozenset({1022, 1062, 1586})
"""Server errors for a row whose key exists."""

CONFLICT: Final = frozenset(
    {
        1020,  # Record has changed since last read (MariaDB's innodb_snapshot_isolation)
        1205,  # Lock wait timeout: only the statement was undone
        1213,  # Deadlock; on Galera also a lost certification, at COMMIT too
        1317,  # Query execution was interrupted (KILL QUERY)
        1614,  # XA_RBDEADLOCK
        1637,  # Too many active concurrent transactions
        1969,  # max_statement_time exceeded (MariaDB)
        3024,  # max_execution_time exceeded (MySQL)
        # The plugin instructed the server to roll back (group replication): a lost race; or the
        # member has left its group, and the next attempt fails by read_only.
        3101,
        3572,  # NOWAIT met a lock (MySQL; MariaDB says 1205)
    }
)
"""Server errors after which the same transaction can succeed when it is run again."""

INTERRUPTED: Final = frozenset({1317, 1969, 3024})
"""Those errors of :data:`CONFLICT` that say that KILL QUERY or a time limit ended the statement."""

HELD: Final = frozenset({*range(3781, 3784), *range(3796, 3800)})
"""Errors of group replication when a transaction could not begin, because it waited too long for a
new primary or for its group."""

UNAVAILABLE: Final = frozenset(
    {
        0,  # InterfaceError(0, ''): the driver closed the connection earlier
        1040,  # Too many connections
        1047,  # WSREP has not yet prepared node for application use (Galera)
        1053,  # Server shutdown in progress
        1077,  # Normal shutdown
        1079,  # Shutdown complete
        1152,  # Aborted connection
        *range(1153, 1162),  # packet too large, network errors: the server has closed it
        1180,  # Got an error during COMMIT: the outcome is unknown
        1181,  # Got an error during ROLLBACK
        1184,  # Aborted connection
        1203,  # max_user_connections
        1226,  # A resource limit of the user is reached
        1290,  # read_only: the connection leads to what is now a replica
        1792,  # Cannot execute statement in a READ ONLY transaction
        1836,  # Running in read-only mode
        1927,  # Connection was killed (MariaDB)
        2002,
        2003,
        2005,
        2006,
        2012,
        2013,
        2014,
        2027,
        2055,
        3032,  # offline_mode: a group sets it on a member that it has expelled
        3098,  # The table does not comply with the plugin: the member cannot write (group repl.)
        3100,  # The plugin failed at COMMIT: the member is not online (group replication)
        *HELD,
        3168,  # Server isn't available
        3169,  # Session was killed
        4031,  # Disconnected for inactivity (MySQL)
        9001,  # ProxySQL: no backend reached in time
    }
)
"""Errors of a server that cannot serve this connection, and of the driver for a lost connection."""

DENIED: Final = (1142, 1143)
"""Errors for a user who has no right to a table (1142) or to a column (1143)."""
UNKNOWN_DATABASE: Final = 1049
NO_SUCH_TABLE: Final = 1146

_ADVICE: Final = {
    1044: "grant this user its rights on the database",
    1045: "check the user and the password in the URL",
    UNKNOWN_DATABASE: "run `countersink migrate`",
    NO_SUCH_TABLE: "run `countersink migrate`",
    1142: "grant this user its rights on the database",
    1370: "grant this user its rights on the database",
}
"""Error number → what to do, for the end of the message."""


def translate(error: BaseException) -> StoreError:
    """Return the StoreError for an exception of the driver. A StoreError is returned as it is. The
    caller raises the result ``from error``.

    The driver's exceptions are told apart by their error numbers. An error of the connection, or
    a reply that cannot be parsed, becomes Unavailable; a certificate that does not verify becomes
    Refused, and so does every exception for which there is no other class.
    """
    if isinstance(error, StoreError):
        return error
    if isinstance(error, driver.MySQLError):
        return _from_driver(error)
    if isinstance(error, (OSError, EOFError, struct.error, IndexError, AttributeError)):
        # A broken socket, or bytes that are no MySQL packet, on which the driver's parser raises
        # various errors.
        return Unavailable(f"the database cannot be reached: {_text(error)}")
    return Refused(f"the database driver failed: {_text(error)}")


def _from_driver(error: driver.MySQLError) -> StoreError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else None
    message = str(error.args[1]) if code is not None and len(error.args) > 1 else _text(error)
    cause = getattr(error, "original_exception", None)
    if cause is not None and type(cause).__name__ == "SSLCertVerificationError":
        return Refused(f"the server's certificate does not verify: {cause}", code=code or 0)
    if code is None:
        # "Already closed" and the like: the driver's own, about a closed connection. Misuse has
        # other classes.
        misuse = isinstance(error, (driver.ProgrammingError, driver.NotSupportedError))
        return (Refused if misuse else Unavailable)(message or "the connection is closed")
    if code == 0:
        return Unavailable("the connection to the database is closed")
    described = f"{message} (error {code})"
    if code in BAD_DATA:
        return BadData(described, code=code)
    if code in DUPLICATE_KEY:
        return DuplicateKey(described, code=code)
    if code in CONFLICT:
        return (ReadInterrupted if code in INTERRUPTED else Conflict)(described, code=code)
    if code in UNAVAILABLE:
        return Unavailable(described, code=code)
    if code in (UNKNOWN_DATABASE, NO_SUCH_TABLE):
        return SchemaMismatch(f"{described}: {_ADVICE[code]}", code=code)
    advice = f": {_ADVICE[code]}" if code in _ADVICE else ""
    return Refused(f"{described}{advice}", code=code)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__

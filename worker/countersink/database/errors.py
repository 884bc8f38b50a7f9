"""Errors of the database: which MySQL error numbers are retried, refused, unavailable or bad
data, and the advice by number (``_ADVICE``); the pause before a retry is in ``session.py``.

::

    StoreError
    ├── Unavailable      no server to talk to (refused, lost, frozen, shutting down, read-only):
    │                    connect again, rerun
    ├── Conflict         another transaction was in the way: roll back, rerun
    │   └── ReadInterrupted  by KILL QUERY, or after max_statement_time: rerun, if there is time
    ├── BadData          a value that no attempt will ever store
    ├── DuplicateKey     the row is there already
    ├── Refused          everything else (disk full, revoked grant, bad password): say so, wait,
    │   │                try again
    │   ├── UnknownZone      a counter's time zone that this machine does not know
    │   └── OtherWriter      a Galera node, but another one takes our writes
    ├── SchemaMismatch   the tables are older or newer than this program; says what to run
    └── Misconfigured    the URL or a TLS file cannot be used; also a ValueError

Each package above has its own below these, in its ``errors.py``.

Every error keeps the driver's as ``__cause__`` and the server's number as ``code``. After
Unavailable the outcome of the statement, and of a COMMIT above all, is unknown. After Conflict,
BadData, DuplicateKey and Refused the transaction may still be open with a part of its work done:
roll back, whatever the server claims to have done already.

Only this module and :mod:`countersink.database.session` see the driver's exceptions. The numbers
are those of the MySQL and MariaDB error references (server errors from 1000, client errors from
2000).
"""

import struct
import time
from typing import Final

import pymysql.err as driver

from countersink.runtime.errors import ExplainedError

DOCTOR: Final = "run countersink doctor for the whole picture"


class StoreError(ExplainedError):
    """Base of every error of the database.

    Attributes:
        code: the server's or the driver's error number; 0 where there is none.
    """

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Unavailable(StoreError):
    """The connection is lost, or was never made: connect again, rerun. The outcome is unknown."""

    advice = "check that the server runs and that COUNTERSINK_MYSQL_URL names it"


class Conflict(StoreError):
    """A deadlock, a lock wait, a lost race: roll back and rerun the whole transaction."""

    advice = DOCTOR


class ReadInterrupted(Conflict):
    """The statement was cut off: by KILL QUERY, or by a limit of time."""


class BadData(StoreError):
    """A value that the server will never take (:data:`BAD_DATA`). Whoever counts has checked each
    row before, so that this is a bug, and the transaction is undone.
    """

    advice = DOCTOR


class DuplicateKey(StoreError):
    """A plain INSERT met a row with the same key."""

    advice = DOCTOR


class Refused(StoreError):
    """The server answered and said no, and not for the data's sake."""

    advice = DOCTOR


class UnknownZone(Refused):
    """A counter counts in a time zone that this machine does not know."""


class OtherWriter(Refused):
    """A Galera node that could take writes, but another one of the cluster takes all of ours.

    Attributes:
        writer: the address of that one, or its UUID where it has none.
        uses: how often it was used up to then; less than 0: it is not known.
        since: when that was, on the monotonic clock.
    """

    def __init__(self, writer: str, uses: int = -1) -> None:
        super().__init__(
            "not the node of this Galera cluster that takes countersink's writes: that is"
            f" {writer}. Name that one in COUNTERSINK_MYSQL_URL, or several nodes (h1:3306,h2:3306)"
        )
        self.writer = writer
        self.uses = uses
        self.since = time.monotonic()


class SchemaMismatch(StoreError):
    """The tables do not fit this program; the message names the command that helps.

    Attributes:
        newer: a newer program has migrated them: waiting does not help, upgrading this one does.
    """

    def __init__(self, message: str, *, code: int = 0, newer: bool = False) -> None:
        super().__init__(message, code=code)
        self.newer = newer


class Misconfigured(StoreError, ValueError):
    """The URL, or a file that it names, cannot be used."""

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
"""Closed list of the codes that speak of the data itself."""

DUPLICATE_KEY: Final = frozenset({1022, 1062, 1586})

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
        # member has left its group, then the next attempt meets read_only.
        3101,
        3572,  # NOWAIT met a lock (MySQL; MariaDB says 1205)
    }
)

INTERRUPTED: Final = frozenset({1317, 1969, 3024})
"""Of these the ones that say that time was over, or somebody else's patience."""

HELD: Final = frozenset({*range(3781, 3784), *range(3796, 3800)})
"""A transaction waited for a new primary, or for its group, in vain, and did not begin."""

UNAVAILABLE: Final = frozenset(
    {
        0,  # InterfaceError(0, ''): the driver closed the connection earlier
        1040,  # Too many connections
        1047,  # WSREP has not yet prepared node for application use (Galera)
        1053,  # Server shutdown in progress
        1077,  # Normal shutdown
        1079,  # Shutdown complete
        1152,  # Aborted connection
        *range(1153, 1162),  # packet too large, network errors: the server has hung up
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
        3032,  # offline_mode: as a group does with a member that it has expelled
        3098,  # The table does not comply with the plugin: the member cannot write (group repl.)
        3100,  # The plugin failed at COMMIT: the member is not online (group replication)
        *HELD,
        3168,  # Server isn't available
        3169,  # Session was killed
        4031,  # Disconnected for inactivity (MySQL)
        9001,  # ProxySQL: no backend reached in time
    }
)

DENIED: Final = (1142, 1143)
"""The user has no right to the table, or the column."""
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


def translate(error: BaseException) -> StoreError:
    """Our error for whatever the driver raised; the caller raises it ``from error``."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, driver.MySQLError):
        return _from_driver(error)
    if isinstance(error, (OSError, EOFError, struct.error, IndexError, AttributeError)):
        # A broken socket, or bytes that are no MySQL packet: the driver's parser raises whatever it
        # stumbles over.
        return Unavailable(f"the database cannot be reached: {_text(error)}")
    return Refused(f"the database driver failed: {_text(error)}")


def _from_driver(error: driver.MySQLError) -> StoreError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else None
    message = str(error.args[1]) if code is not None and len(error.args) > 1 else _text(error)
    cause = getattr(error, "original_exception", None)
    if cause is not None and type(cause).__name__ == "SSLCertVerificationError":
        return Refused(f"the server's certificate does not verify: {cause}", code=code or 0)
    if code is None:
        # "Already closed" and the like: the driver's own, about a connection that is gone. Misuse
        # has other classes.
        gone = not isinstance(error, (driver.ProgrammingError, driver.NotSupportedError))
        return (Unavailable if gone else Refused)(message or "the connection is closed")
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

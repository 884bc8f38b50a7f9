"""Logins to the database server: ``connect`` opens a session, with timeouts, TLS, session variables
and a check of the server's ``max_allowed_packet``; ``interrupt`` ends a session's running
statement. See ``hosts.py`` for the choice among several hosts.

Exact counts depend on some session variables, so each login sets them, whatever the server's
defaults are: a strict ``sql_mode`` (else the server cuts a sum that is too large for its column,
without an error), the time zone UTC, the isolation level, autocommit, no chained transactions, no
limit on the rows of a result, short lock waits, and a short ``wait_timeout`` (by default a client
that has vanished keeps its row locks for 8 hours).
"""

import ssl
import time
from decimal import Decimal
from functools import cache, partial
from typing import Any, Final, Literal, TypedDict, Unpack

from pymysql.connections import Connection  # not of pymysql: see errors.py
from pymysql.constants.FIELD_TYPE import NEWDECIMAL
from pymysql.converters import conversions

from countersink.database import galera, hosts
from countersink.database.errors import (
    Misconfigured,
    OtherWriter,
    Refused,
    StoreError,
    Unavailable,
    translate,
)
from countersink.database.session import Session, end_connection, forget_tls_errors
from countersink.database.sql import (
    GROUP,
    SEVERAL_PRIMARIES,
    has_several_primaries,
    is_galera,
    parse_version,
    show,
)
from countersink.database.url import Settings

Isolation = Literal["READ COMMITTED", "REPEATABLE READ"]


CONNECT_TIMEOUT: Final = 5.0
"""Seconds that the TCP connection may take, and each reply of the server during the login."""


READ_TIMEOUT: Final = 15.0
"""Seconds without a reply after which the server counts as unavailable. They are more than a
statement waits for locks."""


LOCK_WAIT: Final = 5
"""Seconds that a statement waits for a row lock or a metadata lock."""


MIN_PACKET: Final = 16 * 1024 * 1024
"""Least ``max_allowed_packet`` of a server, in bytes. It is MariaDB's default, less than MySQL's,
and far more than our statements need."""


IDLE_SECONDS: Final = 30
"""Seconds after which the server ends an idle session, and with it the session's locks."""


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
"""Seconds after its login for which a pool uses a session, if the URL has several hosts. Later the
server may have become a replica, where reads raise no error but lack new counts."""


class SessionOptions(TypedDict, total=False):
    """Options of a session, for :func:`connect`. The default of each option is in brackets.

    Attributes:
        isolation: isolation level of the session's transactions (READ COMMITTED).
        read_timeout: seconds without a reply after which the server counts as unavailable
            (:data:`READ_TIMEOUT`).
        lock_wait: seconds that a statement waits for a lock before it raises Conflict
            (:data:`LOCK_WAIT`).
        idle_seconds: seconds after which the server ends the session if it is idle
            (:data:`IDLE_SECONDS`).
        to_read: True if the session will only read (False). Then any working node of a Galera
            cluster may serve it.
    """

    isolation: Isolation
    read_timeout: float
    lock_wait: int
    idle_seconds: int
    to_read: bool


def connect(
    where: Settings | str, *, database: bool = True, **options: Unpack[SessionOptions]
) -> Session:
    """Log in to the database server, set the session's variables, and return the session. If the
    URL has several hosts, the session is on the first host that takes writes; with ``to_read`` on
    Galera, on the first node that works. Hosts that were silent lately are asked last.

    Args:
        where: a URL (see :meth:`Settings.parse`), or the settings parsed from it.
        database: True to select the URL's database; False if that may not exist yet.
        options: options of the session.

    Raises:
        Misconfigured: the URL cannot be used, is ``off://``, or names no database.
        SchemaMismatch: the database does not exist.
        Refused: the password is wrong, the server's certificate does not verify, the server is too
            old, its ``max_allowed_packet`` is too small, or its replication group is set to have
            several primaries (not checked with ``to_read`` or without ``database``). With several
            hosts: each of them refuses.
        OtherWriter: another Galera node takes the writes. Only with one host; not checked with
            ``to_read`` or without ``database``. (OtherWriter is a subclass of Refused.)
        Unavailable: no server answers, the Galera node is in no state to take writes, or none of
            several hosts takes writes; also if the group of several hosts has several primaries.
            Whether a single host that is not of Galera takes writes is not checked.
    """
    settings = Settings.parse(where) if isinstance(where, str) else where
    if settings.off:
        raise Misconfigured("there is no database: COUNTERSINK_MYSQL_URL is missing or off://")
    if database and settings.database is None:
        raise Misconfigured("the MySQL URL names no database: add /name to it")
    log_in = partial(_log_in, database=database, **options)
    if not settings.others:
        return log_in(settings)
    session = hosts.first_writable(settings, partial(log_in, to_write=True))
    session.keep_until = time.monotonic() + MOVE_S
    _watch.add(session, settings)
    return session


def interrupt(session: Session) -> None:
    """End the running statement of a session from another thread, by KILL QUERY. The session raises
    ReadInterrupted for this statement and for all later ones. This function never raises.

    It logs in as the session's user, because a user may end their own statements without a further
    right. If the login or KILL QUERY fails, it breaks the session's connection. KILL QUERY has no
    effect on a statement that has not reached the server yet. So repeat the call until the thread
    that uses the session has closed it.
    """
    session.interrupted = True
    try:
        with connect(session.where, database=False) as other:
            if other.server != session.server:  # where the number is another connection's
                raise Unavailable("another server answers to this name")
            other.execute(f"KILL QUERY {session.connection_id:d}")
    except StoreError:
        session.abort()


def _probe(host: Settings) -> Session:
    """Return a session on a host, opened with short time limits, to find out whether the host takes
    writes. If it takes none, the login raises Unavailable. :class:`hosts.Watch` calls this.
    """
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
    """Open a session on one host.

    Args:
        settings: the host, and the login.
        database: True to select the URL's database.
        former: the error that names the writer of a Galera cluster, if no host of the URL could
            reach the writer, so that this node may become the writer; else None.
        isolation, read_timeout, lock_wait, idle_seconds, to_read: as in :class:`SessionOptions`.
        to_write: True to accept the host only if it takes writes.
        connect_timeout: seconds for the connection, and for each reply during the login; None for
            :data:`CONNECT_TIMEOUT`.

    Raises:
        Unavailable: the host does not answer, or takes no writes. The second is checked with
            ``to_write``; on a node of Galera also with ``database`` or ``to_read``.
        OtherWriter: another node of the Galera cluster takes the writes. This is checked with
            ``database``, and without ``to_read``.
        StoreError: any other error of :func:`connect`.
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
        end_connection(connection)
        raise translate(error) from error
    # The login had the short timeout (the driver uses read_timeout there, too).
    driver: Any = connection
    driver._read_timeout = driver._write_timeout = read_timeout
    server = (found.get("hostname", ""), found.get("port", ""))
    fields = connection, dialect, _SNAPSHOT_ISOLATION in found, settings, server
    if not is_galera(found):
        return Session(*fields)
    session = galera.GaleraSession(*fields)
    return galera.admit(session, database and not to_read, to_write or to_read, former)


@cache
def _unverified_tls() -> ssl.SSLContext:
    """Return the TLS context for URLs without TLS options: it encrypts and verifies nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class _Connection(Connection):
    """A connection of the driver PyMySQL. All connections without TLS options share one TLS
    context.

    The driver itself would make a TLS context for each connection. It would load all certificate
    authorities of the machine, which takes 28 ms, and then check no certificate.
    """

    def _create_ssl_ctx(self, options: ssl.SSLContext | dict[str, Any]) -> ssl.SSLContext:
        if not options:
            return _unverified_tls()
        made: ssl.SSLContext = super()._create_ssl_ctx(options)  # type: ignore[misc]
        return made


def _number(text: str) -> int | Decimal:
    """Return the value of a DECIMAL: an int if its text has no decimal point, else a Decimal."""
    try:
        return int(text)
    except ValueError:
        return Decimal(text)


_CONVERSIONS: Final = conversions | {NEWDECIMAL: _number}
"""The driver's conversions of column values, except that a whole DECIMAL becomes an int."""


def _open(settings: Settings, database: bool, timeout: float) -> "Connection[Any]":
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
        forget_tls_errors()
        raise translate(error) from error
    # Older drivers go on without encryption where the server offers none.
    if context is not None and not isinstance(getattr(connection, "_sock", None), ssl.SSLSocket):
        end_connection(connection)
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

"""Logins: ``connect`` makes sessions, with timeouts, TLS, session variables and the least
max_allowed_packet. See ``hosts.py`` for the choice among several hosts.

Everything on which exactness depends is set on each session, whatever the server's defaults are:
strict ``sql_mode`` (else a sum beyond its column is clipped without an error), UTC, the isolation
level, no chained transactions, no limit on results, short lock waits, and ``wait_timeout`` (a
half-dead client would keep its row locks for the default of 8 hours).
"""

import ssl
import time
from decimal import Decimal
from functools import cache, partial
from typing import Any, Final, Literal, TypedDict, Unpack

import pymysql
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
"""Seconds for the TCP connection, and for each reply during login."""


READ_TIMEOUT: Final = 15.0
"""Seconds until a silent server counts as unavailable; longer than the lock waits."""


LOCK_WAIT: Final = 5
"""Seconds that a statement waits for a row lock or a metadata lock."""


MIN_PACKET: Final = 16 * 1024 * 1024
"""Least ``max_allowed_packet`` in bytes; the default of both servers, far above our statements."""


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


def interrupt(session: Session) -> None:
    """End the running statement of a session and all later ones with ReadInterrupted, from another
    thread. Never raises.

    It logs in as the session's user, so it needs no further right. A call between two statements
    may have no effect: call it again until the session is closed.
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
    """TLS without a certificate check, for URLs without TLS options."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


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

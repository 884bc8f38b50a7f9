"""The worker's connections to MySQL: each checks that the tables are ones this program knows."""

from countersink.store.connection import READ_TIMEOUT, Session, connect
from countersink.store.errors import (
    Conflict,
    Misconfigured,
    Refused,
    SchemaMismatch,
    StoreError,
    Unavailable,
)
from countersink.store.migrate import require_schema
from countersink.store.settings import Settings


class SchemaTooNew(Exception):
    """A newer version has migrated the tables: waiting would not help, this program has to be
    upgraded.
    """


def open_tables(settings: Settings, *, read_timeout: float = READ_TIMEOUT) -> Session:
    """A session in which the tables are as this program needs them.

    Args:
        settings: where they are.
        read_timeout: seconds until a silent server counts as gone.

    Raises:
        SchemaTooNew: they are newer.
        SchemaMismatch: there are none, or older ones: ``countersink migrate`` helps.
        StoreError: as :func:`countersink.store.connection.connect`.
    """
    session = connect(settings, read_timeout=read_timeout)
    try:
        check_tables(session)
    except (StoreError, SchemaTooNew):
        session.close()
        raise
    return session


def check_tables(session: Session) -> None:
    """Check that the tables are as this program needs them.

    Raises:
        SchemaTooNew: they are newer.
        SchemaMismatch: there are none, or older ones: ``countersink migrate`` helps.
        StoreError: as any query.
    """
    try:
        require_schema(session)
    except SchemaMismatch as error:
        if error.newer:
            raise SchemaTooNew(str(error)) from error
        raise


def passes(error: Exception) -> bool:
    """Whether ``error`` may go away by itself or by an operator's hand, so that the worker waits.

    BadData and DuplicateKey are none of these: the store deals with them, so one that gets out is a
    bug.
    """
    return isinstance(error, (Unavailable, Conflict, Refused, SchemaMismatch, Misconfigured))

"""Sessions on tables that are known to be of our version."""

from countersink.store.connection import (
    IDLE_SECONDS,
    LOCK_WAIT,
    READ_TIMEOUT,
    Isolation,
    Session,
    connect,
)
from countersink.store.migrate import require_schema
from countersink.store.settings import Settings


def open_tables(
    where: Settings | str,
    *,
    isolation: Isolation = "READ COMMITTED",
    read_timeout: float = READ_TIMEOUT,
    lock_wait: int = LOCK_WAIT,
    idle_seconds: int = IDLE_SECONDS,
) -> Session:
    """Log in as :func:`countersink.store.connection.connect` does, and check the tables.

    Raises:
        SchemaMismatch: there are none, or others.
        StoreError: as connecting.
    """
    session = connect(
        where,
        isolation=isolation,
        read_timeout=read_timeout,
        lock_wait=lock_wait,
        idle_seconds=idle_seconds,
    )
    try:
        require_schema(session)
    except BaseException:
        session.close()
        raise
    return session

"""The database: connections, migrations, applying entries exactly once, totals.

::

    from countersink.store import Store

    store = Store.from_env()
    store.totals.daily("page_views", key="/home")
"""

from countersink.store.errors import (
    BadData,
    Conflict,
    DuplicateKey,
    Misconfigured,
    Refused,
    SchemaMismatch,
    StoreError,
    Unavailable,
    UnknownCounter,
)
from countersink.store.store import Store

__all__ = [
    "BadData",
    "Conflict",
    "DuplicateKey",
    "Misconfigured",
    "Refused",
    "SchemaMismatch",
    "Store",
    "StoreError",
    "Unavailable",
    "UnknownCounter",
]

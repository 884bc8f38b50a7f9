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
    InexactZone,
    Misconfigured,
    Refused,
    RolledUp,
    SchemaMismatch,
    SequenceExhausted,
    SequenceUncertain,
    StoreError,
    TrackedCounter,
    Unavailable,
    UnknownCounter,
)
from countersink.store.store import Store

__all__ = [
    "BadData",
    "Conflict",
    "DuplicateKey",
    "InexactZone",
    "Misconfigured",
    "Refused",
    "RolledUp",
    "SchemaMismatch",
    "SequenceExhausted",
    "SequenceUncertain",
    "Store",
    "StoreError",
    "TrackedCounter",
    "Unavailable",
    "UnknownCounter",
]

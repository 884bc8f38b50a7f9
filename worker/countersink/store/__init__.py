"""The database, for applications and processes: ``Store``, totals, counters, sequences, migrations,
applying of entries.

::

    from countersink.store import Store

    store = Store.from_env()
    store.totals.daily("page_views", key="/home")
"""

try:
    import pymysql  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "countersink.store needs PyMySQL: pip install 'countersink[server]'", name=error.name
    ) from error

from countersink.database.errors import (
    BadData,
    Conflict,
    DamagedSketch,
    DuplicateKey,
    IncompleteBreakdown,
    InexactZone,
    Misconfigured,
    NoSketches,
    NotUnique,
    Refused,
    RolledUp,
    SchemaMismatch,
    SequenceExhausted,
    SequenceUncertain,
    StoreError,
    TrackedCounter,
    Unavailable,
    UnknownCounter,
    UnknownDimension,
)
from countersink.store.store import Store

__all__ = [
    "BadData",
    "Conflict",
    "DamagedSketch",
    "DuplicateKey",
    "IncompleteBreakdown",
    "InexactZone",
    "Misconfigured",
    "NoSketches",
    "NotUnique",
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
    "UnknownDimension",
]

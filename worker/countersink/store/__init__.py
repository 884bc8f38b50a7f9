"""The database, for applications and processes: ``Store``, totals, counters, sequences, migrations,
applying of entries.

::

    from countersink.store import Store

    store = Store.from_env()
    store.totals.daily("page_views", key="/home")
"""

from countersink.counting.errors import (
    DamagedSketch,
    IncompleteBreakdown,
    InexactZone,
    NoSketches,
    NotUnique,
    RolledUp,
    TrackedCounter,
    UnknownCounter,
    UnknownDimension,
)
from countersink.database.errors import (
    BadData,
    Conflict,
    DuplicateKey,
    Misconfigured,
    Refused,
    SchemaMismatch,
    StoreError,
    Unavailable,
)
from countersink.sequences.errors import SequenceExhausted, SequenceUncertain
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

"""Sentences for the errors of the queue and of the database, with what to do next.

Imported only when an error is there to explain: it needs the drivers.
"""

from countersink.store.errors import (
    InexactZone,
    Misconfigured,
    RolledUp,
    SchemaMismatch,
    SequenceExhausted,
    SequenceUncertain,
    StoreError,
    UnknownCounter,
)
from countersink.store.errors import Unavailable as StoreUnavailable
from countersink.stream.errors import StreamError, StreamMisconfigured, StreamUnavailable


def sentence_of(error: BaseException) -> str | None:
    """The sentence for an error of ours; None for any other."""
    text = str(error).rstrip(".")
    if isinstance(error, StreamUnavailable):
        return f"{text}; check that the server runs and that COUNTERSINK_REDIS_URL names it"
    if isinstance(error, StreamMisconfigured):
        return f"{text}; check COUNTERSINK_REDIS_URL"
    if isinstance(error, StoreUnavailable):
        return f"{text}; check that the server runs and that COUNTERSINK_MYSQL_URL names it"
    if isinstance(error, Misconfigured):
        return f"{text}; check COUNTERSINK_MYSQL_URL"
    if isinstance(
        error,
        SchemaMismatch
        | UnknownCounter
        | RolledUp
        | InexactZone
        | SequenceExhausted
        | SequenceUncertain,
    ):
        return text
    if isinstance(error, StoreError):
        return f"{text}; run countersink doctor for the whole picture"
    if isinstance(error, StreamError):
        return text
    return None

"""Cells as SQL: rows of one (counter, bucket, key), many to a statement.

Such a statement is put together here, not by the driver, whose binding of single values costs more
than half of what the server then needs for the row: keys go as hex literals, numbers through
``:d``, the texts of the few counters and buckets through the driver's own quoting, so nothing can
be read as SQL.
"""

from typing import Final

from countersink.store.buckets import label_text
from countersink.store.connection import Session

CELLS_PER_STATEMENT: Final = 1000
CELL_BYTES: Final = 800
"""More than any cell takes whose counter and key are as long as they may be."""
_OVERHEAD_BYTES: Final = 1024


def room(session: Session) -> int:
    """Bytes that the values of one statement may take."""
    return session.max_allowed_packet - _OVERHEAD_BYTES


def per_statement(session: Session, most: int = CELLS_PER_STATEMENT) -> int:
    """How many cells fit a statement, whatever their keys; at most ``most``."""
    return max(1, min(most, room(session) // CELL_BYTES))


def head(session: Session, counter: str, bucket: int) -> str:
    """The first part of a cell's literal, up to its key's hex digits; the caller closes it.

    Raises:
        UnicodeEncodeError: the counter holds a lone surrogate.
        OverflowError: the bucket's label is beyond the year 9999.
    """
    counter.encode()  # a lone surrogate is found here, not in the driver
    return f"({session.literal(counter)}, '{label_text(bucket)}', X'"

"""Counting one chunk of a source, in one transaction with the note that it was counted."""

from dataclasses import dataclass

from countersink.backfill.contents import Content
from countersink.backfill.formats import Reader
from countersink.backfill.sources import Source
from countersink.backfill.targets import Target
from countersink.store.connection import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a chunk came to; differences to what was counted of an unfinished line before.

    Attributes:
        lines, counted, filtered, rejected: lines.
        amount: what was added in all.
    """

    lines: int = 0
    counted: int = 0
    filtered: int = 0
    rejected: int = 0
    amount: int = 0


def count_chunk(
    session: Session,
    run: int,
    source: Source,
    start_at: int,
    content: Content,
    reader: Reader,
    target: Target,
    *,
    max_rejects: int | None = None,
) -> Counted | None:
    """Count the chunk of ``source`` that begins at ``start_at``, if it is ``pending`` or
    ``undone`` and nobody else is about to; it is ``run``'s then. Committed when it returns.

    Args:
        session: at READ COMMITTED, outside a transaction.
        content: of the source, which can be sought in.
        reader: for the source's recipe.

    Returns:
        What it came to; None: it was not to be had.

    Raises:
        Changed: the bytes are not those that were planned, or not there any more.
        RunEnded: the run is not running any more; nothing was counted.
        TooManyRejects: more lines than ``max_rejects`` are rejected in the run now; the chunk was
            not counted.
        Unreadable: the content cannot be read.
        StoreError: MySQL did not do its part; after Unavailable the outcome is unknown.
    """
    raise NotImplementedError

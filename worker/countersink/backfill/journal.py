"""What each chunk added, written down in its own transaction, so that it can be taken back."""

import json
import zlib
from collections.abc import Iterator
from typing import Any, Final

from countersink.backfill.options import BackfillError
from countersink.store.amounts import Amounts
from countersink.store.connection import Session

_CELLS: Final = 20_000
"""Cells per piece: some hundred kilobytes, compressed."""
_PACKET_SHARE: Final = 4
"""The driver may double the bytes of a binary literal; that much room again is kept."""
_FASTEST: Final = 1

_Entry = tuple[int, str, int]
"""(bucket's label, key, amount)."""


def write(session: Session, source: int, start_at: int, amounts: Amounts) -> None:
    """Write down the amounts of a chunk, all of one counter, in the caller's transaction."""
    most = session.max_allowed_packet // _PACKET_SHARE
    number = 0
    for cells in amounts.chunks(_CELLS):
        entries = [(bucket, key, amount) for _, bucket, key, amount in cells]
        for piece in _packed(entries, most):
            session.execute(
                "INSERT INTO backfill_journal (source, start_at, piece, cells)"
                " VALUES (%s, %s, %s, %s)",
                (source, start_at, number, piece),
            )
            number += 1


def read(session: Session, counter: str, source: int, start_at: int) -> Amounts:
    """What a chunk added.

    Raises:
        BackfillError: a piece of it is damaged.
    """
    amounts = Amounts()
    for number, piece in session.query(
        "SELECT piece, cells FROM backfill_journal WHERE source = %s AND start_at = %s"
        " ORDER BY piece",
        (source, start_at),
    ):
        try:
            for bucket, key, amount in _unpacked(piece):
                amounts.add(counter, bucket, key, amount)
        except (ValueError, TypeError, zlib.error, RecursionError) as error:
            raise BackfillError(
                f"piece {number} of the journal of source {source} from byte {start_at:,} on cannot"
                f" be read ({error}): nothing of that chunk was taken back; restore table"
                " backfill_journal from a backup"
            ) from error
    return amounts


def delete(session: Session, source: int, start_at: int) -> None:
    """Forget what a chunk added."""
    session.execute(
        "DELETE FROM backfill_journal WHERE source = %s AND start_at = %s", (source, start_at)
    )


def _unpacked(piece: bytes) -> Iterator[_Entry]:
    entries: Any = json.loads(zlib.decompress(piece))
    for bucket, key, amount in entries:
        # ``type``: True is a number to isinstance.
        if (type(bucket), type(key), type(amount)) != (int, str, int):
            raise ValueError("an entry is not a bucket, a key and an amount")
        yield bucket, key, amount


def _packed(entries: list[_Entry], most: int) -> Iterator[bytes]:
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
    packed = zlib.compress(text.encode(), _FASTEST)
    if len(packed) <= most or len(entries) == 1:
        yield packed
        return
    middle = len(entries) // 2
    yield from _packed(entries[:middle], most)
    yield from _packed(entries[middle:], most)

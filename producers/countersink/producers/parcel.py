"""A parcel: up to 1,000 rows sealed into one stream entry, from its encoding until it is stored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from countersink.stream.entry import Row, Sealed, encode_rows

PARCELS_AT_A_TIME: Final = 16
"""Parcels sent in one round trip, or written with one fsync."""


@dataclass(slots=True, eq=False)
class Parcel:
    """Rows on their way to Redis. Identity, not content, tells two parcels apart.

    Attributes:
        id: 32 hex digits, given at sealing and kept for ever.
        rows: the JSON, frozen.
        row_count: rows in it.
        increments: increments folded into them.
        generation: the generation of rows that they were taken from (see ``RowBuffer``).
        at: Unix ms on Redis's clock of the first attempt to send; ``None``: never attempted.
        in_doubt: it was sent and the answer was lost: Redis may have it.
        settled: it is stored, in Redis or in the spool; guarded by the producer's lock.
    """

    id: str
    rows: bytes
    row_count: int
    increments: int
    generation: int = 0
    at: int | None = None
    in_doubt: bool = False
    settled: bool = False

    def sealed(self) -> Sealed:
        """The entry to send: the same bytes at every attempt.

        Raises:
            RuntimeError: ``at`` was not stamped yet.
        """
        if self.at is None:
            raise RuntimeError("a parcel is stamped before it is sent")
        return Sealed(self.id, self.at, self.rows, self.increments)


def encode_pieces(pieces: Sequence[Sequence[Row]], breathe: Callable[[], None]) -> bytes:
    """What ``encode_rows`` gives for all the rows together, encoded piece by piece.

    The JSON encoder holds the interpreter lock for as long as it runs: ``breathe`` is called
    between two pieces, to let the app's threads go on.
    """
    encoded = []
    for number, piece in enumerate(pieces):
        if number:
            breathe()
        encoded.append(encode_rows(piece)[1:-1])  # without the brackets of the JSON array
    return b"[" + b",".join(encoded) + b"]"

"""The wire format, version 1: one stream entry carries one flush of at most 1,000 rows.

========  =====================================================================================
field     meaning
========  =====================================================================================
``v``     format version, ``1`` (missing: 1)
``id``    32 hex digits, unique per entry (missing: :func:`derived_id`)
``at``    Unix ms of the first attempt to send, on Redis's clock (missing: the stream id's time)
``rows``  JSON ``[[counter, key, minute, amount], …]``; minute in Unix minutes
========  =====================================================================================

An entry's bytes never change once it was first sent: a resend is byte-identical, so that whatever
number of copies arrive, they carry one ``id`` and are counted once.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1, sha256
from typing import Any, Final

VERSION: Final = 1
ROWS_PER_ENTRY: Final = 1000

Row = tuple[str, str, int, int]
"""(counter, key, minute, amount): event time in whole Unix minutes, a signed 64-bit amount."""

_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Sealed:
    """An entry as it goes over the wire, frozen.

    Attributes:
        id: 32 hex digits.
        at: Unix ms of the first attempt to send, on Redis's clock.
        rows: the JSON of :func:`encode_rows`.
        increments: how many increments were folded into the rows (not sent; for the producer's
            statistics).
    """

    id: str
    at: int
    rows: bytes
    increments: int = 0

    def fields(self) -> dict[Any, Any]:
        """The fields for XADD: the same bytes at every call."""
        return {"v": VERSION, "id": self.id, "at": self.at, "rows": self.rows}


def new_entry_id(now_ms: int) -> str:
    """A new entry id: 48 bits of Unix ms, then 80 random bits (the layout of UUID version 7, RFC
    9562).

    The time comes first so that guard rows are inserted in order. The rest is drawn from the
    operating system for every id: state kept in the process would repeat in forks and in cloned
    machines.
    """
    return f"{now_ms & 0xFFFFFFFFFFFF:012x}{os.urandom(10).hex()}"


def id_for(scope: str, *names: str) -> str:
    """The entry id of what the app has named itself: the same for the same texts, for ever.

    Args:
        scope: the namespace of the names.
        names: counter and id of an increment; just the id of a batch. No increment's entry has the
            id of a batch's.
    """
    parts = [part.encode("utf-8", "surrogatepass") for part in (scope, *names)]
    return sha256(b"".join(b"%d:%b," % (len(part), part) for part in parts)).hexdigest()[:32]


def derived_id(stream: str, stream_id: str, fields: Sequence[tuple[bytes, bytes]]) -> str:
    """The id of an entry that came without one: a hash of the stream's key, the stream id and all
    field bytes.

    ``scripts/acknowledge.lua`` computes the same, so SHA-1, the one hash that Redis offers to
    scripts.
    """
    parts = [stream.encode(), stream_id.encode()]
    for name, value in fields:
        parts += name, value
    return sha1(
        b"".join(b"%d:%b" % (len(part), part) for part in parts), usedforsecurity=False
    ).hexdigest()[:32]


def encode_rows(rows: Sequence[Row]) -> bytes:
    """The ``rows`` field for rows that passed the checks of :mod:`countersink.stream.limits`."""
    return _encode(rows).encode()

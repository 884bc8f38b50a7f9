"""Sightings of members as entries, hashed as a producer does, and an oracle of sets."""

import os
from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from hashlib import blake2b

from countersink.counting.apply import dead
from countersink.counting.apply.amounts import Incoming, Row
from countersink.counting.apply.dead import DeadRow
from countersink.counting.apply.key_caps import OVERFLOW
from countersink.counting.visitors import SketchUnion, checksum
from countersink.database.session import Session
from countersink.database.sql import LABEL, day_label
from countersink.runtime.dimensions import RowKey
from countersink.runtime.members import Seen
from tests.support.entries import minute, now_ms

Sighting = tuple[str, RowKey, int, str]
"""(counter, key or dimensions, Unix minute, member)."""


NOON = minute()
TODAY = day_label(date(2026, 11, 21))
OVER = OVERFLOW.encode()


def sightings(key: str, *members: str) -> list[Sighting]:
    """Of ``visitors``, at noon."""
    return [("visitors", key, NOON, member) for member in members]


def dead_rows(session: Session) -> list[DeadRow]:
    """All dead rows."""
    return [row for page in dead.pages(session) for key in page if (row := dead.lock(session, key))]


def salt_at(session: Session, counter: str, minute: int) -> tuple[int, bytes]:
    """The number and the bytes of the salt for an event."""
    found = session.query(
        "SELECT number, salt FROM visitor_salt WHERE counter = %s AND begins <= %s"
        " AND (ends IS NULL OR ends > %s)",
        (counter, minute, minute),
    )
    ((number, salt),) = found
    return int(number), bytes(salt)


def hashed(member: str, salt: bytes) -> bytes:
    """The hash of a member, worked out apart from what is tested."""
    return blake2b(member.encode("utf-8"), digest_size=8, key=salt).digest()


def seen_entry(
    session: Session, sightings: Sequence[Sighting], *plain: tuple[str, RowKey, int, int]
) -> Incoming:
    """An entry of sightings, a row for each key and minute, and of plain rows; hashes may recur."""
    folded: dict[tuple[str, RowKey, int], list[str]] = defaultdict(list)
    for counter, key, at, member in sightings:
        folded[counter, key, at].append(member)
    rows: list[Row] = []
    seen: dict[int, Seen] = {}
    for (counter, key, at), members in folded.items():
        number, salt = salt_at(session, counter, at)
        hashes = b"".join([hashed(member, salt) for member in members])
        seen[len(rows)] = Seen(number, hashes)
        rows.append((len(rows), counter, key, at, len(members)))
    rows += [(len(rows) + place, *row) for place, row in enumerate(plain)]
    sent = now_ms()
    return Incoming(sent.to_bytes(6, "big") + os.urandom(10), sent, rows, seen=seen)


def unions(session: Session, counter: str) -> dict[tuple[int, str], SketchUnion]:
    """The union of the slots of each (bucket's label, key), with each checksum looked at."""
    found: dict[tuple[int, str], SketchUnion] = defaultdict(SketchUnion)
    for label, key, slot, sketch, crc in session.query(
        f"SELECT {LABEL}, counter_key, slot, sketch, checksum FROM visitor_slot WHERE counter = %s",
        (counter,),
    ):
        assert checksum(counter, label, bytes(key), int(slot), bytes(sketch)) == crc
        found[label, bytes(key).decode()].add(bytes(sketch))
    return found


def numbers(session: Session, counter: str) -> dict[tuple[int, str], int]:
    """How many different members each (bucket's label, key) has; of small ones exactly."""
    return {place: union.visitors().total for place, union in unions(session, counter).items()}

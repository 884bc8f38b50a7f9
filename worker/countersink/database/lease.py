"""The table ``lease``: which slots workers may have (1 to 255), lease, renew, release; how long
leases last: ``worker/loop.py``.

A slot decides speed only: whoever was paused, and has lost its slot, may go on using it.
"""

import random
from typing import Final

from countersink.database.errors import Conflict, DuplicateKey
from countersink.database.session import Session
from countersink.database.sql import NOW_MS

FIRST_WORKER_SLOT: Final = 1
LAST_WORKER_SLOT: Final = 255
_TRIES: Final = 8


def take(session: Session, slot: int, holder: str, seconds: float) -> bool:
    """Lease a slot, if nobody holds it, the same holder included.

    Args:
        session: outside a transaction.
        slot: its number.
        holder: who takes it: a text that no other process uses.
        seconds: how long the lease lasts unless renewed.
    """
    name = _name(slot)
    try:
        session.execute(f"DELETE FROM lease WHERE name = %s AND expires_at <= {NOW_MS}", (name,))
        session.execute(
            f"INSERT INTO lease (name, holder, expires_at) VALUES (%s, %s, {NOW_MS} + %s)",
            (name, holder, round(seconds * 1000)),
        )
    except (Conflict, DuplicateKey):
        return False
    return True


def lease_worker_slot(session: Session, holder: str, seconds: float) -> int:
    """Lease a worker one of the slots 1 to 255; if all are taken, share one: slower, as right."""
    found = session.query(f"SELECT name FROM lease WHERE expires_at > {NOW_MS}")
    taken = {name for (name,) in found}
    slots = range(FIRST_WORKER_SLOT, LAST_WORKER_SLOT + 1)
    free = [slot for slot in slots if _name(slot) not in taken]
    # Drawn, so that workers that start together do not all ask for the same one.
    for slot in random.sample(free, min(len(free), _TRIES)):
        if take(session, slot, holder, seconds):
            return slot
    return any_slot()


def any_slot() -> int:
    """A slot of 1 to 255 that a worker may have, too: slower, as right."""
    return random.randint(FIRST_WORKER_SLOT, LAST_WORKER_SLOT)


def renew_worker_slot(session: Session, slot: int, holder: str, seconds: float) -> bool:
    """Keep a worker's slot; False if it is not the holder's (shared, expired): lease another."""
    # An UPDATE to the value that is there already would report no row.
    renewed = session.execute(
        f"UPDATE lease SET expires_at = GREATEST(expires_at + 1, {NOW_MS} + %s)"
        f" WHERE name = %s AND holder = %s AND expires_at > {NOW_MS}",
        (round(seconds * 1000), _name(slot), holder),
    )
    return renewed == 1


def release_worker_slot(session: Session, slot: int, holder: str) -> None:
    """Give a worker's slot back, if it is this holder's."""
    session.execute("DELETE FROM lease WHERE name = %s AND holder = %s", (_name(slot), holder))


def _name(slot: int) -> str:
    return f"slot:{slot}"

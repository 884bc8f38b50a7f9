"""The table ``lease``: take, renew, release, fencing tokens, which slots workers may have (1 to
255); how long leases last: ``worker/loop.py``, of a retry of dead rows
here (``SECONDS``).

A lease says who *should* act. Whoever was paused may act late all the same, so what must not happen
twice carries the fencing token, which grows with every change of hands and never falls.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from countersink.runtime.process import process_name
from countersink.store.connection import ATTEMPTS, Session, rerun
from countersink.store.errors import DuplicateKey
from countersink.store.sql import NOW_MS

FIRST_WORKER_SLOT: Final = 1
LAST_WORKER_SLOT: Final = 255
_TRIES: Final = 8


def acquire(
    session: Session, name: str, holder: str, seconds: float, *, attempts: int = ATTEMPTS
) -> int | None:
    """Take the lease ``name`` if nobody holds it. One that is held is not even locked.

    Args:
        session: outside a transaction.
        name: of the lease, at most 64 ASCII characters.
        holder: who takes it: a text that no other process uses.
        seconds: how long it lasts unless renewed.
        attempts: how often to wait for a lock on its row, each time as long as the session does.

    Returns:
        the fencing token, larger than all before it; None while somebody holds it, the same holder
        included.

    Raises:
        Conflict: it has run out, but somebody has its row locked still.
    """
    return rerun(partial(_acquire, session, name, holder, seconds), attempts=attempts)


def renew(session: Session, name: str, holder: str, seconds: float) -> bool:
    """Let the lease last ``seconds`` from now; False if it expired or changed hands: stop."""
    milliseconds = _milliseconds(seconds)
    with session.transaction():
        # Read under a lock first: an UPDATE to the value that is there already reports no row.
        rows = session.query(
            f"SELECT expires_at > {NOW_MS} FROM lease WHERE name = %s AND holder = %s FOR UPDATE",
            (name, holder),
        )
        if not rows or not rows[0][0]:
            return False
        session.execute(
            f"UPDATE lease SET expires_at = {NOW_MS} + %s WHERE name = %s", (milliseconds, name)
        )
    return True


def release(session: Session, name: str, holder: str) -> bool:
    """Give the lease back; False if it was not held any more. The token is kept."""
    return (
        session.execute(
            f"UPDATE lease SET expires_at = {NOW_MS} - 1"
            f" WHERE name = %s AND holder = %s AND expires_at > {NOW_MS}",
            (name, holder),
        )
        == 1
    )


def lease_worker_slot(session: Session, holder: str, seconds: float) -> int:
    """Lease a worker one of the slots 1 to 255; if all are taken, share one: slower, as right."""
    rows = session.query(
        f"SELECT name FROM lease WHERE name LIKE 'slot:%%' AND expires_at > {NOW_MS}", ()
    )
    taken = {name for (name,) in rows}
    free = [
        slot
        for slot in range(FIRST_WORKER_SLOT, LAST_WORKER_SLOT + 1)
        if _slot_name(slot) not in taken
    ]
    # Drawn, so that workers that start together do not all ask for the same one.
    for slot in random.sample(free, min(len(free), _TRIES)):
        if acquire(session, _slot_name(slot), holder, seconds) is not None:
            return slot
    return random.randint(FIRST_WORKER_SLOT, LAST_WORKER_SLOT)


def renew_worker_slot(session: Session, slot: int, holder: str, seconds: float) -> bool:
    """Keep a worker's slot; False if it is not the holder's (shared, expired): lease another."""
    return renew(session, _slot_name(slot), holder, seconds)


def release_worker_slot(session: Session, slot: int, holder: str) -> bool:
    """Give a worker's slot back; False if it was not this holder's."""
    return release(session, _slot_name(slot), holder)


def _slot_name(slot: int) -> str:
    return f"slot:{slot}"


def _acquire(session: Session, name: str, holder: str, seconds: float) -> int | None:
    milliseconds = _milliseconds(seconds)
    # Without a lock: its holder may have the row locked, and would be held up, or hold us up.
    if session.query(f"SELECT 1 FROM lease WHERE name = %s AND expires_at > {NOW_MS}", (name,)):
        return None
    try:
        with session.transaction():
            taken = session.execute(
                f"UPDATE lease SET token = token + 1, holder = %s, expires_at = {NOW_MS} + %s"
                f" WHERE name = %s AND expires_at <= {NOW_MS}",
                (holder, milliseconds, name),
            )
            if taken:
                # The row is locked by the update: nobody else's token is read here.
                return int(session.query("SELECT token FROM lease WHERE name = %s", (name,))[0][0])
            session.execute(
                "INSERT INTO lease (name, holder, token, expires_at)"
                f" VALUES (%s, %s, 1, {NOW_MS} + %s)",
                (name, holder, milliseconds),
            )
            return 1
    except DuplicateKey:
        return None


def _milliseconds(seconds: float) -> int:
    if seconds <= 0:
        raise ValueError("a lease lasts longer than 0 seconds")
    return max(1, round(seconds * 1000))


SECONDS: Final = 60.0
"""How long the lease lasts. Work that takes longer may share its slot: slower, as right."""


@contextmanager
def leased_slot(session: Session, purpose: str) -> Iterator[int]:
    """A slot of 1 to 255 that no worker leases meanwhile; given back afterwards.

    Args:
        session: outside a transaction.
        purpose: what for, in ASCII: the holder's name begins with it.

    Raises:
        StoreError: MySQL did not do its part.
    """
    holder = process_name(purpose)
    slot = lease_worker_slot(session, holder, SECONDS)
    try:
        yield slot
    finally:
        if not session.closed:
            release_worker_slot(session, slot, holder)

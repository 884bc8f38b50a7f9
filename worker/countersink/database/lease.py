"""Leases of workers' slots (1 to 255) in the table ``lease``: functions by which a worker takes,
renews and releases a lease. See ``worker/__init__.py`` for how long a lease lasts.

If a worker is paused, its lease may expire, and another worker may take the slot. If the first
worker then goes on, both use the slot. Counts stay exact: the two workers only wait for each other.
"""

import random
from typing import Final

from countersink.database.errors import Conflict, DuplicateKey
from countersink.database.session import Session
from countersink.database.sql import NOW_MS, WORKER_SLOTS

_TRIES: Final = 8


def lease_slot(session: Session, slot: int, holder: str, seconds: float) -> bool:
    """Lease a slot, and return True. Return False if the slot has a lease that has not expired,
    even of this holder, or if another process leases the slot at the same time.

    Args:
        session: a session outside a transaction.
        slot: number of the slot.
        holder: text that names the process which takes the lease. No other process uses the same
            text.
        seconds: duration of the lease.
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
    """Lease one of the slots 1 to 255 for a worker, and return its number. Return the number of a
    random slot, without a lease, if all slots are leased, or if other processes were faster at each
    of up to eight attempts.

    Args:
        session: a session outside a transaction.
        holder: text that names the worker's process, and no other process.
        seconds: duration of the lease.
    """
    found = session.query(f"SELECT name FROM lease WHERE expires_at > {NOW_MS}")
    taken = {name for (name,) in found}
    free = [slot for slot in WORKER_SLOTS if _name(slot) not in taken]
    # At random, so that workers that start together do not all ask for the same slot.
    for slot in random.sample(free, min(len(free), _TRIES)):
        if lease_slot(session, slot, holder, seconds):
            return slot
    return any_slot()


def any_slot() -> int:
    """Return the number of a random slot from 1 to 255, without a lease, for a worker that got none
    or for a retry of dead letters. Another process may use the same slot. Counts stay exact then:
    the two processes only wait for each other's row locks.
    """
    return random.choice(WORKER_SLOTS)


def renew_worker_slot(session: Session, slot: int, holder: str, seconds: float) -> bool:
    """Extend a worker's lease, and return True. Return False if the worker has no lease of the
    slot, because it never got one or because the lease has expired.

    Args:
        session: a session outside a transaction.
        slot: number of the slot.
        holder: text that names the worker's process, as in the lease.
        seconds: duration of the lease from now on. A lease that lasts longer is not shortened.
    """
    # An UPDATE to the present value would report no changed row.
    renewed = session.execute(
        f"UPDATE lease SET expires_at = GREATEST(expires_at + 1, {NOW_MS} + %s)"
        f" WHERE name = %s AND holder = %s AND expires_at > {NOW_MS}",
        (round(seconds * 1000), _name(slot), holder),
    )
    return renewed == 1


def release_worker_slot(session: Session, slot: int, holder: str) -> None:
    """End the lease of a slot if ``holder`` has it; else do nothing."""
    session.execute("DELETE FROM lease WHERE name = %s AND holder = %s", (_name(slot), holder))


def _name(slot: int) -> str:
    return f"slot:{slot}"

"""A worker's slot for a short piece of work, such as a retry of dead rows."""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from countersink.store.connection import Session
from countersink.store.lease import lease_worker_slot, release_worker_slot

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
    holder = f"{purpose}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    slot = lease_worker_slot(session, holder, SECONDS)
    try:
        yield slot
    finally:
        if not session.closed:
            release_worker_slot(session, slot, holder)

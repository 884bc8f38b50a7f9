"""Who plans: the scheduler that holds the lease ``scheduler``, on the database's clock."""

import math
import os
import secrets
import socket
import time
from typing import Final

from countersink.schedules.tables import Kept
from countersink.store import lease
from countersink.store.errors import Conflict

LEASE: Final = "scheduler"


def process_name() -> str:
    """A name that no other process has, or ever had: host, pid, random."""
    return f"{socket.gethostname()[:150]}-{os.getpid()}-{secrets.token_hex(4)}"


def idle_seconds(lease_s: float) -> int:
    """After how many idle seconds MySQL ends the sessions of a scheduler with such a lease.

    Well before the lease runs out: one that was frozen in a transaction has the lease's row locked,
    and nobody could take over while it does. More than a busy host needs between two statements.
    """
    return max(3, math.ceil(lease_s / 2))


class Leadership:
    """This process's claim to be in charge. For one thread.

    It says who *should* plan. Whoever was paused may believe in a lease that ran out: so what is
    planned is checked against the lease's row in the same transaction, see
    :mod:`countersink.schedules.planning`.

    Attributes:
        token: the fencing token while in charge, else None.
    """

    def __init__(self, session: Kept, holder: str, lease_s: float) -> None:
        self._session = session
        self._holder = holder
        self._lease_s = lease_s
        self._until = 0.0
        self._not_before = 0.0
        self.token: int | None = None

    def step(self) -> None:
        """Renew the lease, or take it if nobody holds it; ``token`` says what came of it.

        Raises:
            StoreError: MySQL did not answer; in charge until the lease has surely run out.
        """
        begun = time.monotonic()
        if self.token is not None:
            if begun >= self._until:
                # Frozen, or cut off, for long: somebody else may have been in charge meanwhile.
                self.token = None
            elif lease.renew(self._session(), LEASE, self._holder, self._lease_s):
                self._until = begun + self._lease_s
                return
            else:
                self.token = None
        if begun < self._not_before:
            return
        try:
            self.token = lease.acquire(
                self._session(), LEASE, self._holder, self._lease_s, attempts=1
            )
        except Conflict:
            return  # a session that is gone has the row locked for some seconds more
        self._until = begun + self._lease_s

    def expire(self) -> None:
        """Forget a lease that could not be renewed in time."""
        if self.token is not None and time.monotonic() >= self._until:
            self.token = None

    def resign(self, stand_back_s: float = 0.0) -> None:
        """Give the lease back, so that another need not wait for its end.

        Args:
            stand_back_s: seconds in which it is left to others.

        Raises:
            StoreError: then it runs out by itself.
        """
        self._not_before = time.monotonic() + stand_back_s
        if self.token is not None:
            self.token = None
            lease.release(self._session(), LEASE, self._holder)

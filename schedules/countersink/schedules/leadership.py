"""Who plans: the scheduler that holds the lease ``scheduler``, on the database's clock."""

import os
import secrets
import socket
import time
from typing import Final

from countersink.schedules.tables import Kept
from countersink.store import lease

LEASE: Final = "scheduler"


def process_name() -> str:
    """A name that no other process has, or ever had: host, pid, random."""
    return f"{socket.gethostname()[:150]}-{os.getpid()}-{secrets.token_hex(4)}"


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
        self.token = lease.acquire(self._session(), LEASE, self._holder, self._lease_s)
        self._until = begun + self._lease_s

    def expire(self) -> None:
        """Forget a lease that could not be renewed in time."""
        if self.token is not None and time.monotonic() >= self._until:
            self.token = None

    def resign(self) -> None:
        """Give the lease back, so that another need not wait for its end.

        Raises:
            StoreError: then it runs out by itself.
        """
        if self.token is not None:
            self.token = None
            lease.release(self._session(), LEASE, self._holder)

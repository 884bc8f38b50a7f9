"""The worker's slot: a lease on one of 1 to 255, so that two workers never wait for each other's
rows.

A slot decides speed only. A worker whose lease ran out while it was busy, and whose slot another
one has taken, may go on using it: their transactions then wait for each other, and every count is
as right as before.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from countersink.store.connection import Session
from countersink.store.errors import StoreError
from countersink.store.lease import lease_worker_slot, release_worker_slot, renew_worker_slot
from countersink.worker.logs import Action, Log
from countersink.worker.tables import check_tables

LEASE_S: Final = 60.0
RENEW_EVERY_S: Final = 15.0
"""Between two renewals; also keeps the server from ending the session as idle."""


class Slot:
    """Leases a slot and keeps it. For one thread.

    Args:
        connect: makes a session; called again after every error.
        holder: the consumer's name.
        log: the worker's.
        renew_every_s: seconds between two renewals.
    """

    def __init__(
        self,
        connect: Callable[[], Session],
        holder: str,
        log: Log,
        *,
        renew_every_s: float = RENEW_EVERY_S,
    ) -> None:
        self._connect = connect
        self._holder = holder
        self._log = log
        self._every = renew_every_s
        self._session: Session | None = None
        self._next = 0.0
        self._number: int | None = None

    def take(self) -> int:
        """Lease a slot.

        Raises:
            StoreError, SchemaTooNew: call again, or do not.
        """
        self._number = lease_worker_slot(self._open(), self._holder, LEASE_S)
        self._next = time.monotonic() + self._every
        return self._number

    def keep(self) -> int:
        """The slot to use, its lease renewed when that is due; another slot where the lease was
        lost.

        Never raises for MySQL's sake: whatever ails it is noticed, and said, where batches are
        applied.

        Raises:
            SchemaTooNew: the tables were migrated by a newer version meanwhile.
        """
        if self._number is None:
            raise RuntimeError("take() comes first")
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            try:
                self._renew(self._number)
            except StoreError:
                self._drop()
        return self._number

    def release(self, *, within_s: float = 1.0) -> None:
        """Give the slot back, if that takes no longer than ``within_s`` seconds.

        Never raises: a lease that cannot be given back runs out.
        """
        session = self._session
        if self._number is None or session is None or session.closed:
            return
        timer = threading.Timer(within_s, session.abort)
        timer.daemon = True
        timer.start()
        try:
            release_worker_slot(session, self._number, self._holder)
        except StoreError:
            self._drop()
        finally:
            timer.cancel()
            session.close()

    def _renew(self, number: int) -> None:
        session = self._open()
        check_tables(session)  # a connection that is always busy is never made anew and checked
        if not renew_worker_slot(session, number, self._holder, LEASE_S):
            self._number = lease_worker_slot(session, self._holder, LEASE_S)
            self._log(
                Action.SLOT,
                "the slot's lease had run out",
                level=logging.WARNING,
                slot=self._number,
                before=number,
            )

    def _open(self) -> Session:
        if self._session is None or self._session.closed:
            self._session = self._connect()
        return self._session

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close(hard=True)
            self._session = None

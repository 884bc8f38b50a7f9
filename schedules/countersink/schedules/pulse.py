"""The sign of life of a run: renews its lease from a thread of its own."""

import ctypes
import mmap
import threading
import time
from math import inf

from countersink.schedules import runs
from countersink.schedules.runs import Attempt
from countersink.schedules.tables import Kept
from countersink.store.errors import StoreError


class Held:
    """Until when the lease of the run at hand is surely held; a process and those that it forks
    afterwards see the same.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, ctypes.sizeof(ctypes.c_double))
        self._until = ctypes.c_double.from_buffer(self._memory)
        self._until.value = inf

    @property
    def until(self) -> float:
        """On :func:`time.monotonic`, which is one clock for all processes of a host; infinite while
        no run holds a lease.
        """
        return self._until.value

    @until.setter
    def until(self, moment: float) -> None:
        self._until.value = moment


class Pulse:
    """Keeps the lease of an attempt that has begun.

    Args:
        held: where it tells the process that watches over the run until when the lease is held.
        mysql_url: where; on a connection of its own.
        attempt: whose lease.
        lease_s: how long each renewal lasts.
        every_s: seconds between two.
    """

    def __init__(
        self, held: Held, mysql_url: str, attempt: Attempt, lease_s: float, every_s: float
    ) -> None:
        self._held = held
        self._session = Kept(mysql_url)
        self._attempt = attempt
        self._lease_s = lease_s
        self._every_s = every_s
        held.until = time.monotonic() + lease_s
        self._lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    @property
    def lost(self) -> bool:
        """Whether the lease was lost, or has surely run out: another may be at it."""
        return self._lost or time.monotonic() >= self._held.until

    def start(self) -> "Pulse":
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End; the lease is as it was left."""
        self._ended.set()
        # Joined for good order; a renewal that hangs ends with its short time-out.
        self._thread.join(2 * self._every_s)
        self._held.until = inf

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            begun = time.monotonic()
            try:
                if not runs.renew(self._session(), self._attempt, self._lease_s):
                    self._lost = True
                    break
                self._held.until = begun + self._lease_s
            except StoreError:
                pass  # again soon; `lost` says when it is too late
        self._session.close()

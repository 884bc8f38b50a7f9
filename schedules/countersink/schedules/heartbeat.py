"""``RunHeartbeat``: the thread that gives a run's sign of life in ``job_run`` and finds out that it
is another's; how often, and for how long it may fail: ``schedules/options.py``."""

import ctypes
import mmap
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Self

from countersink.database.errors import StoreError
from countersink.database.sessions import brief_session
from countersink.schedules import runs
from countersink.schedules.options import JobsOptions
from countersink.schedules.runs import Attempt


def shared_moment() -> ctypes.c_double:
    """A moment, at first infinite, that this process and those that it forks afterwards share."""
    moment = ctypes.c_double.from_buffer(mmap.mmap(-1, ctypes.sizeof(ctypes.c_double)))
    moment.value = inf
    return moment


@dataclass(repr=False, eq=False)
class RunHeartbeat:
    """Signs of life of an attempt that has begun, inside a ``with`` block.

    Args:
        held_until: where it tells the process that watches over the run until when the run is
            surely its own, on :func:`time.monotonic`, which is one clock for all processes of a
            host; infinite while there is no run.
        options: where, on a connection of its own, how long, and how often.
        attempt: whose.
        since: when it was begun at the earliest, on the same clock.
    """

    _held_until: ctypes.c_double
    _options: JobsOptions
    _attempt: Attempt
    _since: float

    def __post_init__(self) -> None:
        self._lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def lost(self) -> bool:
        """Whether the run is another's, or may be: nobody was told of this one for long."""
        return self._lost or time.monotonic() >= self._held_until.value

    def __enter__(self) -> Self:
        self._held_until.value = self._since + self._options.silent_s
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the signs of life."""
        self._ended.set()
        # Joined for good order; one that hangs ends with its short time-out.
        self._thread.join(2 * self._options.beat_every_s)
        self._held_until.value = inf

    def _run(self) -> None:
        session = brief_session(self._options.mysql_url)
        while not self._ended.wait(self._options.beat_every_s):
            begun = time.monotonic()
            with suppress(StoreError):  # again soon; `lost` says when it is too late
                if not runs.beat(session(), self._attempt):
                    self._lost = True
                    break
                self._held_until.value = begun + self._options.silent_s
        session.close()

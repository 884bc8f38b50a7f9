"""Waiting for a server that is away or refuses, for as long as it takes, and saying so."""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from countersink.schedules.logs import Action, Log, error_text
from countersink.store.errors import BadData, DuplicateKey, SchemaMismatch, StoreError
from countersink.stream.errors import StreamError

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
SAY_EVERY_S: Final = 30.0

Result = TypeVar("Result")


class GivenUp(Exception):
    """The server did not come back before the waiting had to end; the cause is its last error."""


class Outage:
    """What is said of one server that is away: at once, every 30 s, and when it is back. Two
    threads may share it, lest both say so.

    Args:
        service: ``Redis`` or ``MySQL``.
    """

    def __init__(self, service: str, log: Log) -> None:
        self._service = service
        self._log = log
        self._lock = threading.Lock()
        self._since: float | None = None
        self._latest = 0.0
        self._said = 0.0

    @property
    def lasted_s(self) -> float | None:
        """Seconds from the first to the latest failure of this outage; None while it serves."""
        with self._lock:
            return None if self._since is None else self._latest - self._since

    def failed(self, error: Exception) -> None:
        """It does not serve."""
        now = time.monotonic()
        with self._lock:
            if self._since is None:
                self._since, self._said = now, now - SAY_EVERY_S
            self._latest = now
            since, due = self._since, now - self._said >= SAY_EVERY_S
            if due:
                self._said = now
        if due:
            self._log(
                Action.WAITING,
                f"{self._service} does not serve: waiting",
                level=logging.WARNING,
                service=self._service,
                for_s=round(now - since),
                error=error_text(error),
            )

    def over(self) -> None:
        """It serves."""
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            self._log(
                Action.RESUMED,
                f"{self._service} serves again",
                service=self._service,
                after_s=round(time.monotonic() - since, 1),
            )


def waited(
    work: Callable[[], Result],
    outage: Outage,
    *,
    enough: Callable[[], bool],
    pause: Callable[[float], object],
) -> Result:
    """The result of ``work``, which is called until no server is away any more.

    Args:
        work: to be done; it may have been done when it raises.
        enough: whether to stop waiting.
        pause: how to wait, in seconds.

    Raises:
        GivenUp: it is enough.
        Exception: whatever ``work`` raises that does not pass.
    """
    longest = FIRST_PAUSE_S
    while True:
        try:
            result = work()
        except (StoreError, StreamError) as error:
            if not passes(error):
                raise
            if enough():
                raise GivenUp(error_text(error)) from error
            outage.failed(error)
            # Half of it random: several that wait do not come back at once.
            pause(longest * random.uniform(0.5, 1.0))
            longest = min(2 * longest, LONGEST_PAUSE_S)
        else:
            outage.over()
            return result


def passes(error: Exception) -> bool:
    """Whether ``error`` may go away by itself or by an operator's hand."""
    if isinstance(error, SchemaMismatch):
        return not error.newer
    return isinstance(error, StreamError | StoreError) and not isinstance(
        error, BadData | DuplicateKey
    )

"""Waiting for a server that is away or refuses: for hours if need be, and saying so."""

import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from countersink.worker.logs import Action, Log, error_text
from countersink.worker.stopping import Stop

T = TypeVar("T")

FIRST_DELAY_S: Final = 0.05
MAX_DELAY_S: Final = 5.0
SAY_EVERY_S: Final = 30.0
TRIES_WHILE_STOPPING: Final = 3


class Abandoned(Exception):
    """The server did not come back before the worker had to stop; the cause is its last error."""


class Patience:
    """Repeats what fails for want of one server. For one thread.

    Args:
        service: ``Redis`` or ``MySQL``, for the log.
        temporary: decides whether an error may pass by itself or by an operator's hand; others are
            raised.
        stop: ends the waiting: after a request, work is tried :data:`TRIES_WHILE_STOPPING` times in
            all.
        log: where outages are announced.
        waiting: called before each pause, with the error.
    """

    def __init__(
        self,
        service: str,
        temporary: Callable[[Exception], bool],
        stop: Stop,
        log: Log,
        waiting: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._service = service
        self._temporary = temporary
        self._stop = stop
        self._log = log
        self._waiting = waiting
        self._since: float | None = None
        self._said: float | None = None

    def call(self, work: Callable[[], T]) -> T:
        """The result of ``work``, which is called until it succeeds.

        Raises:
            Abandoned: a stop was requested and the server is still away.
            Exception: whatever ``work`` raises that is not temporary.
        """
        tries_while_stopping = 0
        delay = FIRST_DELAY_S
        again = False
        while True:
            try:
                result = work()
            except Exception as error:
                if not self._temporary(error):
                    raise
                tries_while_stopping += self._stop.requested
                if tries_while_stopping >= TRIES_WHILE_STOPPING:
                    raise Abandoned(f"{self._service} did not come back") from error
                # The first failure may be just a connection that had gone stale: not worth a line.
                if again or self._since is not None:
                    self._say(error)
                self._waiting(error)
                again = True
                # Half of the delay is random, so that many workers do not come back at once. While
                # stopping, the event is set and no longer waits: sleep, shortly.
                pause = delay * random.uniform(0.5, 1.0)
                if self._stop.requested:
                    time.sleep(min(pause, 2 * FIRST_DELAY_S))
                else:
                    self._stop.wait(pause)
                delay = min(delay * 2, MAX_DELAY_S)
            else:
                self._over()
                return result

    def _say(self, error: Exception) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if self._said is None or now - self._said >= SAY_EVERY_S:
            self._said = now
            self._log(
                Action.WAITING,
                f"{self._service} does not serve: waiting, nothing is lost",
                level=logging.WARNING,
                service=self._service,
                for_s=round(now - self._since),
                error=error_text(error),
            )

    def _over(self) -> None:
        # While stopping, work that needs no server counts as success too: no word of its return.
        if self._since is not None and not self._stop.requested:
            self._log(
                Action.RESUMED,
                f"{self._service} serves again",
                service=self._service,
                after_s=round(time.monotonic() - self._since, 1),
            )
        self._since = self._said = None

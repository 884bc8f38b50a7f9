"""Retries while a server is away, and pauses between pieces of work.

``Patience`` and ``retry`` repeat a call, with pauses that grow from ``FIRST_PAUSE_S`` to
``LONGEST_PAUSE_S``, each shortened by up to a half at random. After a stop request they give up
when ``TRIES_WHILE_STOPPING`` tries have failed. ``Outage`` logs that a server is away (action
``waiting``, every ``SAY_EVERY_S``) and that it is back (``resumed``). ``Pace`` lets a job work for
a share of the time, a setting of commands and jobs; each rest after a piece of work takes at most
``LONGEST_REST_S``.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from countersink.runtime.errors import GivenUp
from countersink.runtime.log import Log, error_text
from countersink.runtime.process import Stop

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
"""Most seconds from the end of a try to the next: about how late work goes on after an outage."""
SAY_EVERY_S: Final = 30.0
TRIES_WHILE_STOPPING: Final = 3
WAITING: Final = "waiting"
"""The action of the log record which says that a server is away: at once, then every 30 s."""
RESUMED: Final = "resumed"
"""The action of the log record which says that the server serves again."""

Result = TypeVar("Result")


class Backoff:
    """The pauses between tries, in seconds. Their maximum is ``first_s`` for the first pause, and
    doubles with each further pause, up to ``longest_s``. A pause is a random time between half the
    maximum and the maximum, so that several processes do not return to the server at the same time.
    """

    def __init__(self, first_s: float = FIRST_PAUSE_S, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._next = first_s
        self._longest = longest_s

    def pause_s(self) -> float:
        """Return the seconds to wait before the next try: a random time between half the maximum
        and the maximum. Each call doubles the maximum for the next one, up to ``longest_s``.
        """
        pause = self._next * random.uniform(0.5, 1.0)
        self._next = min(2 * self._next, self._longest)
        return pause


class Outage:
    """Logs that one server is away, and that it is back. The first failure beyond ``tolerated`` is
    logged immediately, later ones at most every 30 s. Threads may share an instance; then one
    record is logged for all of them.

    Args:
        service: the server's name in the log: ``Redis`` or ``MySQL``.
        log: the log that gets the records.
        tolerated: number of failures in a row that are not logged; 1 if the first use of a
            connection may fail because the connection is stale.
        note: a text after the message that the server is away, such as ``, nothing is lost``.
    """

    def __init__(self, service: str, log: Log, *, tolerated: int = 0, note: str = "") -> None:
        self._service = service
        self._log = log
        self._tolerated = tolerated
        self._note = note
        self._lock = threading.Lock()
        self._failures = 0
        self._since: float | None = None
        self._latest = 0.0
        self._said = 0.0

    @property
    def lasted_s(self) -> float | None:
        """Seconds from the first to the latest failure of this outage; None if there is no outage.
        The first ``tolerated`` failures in a row do not belong to the outage.
        """
        with self._lock:
            return None if self._since is None else self._latest - self._since

    def failed(self, error: Exception, **fields: Any) -> None:
        """Note a failure of the server. The first ``tolerated`` failures in a row are only counted.
        The next one begins an outage and is logged. A later one is logged if the last record is
        30 s old or older. The text of ``error`` and the ``fields`` go into the log record.
        """
        now = time.monotonic()
        with self._lock:
            self._failures += 1
            if self._failures <= self._tolerated:
                return
            if self._since is None:
                self._since, self._said = now, now - SAY_EVERY_S
            self._latest = now
            since, due = self._since, now - self._said >= SAY_EVERY_S
            if due:
                self._said = now
        if due:
            self._log(
                WAITING,
                f"{self._service} does not serve: waiting{self._note}",
                level=logging.WARNING,
                service=self._service,
                for_s=round(now - since),
                error=error_text(error),
                **fields,
            )

    def over(self, *, quietly: bool = False) -> None:
        """Note that the server serves. If there is an outage, this ends it and logs that the server
        is back; with ``quietly`` nothing is logged.
        """
        with self._lock:
            self._failures = 0
            since, self._since = self._since, None
        if since is not None and not quietly:
            self._log(
                RESUMED,
                f"{self._service} serves again",
                service=self._service,
                after_s=round(time.monotonic() - since, 1),
            )


def retry(
    work: Callable[[], Result],
    *,
    passes: Callable[[Exception], bool],
    stop: Callable[[], bool],
    failed: Callable[[Exception], object],
    wait: Callable[[float], object],
    tries: int = TRIES_WHILE_STOPPING,
) -> Result:
    """Call ``work`` until it succeeds, and return its result.

    Args:
        work: the call. It may have taken effect although it raised an error.
        passes: returns whether an error may pass by itself or by an operator's action.
        stop: returns whether a stop is requested.
        failed: a function to call with each error that may pass, before the pause; not with the
            error at which this function gives up.
        wait: sleeps for a number of seconds, or until a stop is requested.
        tries: number of failed tries after which to give up once a stop is requested. A try during
            which the request came counts, too; earlier tries do not.

    Raises:
        GivenUp: a stop was requested, and ``tries`` tries have failed since.
        Exception: ``work`` raised an error that does not pass.
    """
    backoff = Backoff()
    while True:
        try:
            return work()
        except Exception as error:
            if not passes(error):
                raise
            stopping = stop()
            tries -= stopping
            if tries <= 0:
                raise GivenUp(error_text(error)) from error
            failed(error)
            seconds = backoff.pause_s()
            if stopping:  # ``wait`` returns at once after a stop request
                time.sleep(min(seconds, 2 * FIRST_PAUSE_S))
            else:
                wait(seconds)


@dataclass(repr=False, eq=False)
class Patience:
    """Repeats calls that need one server until they succeed, or gives up after a stop request. Logs
    outages of the server, but not a single failure between successes. For one thread.

    Args:
        service: the server's name in the log: ``Redis`` or ``MySQL``.
        passes: returns whether an error may pass by itself or by an operator's action. Other errors
            are raised.
        stop: the request to stop. After it, a call gives up when :data:`TRIES_WHILE_STOPPING` tries
            have failed.
        log: the log that gets the records of outages.
        waiting: a function to call with the error before each pause.
    """

    _service: str
    _passes: Callable[[Exception], bool]
    _stop: Stop
    _log: Log
    _waiting: Callable[[Exception], None] = lambda error: None

    def __post_init__(self) -> None:
        self._outage = Outage(self._service, self._log, tolerated=1, note=", nothing is lost")

    def call(self, work: Callable[[], Result]) -> Result:
        """Call ``work`` until it succeeds, and return its result.

        Raises:
            GivenUp: a stop was requested, and :data:`TRIES_WHILE_STOPPING` tries have failed since.
            Exception: ``work`` raised an error that does not pass.
        """

        def failed(error: Exception) -> None:
            self._outage.failed(error)
            self._waiting(error)

        result = retry(
            work,
            passes=self._passes,
            stop=lambda: self._stop.requested,
            failed=failed,
            wait=self._stop.wait,
        )
        # During a stop, work that needs no server succeeds, too: "serves again" could be wrong.
        self._outage.over(quietly=self._stop.requested)
        return result


LONGEST_REST_S: Final = 10.0
"""Most seconds of one :meth:`Pace.rest`: much less than MySQL lets a session be idle."""
_SLICE_S: Final = 0.05
"""Most seconds until :func:`pause` notices a stop."""


def pause(
    seconds: float,
    stop: Callable[[], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Sleep for ``seconds``, or until ``stop`` returns true. For callers whose stop is a function,
    not a :class:`threading.Event` that could be waited for.

    Args:
        seconds: seconds to sleep.
        stop: returns whether to end the sleep; called every 0.05 s.
        clock: returns monotonic seconds.
        sleep: sleeps for a number of seconds.
    """
    until = clock() + seconds
    while (left := until - clock()) > 0 and not stop():
        sleep(min(left, _SLICE_S))


class Pace:
    """Keeps work to a share of the time. The code that does the work calls :meth:`rest` after each
    piece.

    Args:
        share: the part of the time for work, above 0 and up to 1; with 1, :meth:`rest` does not
            pause.
        stop: returns whether the work should end.
        clock: returns monotonic seconds.
        sleep: sleeps for a number of seconds.

    Raises:
        ValueError: ``share`` is out of range.
    """

    def __init__(
        self,
        share: float = 1.0,
        stop: Callable[[], bool] = lambda: False,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"the share of the time is {share}: it must be above 0 and at most 1")
        self._ratio = (1 - share) / share
        self._stop = stop
        self._clock = clock
        self._sleep = sleep
        self._since = clock()

    @property
    def stopped(self) -> bool:
        """Whether the work should end: the result of ``stop``."""
        return self._stop()

    def rest(self) -> None:
        """Pause for so long that the work since the last pause has its ``share`` of the time, but
        at most :data:`LONGEST_REST_S` (10 s). Before the first pause, the work began when this
        object was created. A stop ends the pause.
        """
        worked = self._clock() - self._since
        self.pause(min(worked * self._ratio, LONGEST_REST_S))

    def pause(self, seconds: float) -> None:
        """Pause for ``seconds``, or until the work should end. The next :meth:`rest` counts only
        the work after this pause.
        """
        pause(seconds, self._stop, clock=self._clock, sleep=self._sleep)
        self._since = self._clock()

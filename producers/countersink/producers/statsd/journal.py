"""The listener's log: records with an ``action``, and at most a few about what anybody may send."""

import logging
import time
from enum import StrEnum
from typing import Final

LOGGER: Final = logging.getLogger("countersink.producers.statsd")
QUIET_SECONDS: Final = 30.0
"""Between two records of one action that senders can cause."""
SHOWN_BYTES: Final = 80
"""Of a line that is malformed."""


class Action(StrEnum):
    """Every action a record can carry."""

    LISTENING = "listening"
    """Everything is open; ``at`` says what."""
    MAP = "map"
    """The map was read again, or could not be and the one before stays in use."""
    MALFORMED = "malformed"
    """A line could not be understood: the first of them, and then one every 30 s."""
    LOST = "lost"
    """The kernel has dropped datagrams because its buffer was full."""
    SMALL_BUFFER = "small_buffer"
    """The kernel granted a smaller receive buffer than was asked for."""
    REFUSED = "refused"
    """A connection was closed: too many were open. Or none could be accepted."""
    PROGRESS = "progress"
    """What came in the last minute, unless that is nothing."""
    FAILED = "failed"
    """A socket could not be read; it is tried again."""
    INTERNAL_ERROR = "internal_error"
    """A bug: what had just been received is not counted, and the listener goes on."""
    STOPPING = "stopping"
    """A signal came: what has arrived is still counted."""
    STOPPED = "stopped"
    """Everything is stored, or what is not was said."""


class Journal:
    """Writes records."""

    def __init__(self) -> None:
        self._last: dict[Action, float] = {}

    def say(
        self, action: Action, message: str, *, level: int = logging.INFO, **fields: object
    ) -> None:
        """Log ``message`` with its fields."""
        LOGGER.log(level, message, extra={"action": str(action), "fields": fields})

    def seldom(
        self, action: Action, message: str, *, level: int = logging.WARNING, **fields: object
    ) -> None:
        """Log unless the same action was logged less than 30 s ago."""
        now = time.monotonic()
        last = self._last.get(action)
        if last is None or now - last >= QUIET_SECONDS:
            self._last[action] = now
            self.say(action, message, level=level, **fields)

    def malformed(self, line: bytes, reason: str, total: int) -> None:
        """A line could not be understood; ``total`` of them so far."""
        shown = ascii(line[:SHOWN_BYTES])[1:] + ("..." if len(line) > SHOWN_BYTES else "")
        self.seldom(
            Action.MALFORMED, f"a line was not counted: {reason}", line=shown, malformed=total
        )

    def bug(self) -> None:
        """Log the exception being handled, with its traceback, at most every 30 s."""
        now = time.monotonic()
        last = self._last.get(Action.INTERNAL_ERROR)
        if last is None or now - last >= QUIET_SECONDS:
            self._last[Action.INTERNAL_ERROR] = now
            LOGGER.exception(
                "lines were not counted:", extra={"action": str(Action.INTERNAL_ERROR)}
            )

"""The log: records with a machine-readable ``action``, the noisy ones at most once a minute."""

import logging
import time
from typing import Final

logger = logging.getLogger("countersink.producers")

QUIET_SECONDS: Final = 60.0

ACTIONS: Final = frozenset(
    (
        "connected",  # Redis answers again
        "unavailable",  # Redis does not answer, or refuses
        "held_back",  # the stream is longer than max_stream_length
        "dropped",  # increments were lost for want of room
        "spool_failed",  # the spool could not be written or read
        "spool_damaged",  # a segment has a torn tail or a corrupt record
        "replayed",  # a spool segment was sent and deleted
        "not_known",  # whether what was stored is in MySQL: entries left the stream otherwise
        "sigterm",  # flushing because of SIGTERM
        "left_over",  # increments could not be stored before close
        "internal_error",  # a bug: a background thread caught an exception and goes on
    )
)
"""Every ``action`` a record of this logger can carry."""


class ProducerLog:
    """Logs for one producer; actions given to :meth:`seldom` at most once a minute each."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def say(self, level: int, action: str, message: str, *args: object) -> None:
        """Log a record with ``action``."""
        logger.log(level, message, *args, extra={"action": action})

    def seldom(self, level: int, action: str, message: str, *args: object) -> bool:
        """Log unless the same action was logged less than a minute ago; whether it was."""
        if due := self._due(action):
            self.say(level, action, message, *args)
        return due

    def bug(self, where: str) -> None:
        """Log the exception being handled, with its traceback, at most once a minute."""
        if self._due("internal_error"):
            logger.exception("%s goes on after:", where, extra={"action": "internal_error"})

    def _due(self, action: str) -> bool:
        now = time.monotonic()
        last = self._last.get(action)
        if last is not None and now - last < QUIET_SECONDS:
            return False
        self._last[action] = now
        return True

"""One flush under way: storing what was accepted until it began."""

import time
from typing import Final

from countersink.producers.bell import Bell
from countersink.producers.link import Link
from countersink.producers.outbox import Outbox
from countersink.producers.sender import Sender
from countersink.producers.spooler import Spooler

POLL_SECONDS: Final = 0.02


class Flush:
    """Has the sender send, and the spooler write what Redis does not take in time.

    Holds no lock between two calls: a signal handler may interrupt it and flush as well.

    Attributes:
        generation: what is to be stored, from :meth:`Outbox.mark`.

    Args:
        deadline: the monotonic time at which it is no longer waited for.
    """

    def __init__(
        self,
        link: Link,
        outbox: Outbox,
        sender: Sender,
        spooler: Spooler | None,
        generation: int,
        deadline: float,
    ) -> None:
        self._link = link
        self._outbox = outbox
        self._spooler = spooler
        self.generation = generation
        self._deadline = deadline
        self._failures = link.failures
        self._spool_at = (time.monotonic() + deadline) / 2
        self._spooling = False
        if not self.stored():
            link.try_now()
            sender.flush_now()

    def stored(self) -> bool:
        """Whether everything is stored."""
        return self._outbox.settled(self.generation)

    def over(self) -> bool:
        """Whether everything is stored or the time is up; asks for the spool when it should be."""
        if self.stored():
            return True
        now = time.monotonic()
        away = self._link.held_back or self._link.failures > self._failures
        if self._spooler is not None and not self._spooling and (away or now >= self._spool_at):
            self._spooling = True
            self._spooler.request(self.generation)
        return now >= self._deadline

    def wait(self) -> bool:
        """Wait until :meth:`over`; whether everything is stored."""
        watcher = Bell()
        watchers = self._outbox.watchers
        try:
            watchers.append(watcher)
            while not self.over():
                watcher.wait_in_app(POLL_SECONDS)
        finally:
            if watcher in watchers:
                watchers.remove(watcher)
        return self.stored()

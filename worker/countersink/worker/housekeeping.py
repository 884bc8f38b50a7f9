"""What a worker does for the queue besides reading it: every few seconds, between batches."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import redis

from countersink.stream.connection import command, mapped
from countersink.stream.delivery import Delivery
from countersink.stream.errors import StreamError
from countersink.stream.group import Group
from countersink.stream.names import GROUP
from countersink.stream.partitions import stream_keys
from countersink.worker.logs import Action, Log, error_text
from countersink.worker.options import WorkerOptions
from countersink.worker.patience import SAY_EVERY_S

PARTITIONS_EVERY_S: Final = 5.0
CONSUMERS_EVERY_S: Final = 60.0
RECOVER_COUNT: Final = 50
"""Entries taken over at once from each stream, at most: they come whole, and memory is bounded."""


class _Every:
    """True at the first call, then again once ``seconds`` have passed since it was."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = time.monotonic()

    def due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True

    def at_once(self) -> None:
        """Be due at the next call."""
        self._next = time.monotonic()


class Housekeeping:
    """Keeps the list of streams current, and finds what other workers left behind. For one thread.

    Args:
        group: its ``streams`` are replaced when the number of partitions changes.
        options: the worker's.
        claim_every_s: seconds between two looks for entries left behind.
        log: the worker's.
    """

    def __init__(
        self, group: Group, options: WorkerOptions, claim_every_s: float, log: Log
    ) -> None:
        self._group = group
        self._options = options
        self._log = log
        self._partitions = _Every(PARTITIONS_EVERY_S)
        self._claims = _Every(claim_every_s)
        self._orphans = _Every(claim_every_s)
        self._consumers = _Every(CONSUMERS_EVERY_S)
        self._found: deque[Delivery] = deque()
        self._say_next: dict[str, float] = {}
        self._count = min(RECOVER_COUNT, options.batch_entries)
        self.lost = 0

    def run(self, found: deque[Delivery]) -> None:
        """Do the chores that are due; entries to apply that others left behind are appended to
        ``found``.

        Raises:
            StreamUnavailable: what was due is done at the next call.
        """
        self._do(self._partitions, self._follow_partitions)
        self._found = found
        self._do(self._claims, self._claim)
        self._do(self._orphans, self._sweep)
        self._do(self._consumers, self._forget_consumers)

    def _do(self, every: _Every, chore: Callable[[], None]) -> None:
        if not every.due():
            return
        try:
            chore()
        except StreamError as error:
            if not isinstance(error.__cause__, redis.ResponseError | None):
                every.at_once()
                raise
            # Redis answered, and refused just this: a partition count that is no number, or, when
            # it is full, whatever writes. Reading goes on: it is what empties a full Redis.
            self._say(chore.__name__, error_text(error), None)
        except Exception as error:
            self._say(chore.__name__, "an unexpected error", error)

    def _say(self, chore: str, text: str, bug: Exception | None) -> None:
        clock = time.monotonic()
        if clock >= self._say_next.get(chore, 0.0):
            self._say_next[chore] = clock + SAY_EVERY_S
            self._log(
                Action.CHORE_FAILED,
                "a chore failed; entries are read and applied all the same",
                level=logging.ERROR,
                bug=bug,
                chore=chore.strip("_"),
                error=text,
            )

    def _follow_partitions(self) -> None:
        # What was read once is read until this process ends, even if Redis forgot its use.
        known = self._group.streams
        streams = known + [s for s in stream_keys(self._group.client) if s not in known]
        if streams != known:
            before = len(known)
            self._group.streams = streams
            self._log(
                Action.PARTITIONS,
                "the number of streams changed",
                streams=len(streams),
                before=before,
            )

    def _claim(self) -> None:
        claimed = self._group.claim(self._options.claim_idle_ms, self._count)
        if claimed.lost:
            self.lost += len(claimed.lost)
            self._log(
                Action.LOST,
                "entries were trimmed before they were applied: their counts are gone",
                level=logging.ERROR,
                entries=len(claimed.lost),
                first=claimed.lost[0],
            )
            self._claims.at_once()
        if claimed.deliveries:
            self._found.extend(claimed.deliveries)
            self._claims.at_once()  # there may be more
            self._log(
                Action.CLAIMED,
                "took over entries that another worker had left untouched",
                entries=len(claimed.deliveries),
            )

    def _sweep(self) -> None:
        orphans = self._group.orphans(self._options.claim_idle_ms, self._count)
        if orphans:
            self._found.extend(orphans)
            if len(orphans) >= self._count:
                self._orphans.at_once()  # there may be more; these are settled before that look
            self._log(
                Action.ORPHANS,
                "found old entries that were pending with nobody",
                level=logging.WARNING,
                entries=len(orphans),
            )

    def _forget_consumers(self) -> None:
        for name in self._group.idle_consumers(self._options.consumer_idle_ms):
            # The script looks again at what is pending; a worker that is merely quiet is made anew
            # when it reads.
            if self._group.delete_consumer(name):
                self._log(Action.CONSUMER_REMOVED, "forgot an idle consumer", removed=name)


def is_empty(group: Group) -> bool:
    """Whether every stream is empty and nothing is pending with anybody.

    Raises:
        StreamError: Redis did not do its part.
    """
    with mapped():
        if any(group.client.xlen(stream) for stream in group.streams):
            return False
    return not any(_pending(group, stream) for stream in group.streams)


def _pending(group: Group, stream: str) -> int:
    try:
        return int(command(group.client, "XPENDING", stream, GROUP)[0])
    except StreamError as error:
        if str(error.__cause__).startswith("NOGROUP"):
            return 0  # an empty stream without a group: nothing can be pending
        raise

"""The consumer loop: take a batch, apply it, acknowledge it; the next one is read meanwhile."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from countersink.stream.group import Group
from countersink.worker.applying import Applying
from countersink.worker.batch import Batch, InHand
from countersink.worker.figures import Figures, Publisher
from countersink.worker.intake import Intake
from countersink.worker.patience import Patience
from countersink.worker.report import Reporter
from countersink.worker.slot import Slot
from countersink.worker.stopping import Stop


class ReadAhead:
    """Takes batches from an :class:`Intake` on a thread of its own, one ahead of what is being
    applied.
    """

    def __init__(self, intake: Intake, stop: Stop) -> None:
        self._intake = intake
        self._stop = stop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="intake")
        self._ahead: Future[Batch] | None = None
        self._finishing = False

    def finish(self) -> None:
        """Read nothing new from now on; a read under way may still bring something."""
        self._finishing = True

    @property
    def lost(self) -> int:
        """As :attr:`Intake.lost`."""
        return self._intake.lost

    def take(self) -> Batch:
        """The next batch, perhaps empty; the one after it is being read from now on.

        Raises:
            StreamError: Redis did not do its part; call again.
        """
        ahead, self._ahead = self._ahead or self._submit(), None
        batch = ahead.result()
        self._ahead = self._submit()
        return batch

    def _submit(self) -> Future[Batch]:
        fresh = not (self._stop.requested or self._finishing)
        return self._thread.submit(self._intake.next, fresh=fresh)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.shutdown()


class Loop:
    """Moves entries until stopped or drained. For one thread; every part is handed in.

    Args:
        ahead: where batches come from.
        applying: where they go.
        group: for acknowledging; not the intake's own, which is in use on another thread.
        in_hand: read and not yet acknowledged.
        patience: waits for Redis.
        slot: kept leased.
        stop: asked between batches.
        figures, publisher, reporter: what is told about it.
        reached: called with ``read`` and ``acknowledged``; for tests that kill the process there.
    """

    def __init__(
        self,
        *,
        ahead: ReadAhead,
        applying: Applying,
        group: Group,
        in_hand: InHand,
        patience: Patience,
        slot: Slot,
        stop: Stop,
        figures: Figures,
        publisher: Publisher,
        reporter: Reporter,
        reached: Callable[[str], object],
    ) -> None:
        self._ahead = ahead
        self._applying = applying
        self._group = group
        self._in_hand = in_hand
        self._patience = patience
        self._slot = slot
        self._stop = stop
        self._figures = figures
        self._publisher = publisher
        self._reporter = reporter
        self._reached = reached

    def run(self) -> bool:
        """Go on until a stop is requested and all that was read is acknowledged, or, when draining,
        until nothing is left; whether it is the latter.

        Raises:
            Abandoned: a stop was requested while a server was away; what is in hand stays pending.
            SchemaTooNew: the tables were migrated by a newer version.
        """
        drained = False
        while True:
            # Asked before the batch is taken: an empty one that was read after the request is the
            # last.
            stopping = drained or self._stop.requested
            batch = self._patience.call(self._ahead.take)
            if batch.deliveries:
                self._settle(batch)
            elif stopping:
                return drained
            else:
                self._figures.state = "idle"
            if batch.drained:
                drained = True
                self._ahead.finish()
            self._between()

    def _settle(self, batch: Batch) -> None:
        self._figures.state = "applying"
        self._reached("read")
        begun = time.monotonic()
        applied = self._applying.apply(batch)
        took = time.monotonic() - begun
        self._patience.call(lambda: self._group.acknowledge(batch.deliveries))
        self._reached("acknowledged")
        self._in_hand.drop(batch.deliveries)
        self._figures.lost = self._ahead.lost
        self._reporter.batch(batch, applied, took)

    def _between(self) -> None:
        self._figures.slot = self._slot.keep()
        self._applying.use_slot(self._figures.slot)
        self._reporter.progress()
        if not self._stop.requested:
            self._publisher.publish()

"""The consumer loop: take a batch, apply it, acknowledge it."""

import time
from collections.abc import Callable

from countersink.stream.group import Group
from countersink.worker.applying import Applying
from countersink.worker.batch import Batch
from countersink.worker.figures import Figures, Publisher
from countersink.worker.intake import Intake
from countersink.worker.patience import Patience
from countersink.worker.report import Reporter
from countersink.worker.slot import Slot
from countersink.worker.stopping import Stop


class Loop:
    """Moves entries until stopped or drained. For one thread; every part is handed in.

    Args:
        intake: where batches come from.
        applying: where they go.
        group: for acknowledging.
        patience: waits for Redis.
        slot: kept leased.
        stop: asked between batches.
        figures, publisher, reporter: what is told about it.
        reached: called with ``read`` and ``acknowledged``; for tests that kill the process there.
        step: called between batches: it moves.
    """

    def __init__(
        self,
        *,
        intake: Intake,
        applying: Applying,
        group: Group,
        patience: Patience,
        slot: Slot,
        stop: Stop,
        figures: Figures,
        publisher: Publisher,
        reporter: Reporter,
        reached: Callable[[str], object],
        step: Callable[[], None],
    ) -> None:
        self._intake = intake
        self._applying = applying
        self._group = group
        self._batch = Batch()
        self._patience = patience
        self._slot = slot
        self._stop = stop
        self._figures = figures
        self._publisher = publisher
        self._reporter = reporter
        self._reached = reached
        self._step = step

    def run(self) -> bool:
        """Go on until a stop is requested and all that was read is acknowledged, or, when draining,
        until nothing is left; whether it is the latter.

        Raises:
            Abandoned: a stop was requested while a server was away; what is in hand stays pending.
            SchemaTooNew: the tables were migrated by a newer version.
        """
        while True:
            stopping = self._stop.requested
            self._batch = self._patience.call(self._next)
            if self._batch.deliveries:
                self._settle(self._batch)
                self._batch = Batch()
            elif stopping or self._batch.drained:
                return self._batch.drained
            else:
                self._figures.state = "idle"
            self._between()

    @property
    def in_hand(self) -> int:
        """Deliveries that were read and are not acknowledged."""
        return len(self._batch.deliveries) + self._intake.waiting

    def _next(self) -> Batch:
        # Asked at each try: what was read already is handed out whatever Redis does.
        return self._intake.next(fresh=not self._stop.requested)

    def _settle(self, batch: Batch) -> None:
        self._figures.state = "applying"
        self._reached("read")
        begun = time.monotonic()
        applied = self._applying.apply(batch)
        took = time.monotonic() - begun
        self._patience.call(lambda: self._group.acknowledge(batch.deliveries))
        self._reached("acknowledged")
        self._figures.lost = self._intake.lost
        self._reporter.batch(batch, applied, took)

    def _between(self) -> None:
        self._step()
        self._figures.slot = self._slot.keep()
        self._applying.use_slot(self._figures.slot)
        self._reporter.progress()
        if not self._stop.requested:
            self._publisher.publish()

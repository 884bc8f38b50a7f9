"""What others may look at while a worker runs: its figures, and when it last moved."""

import time
from dataclasses import dataclass, field

from countersink.worker.figures import Figures


@dataclass(slots=True)
class Vitals:
    """Written by the worker's thread, read by any.

    Attributes:
        figures: what it has done, and its state.
        moved: when it last took a step, on :func:`time.monotonic`; waiting for a server that is
            away is a step at each try.
        batches: that were acknowledged.
        batch_seconds: from their reading to their acknowledgement, summed up.
    """

    figures: Figures = field(default_factory=Figures)
    moved: float = field(default_factory=time.monotonic)
    batches: int = 0
    batch_seconds: float = 0.0
    _begun: float = 0.0

    def step(self) -> None:
        """It moves."""
        self.moved = time.monotonic()

    def reached(self, point: str) -> None:
        """It has come to a point of a batch, see :func:`countersink.worker.process.run`."""
        now = self.moved = time.monotonic()
        if point == "read":
            self._begun = now
        elif point == "acknowledged":
            self.batches += 1
            self.batch_seconds += now - self._begun

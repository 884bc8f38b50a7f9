"""What others may look at while a scheduler or a job process runs."""

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Vitals:
    """Written by the process's own threads, read by any.

    Attributes:
        state: ``starting``, ``waiting`` (a server is away), and of a scheduler ``leading`` or
            ``standby``, of a job process ``idle`` or ``running``.
        moved: when it last took a step, on :func:`time.monotonic`; a try to reach a server that is
            away is one.
        looked: when the scheduler in charge last looked after all runs, on :func:`time.time`.
        runs: of a scheduler those that it enqueued, of a job process those that it started.
    """

    state: str = "starting"
    moved: float = field(default_factory=time.monotonic)
    looked: float | None = None
    runs: int = 0

    def step(self, state: str, looked: float | None = None) -> None:
        """It moves, and this is what it does."""
        self.state, self.looked, self.moved = state, looked, time.monotonic()

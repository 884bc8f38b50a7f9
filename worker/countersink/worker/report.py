"""What a worker says about its batches."""

import logging
import time
from typing import Final

from countersink.store.apply import Applied
from countersink.store.overflow import OVERFLOW
from countersink.worker.batch import Batch
from countersink.worker.figures import Figures, now_ms
from countersink.worker.logs import Action, Log

PROGRESS_EVERY_S: Final = 60.0


class Reporter:
    """Adds batches up and logs: at once what was bad, once a minute what was done."""

    def __init__(self, figures: Figures, log: Log) -> None:
        self._figures = figures
        self._log = log
        self._next = time.monotonic() + PROGRESS_EVERY_S
        self._before = (0, 0)
        self._overflown = 0
        self._say_overflown = self._next - PROGRESS_EVERY_S

    def batch(self, batch: Batch, applied: Applied, seconds: float) -> None:
        """A batch was applied, in ``seconds``, and acknowledged."""
        figures = self._figures
        figures.entries += applied.applied
        figures.duplicates += applied.duplicates + len(batch.deliveries) - len(batch.entries)
        figures.rows += applied.rows
        figures.cells += applied.cells
        figures.dead += applied.dead
        figures.too_old += applied.too_old
        figures.overflown += applied.overflown
        figures.last_batch, figures.last_batch_ms = now_ms(), round(seconds * 1000)
        self._log(
            Action.BATCH,
            "applied",
            level=logging.DEBUG,
            entries=applied.applied,
            duplicates=applied.duplicates,
            rows=applied.rows,
            cells=applied.cells,
            ms=round(seconds * 1000, 1),
        )
        if applied.dead:
            self._log(
                Action.DEAD,
                "rows went to the dead letters: see `countersink dead list`",
                level=logging.WARNING,
                rows=applied.dead,
            )
        if applied.too_old:
            self._log(
                Action.TOO_OLD,
                "entries too old to prove new went to the dead letters",
                level=logging.WARNING,
                entries=applied.too_old,
            )

        self._overflow()

    def _overflow(self) -> None:
        """Say how many rows went to the key of the rest since the last time, once a minute."""
        rows, clock = self._figures.overflown - self._overflown, time.monotonic()
        if not rows or clock < self._say_overflown:
            return
        self._overflown, self._say_overflown = self._figures.overflown, clock + PROGRESS_EVERY_S
        self._log(
            Action.OVERFLOW,
            f"rows of new keys went to {OVERFLOW}, as their counters have their most keys of the"
            " day: see `countersink counter list`",
            level=logging.WARNING,
            rows=rows,
        )

    def progress(self, *, now: bool = False) -> None:
        """Say what was done since the last time, when a minute is over, or ``now``."""
        clock = time.monotonic()
        if clock < self._next and not now:
            return
        self._next = clock + PROGRESS_EVERY_S
        entries, rows = self._before
        if self._figures.entries != entries or self._figures.rows != rows:
            self._before = (self._figures.entries, self._figures.rows)
            self._log(
                Action.PROGRESS,
                "applied",
                entries=self._figures.entries - entries,
                rows=self._figures.rows - rows,
            )

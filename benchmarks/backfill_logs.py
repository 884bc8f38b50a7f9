"""The logs that are counted: each is written when it is first asked for, and kept for the run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.log_lines import Log, write
from benchmarks.measuring import Wrong

LINES: Final = 10_000_000
QUICK_LINES: Final = 20_000
"""Of a run of less than a second per measurement."""
PART: Final = 10
"""The small log has this part of the lines of the big one."""


class Logs:
    """Logs in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[int, Log] = {}

    def get(self, seconds: float) -> Log:
        """The log for measurements of so long. Raises Wrong if it cannot be written."""
        return self._written(QUICK_LINES if seconds < 1 else LINES)

    def small(self, seconds: float) -> Log | None:
        """One with a tenth of its lines; None: not of one that is short itself."""
        return None if seconds < 1 else self._written(LINES // PART)

    def _written(self, lines: int) -> Log:
        if lines not in self._known:
            try:
                self._known[lines] = write(self._directory / f"{lines}.log", lines)
            except OSError as error:
                raise Wrong(f"a log of {lines:,} lines cannot be written: {error}") from error
        return self._known[lines]

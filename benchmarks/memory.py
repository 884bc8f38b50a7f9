"""How much memory processes need: looked at again and again, since it is gone with the process."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.processes import peak_megabytes

EVERY_SECONDS: Final = 0.05


class Peaks:
    """The largest resident memory that each of some processes and their children ever had.

    A context manager; a thread looks 20 times a second at what the kernel has kept of it (`VmHWM`),
    so what a process took in its very last moments may be missing. Not `ru_maxrss`: there a process
    begins with what its parent had.
    """

    def __init__(self) -> None:
        self._watched: set[int] = set()
        self._peaks: dict[int, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, name="peaks", daemon=True)

    def watch(self, *pids: int) -> None:
        """Look at these, too, and at their children."""
        self._watched.update(pids)

    def megabytes(self) -> float | None:
        """Of the process that had the most so far, in 10⁶ bytes (None: not on Linux)."""
        return max(self._peaks.values(), default=None)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopping.wait(EVERY_SECONDS):
            for pid in _with_children(set(self._watched)):
                peak = peak_megabytes(pid)
                if peak is not None:
                    self._peaks[pid] = max(peak, self._peaks.get(pid, 0.0))


def _with_children(pids: set[int]) -> set[int]:
    found = set(pids)
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except OSError:
            continue  # it has ended
        found |= _with_children({int(child) for child in text.split()})
    return found

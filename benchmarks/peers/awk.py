"""What a log's lines are counted with at a prompt: `awk | sort | uniq -c`, into a text file."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date, datetime
from pathlib import Path
from typing import Final

from benchmarks.backfill_logs import Logs
from benchmarks.measuring import Measurement, Wrong

STEPS: Final = (
    ("awk", r'{ sub(/\?.*/, "", $7); print substr($4, 2, 11), $7 }'),
    ("sort",),
    ("uniq", "-c"),
)
"""Day and path of each line; LC_ALL=C for all three."""


class Awk:
    """`peer_awk`: counts a log's lines by day and path, and keeps no more than that."""

    name: Final = "peer_awk"

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    def measure(self, seconds: float) -> Measurement:
        """Lines, from the start of the first process to the end of the last one."""
        log = self._logs.get(seconds)
        with tempfile.TemporaryDirectory(dir=log.path.parent) as directory:
            counted = Path(directory) / "counted"
            begun = time.monotonic()
            _run(log.path, counted)
            taken = time.monotonic() - begun
            if dict(_read(counted)) != log.hits:
                raise Wrong(f"{self.name}: not what is in the log")
        return Measurement(log.lines, taken)


def _run(log: Path, counted: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(counted.parent)}
    with ExitStack() as stack:
        source = stack.enter_context(log.open("rb"))
        target = stack.enter_context(counted.open("wb"))
        processes: list[subprocess.Popen[bytes]] = []
        for step in STEPS:
            before = processes[-1].stdout if processes else source
            process = subprocess.Popen(
                step,
                stdin=before,
                stdout=target if step is STEPS[-1] else subprocess.PIPE,
                env=environment,
            )
            stack.enter_context(process)
            if processes and before is not None:
                before.close()  # so that the one before notices when this one ends
            processes.append(process)
        for process in processes:
            if process.wait() != 0:
                raise Wrong(f"{process.args!r} ended with status {process.returncode}")


def _read(counted: Path) -> Iterator[tuple[tuple[date, str], int]]:
    """What was counted; lines that are cut off have no path."""
    days: dict[str, date] = {}
    for line in counted.read_text().splitlines():
        count, day, *path = line.split()
        if day not in days:
            days[day] = datetime.strptime(f"{day} +0000", "%d/%b/%Y %z").date()
        if path:
            yield (days[day], path[0]), int(count)

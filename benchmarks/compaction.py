"""Compaction with the server to itself: ours, and the textbook's at two isolation levels."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date
from typing import Final

from benchmarks.compaction_ways import Way, open_way
from benchmarks.database import one_value
from benchmarks.filling import Filling, fill
from benchmarks.measuring import Measurement, Wrong
from benchmarks.site import Site
from countersink.database.migrate import migrate

KEYS: Final = 4_000
SLOTS: Final = 16
DAY: Final = date(2026, 1, 5)
"""Over for so long that its bucket is closed."""
PART: Final = 5
"""A measurement compacts for at least this part of the time asked for: filling takes longer."""
COUNT: Final = "SELECT COUNT(*) FROM counter_slot"
TOTAL: Final = "SELECT SUM(amount) FROM counter_slot"


class Compaction:
    """`compact_…` and `peer_compact_…`: 4,000 keys in 16 slots become 4,000 rows."""

    def __init__(self, site: Site, name: str, way: Way) -> None:
        self.name = name
        self._site = site
        self._way = way

    def measure(self, seconds: float) -> Measurement:
        """Slot rows that were there before, from the first statement until the last commit.

        As often as it takes to compact for a fifth of ``seconds``; with fewer keys where that is
        less than a fifth of a second.
        """
        filling = Filling("/articles/", min(KEYS, int(KEYS * seconds)), DAY, 1, SLOTS)
        rows, taken = 0, 0.0
        with self._site.database() as url:
            migrate(url)
            while taken < seconds / PART:
                fill(url, [filling])
                total = one_value(url, TOTAL)
                with open_way(self._way, url, bucket=f"{DAY} 00:00:00") as compact:
                    taken += _timed(compact)
                rows += filling.rows
                self._check(url, filling, total)
        return Measurement(rows, taken)

    def _check(self, url: str, filling: Filling, total: int) -> None:
        left, after = one_value(url, COUNT), one_value(url, TOTAL)
        if (left, after) != (filling.keys, total):
            raise Wrong(
                f"{self.name}: {filling.rows} rows with {total} became {left} with {after};"
                f" {filling.keys} were to be left"
            )


def _timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun

"""What the database itself takes: bulk upserts of distinct rows over one connection."""

from __future__ import annotations

import time
from typing import Any, Final

from benchmarks.database import add_amount, connect, upsert
from benchmarks.measuring import Measurement, Paced
from benchmarks.site import Site
from benchmarks.workload import COUNTER, distinct_keys
from countersink.database.migrate import migrate
from countersink.worker.options import WorkerOptions

GUESS_PER_SECOND: Final = 100_000.0
ROWS_PER_COMMIT: Final = WorkerOptions(redis_url="", mysql_url="").batch_rows
"""As many as a worker's batch has."""
DAY: Final = "2026-11-21 00:00:00"
SLOT: Final = 1


class RawUpserts:
    """PyMySQL's executemany into an empty `counter_slot`: just the upserts and the commits."""

    name = "raw_upserts"

    def __init__(self, site: Site) -> None:
        self._site = site
        self._paced = Paced(GUESS_PER_SECOND, multiple_of=ROWS_PER_COMMIT)

    def measure(self, seconds: float) -> Measurement:
        """Rows committed, from the first statement until the last commit."""
        return self._paced.run(seconds, self._run)

    def _run(self, events: int) -> Measurement:
        keys = distinct_keys(events)
        # In primary-key order within each commit, as a worker sends them; sorted off the clock.
        commits: list[list[tuple[Any, ...]]] = [
            [(COUNTER, DAY, key, SLOT, 1) for key in sorted(keys[start : start + ROWS_PER_COMMIT])]
            for start in range(0, events, ROWS_PER_COMMIT)
        ]
        with self._site.database() as url:
            migrate(url)
            connection = connect(url)
            try:
                statement = (
                    "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
                    " VALUES (%s, %s, %s, %s, %s) "
                    + add_amount(connection, "counter_slot", "amount")
                )
                begun = time.monotonic()
                for rows in commits:
                    upsert(connection, statement, rows)
                    connection.commit()
                taken = time.monotonic() - begun
            finally:
                connection.close()
        return Measurement(events, taken)

"""End to end: a producer process and a worker process, until everything is in the database."""

from __future__ import annotations

from typing import Final

from benchmarks.command import service
from benchmarks.database import connect
from benchmarks.measuring import Measurement, Paced, Wrong
from benchmarks.processes import Child, peak_megabytes
from benchmarks.rows import WORKER_MEGABYTES
from benchmarks.site import Site
from benchmarks.workload import COUNTER, zipf_counts
from countersink.store.migrate import migrate

DISTINCT_GUESS_PER_SECOND: Final = 100_000.0


class EndToEnd:
    """`end_to_end_zipf` and `end_to_end_distinct`: the same, but for the keys."""

    def __init__(self, site: Site, name: str, *, distinct: bool) -> None:
        self.name = name
        self._site = site
        self._distinct = distinct
        self._paced = Paced(DISTINCT_GUESS_PER_SECOND, multiple_of=10_000)

    def measure(self, seconds: float) -> Measurement:
        """Events applied, from the first call until `flush(applied=True)` has returned."""
        if not self._distinct:
            return self._run(seconds=seconds)
        return self._paced.run(seconds, lambda events: self._run(events=events))

    def _run(self, *, seconds: float = 0.0, events: int = 0) -> Measurement:
        with self._site.database() as url:
            migrate(url)
            with (
                service("worker", self._site.redis_url, url) as worker,
                Child(
                    "benchmarks.children.producer",
                    redis_url=self._site.redis_url,
                    seconds=seconds,
                    distinct=events,
                ) as child,
            ):
                said = child.hear()
                megabytes = peak_megabytes(worker.pid)
            self._check(url, said["passes"], said["events"])
        extras = {WORKER_MEGABYTES: megabytes} if megabytes is not None else {}
        return Measurement(said["events"], said["seconds"], {**extras, **said["extras"]})

    def _check(self, url: str, passes: int, events: int) -> None:
        """Raises Wrong unless the tables hold exactly what the producer counted."""
        connection = connect(url, autocommit=True)
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT counter_key, CAST(SUM(amount) AS SIGNED) FROM counter_slot"
                    " WHERE counter = %s GROUP BY counter_key",
                    (COUNTER,),
                )
                totals = {key.decode(): int(total) for key, total in cursor.fetchall()}
        finally:
            connection.close()
        if self._distinct:
            exact = len(totals) == events and set(totals.values()) == {1}
        else:
            exact = totals == {key: n * passes for key, n in zipf_counts().items()}
        if not exact:
            raise Wrong(
                f"{self.name}: {events} events counted, {sum(totals.values())} in the table"
            )

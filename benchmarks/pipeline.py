"""End to end: a producer process and a worker process, until everything is in the database."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.command import service
from benchmarks.database import connect
from benchmarks.measuring import Measurement, Paced, Wrong
from benchmarks.processes import Child, peak_megabytes
from benchmarks.rows import WORKER_MEGABYTES
from benchmarks.site import Site
from benchmarks.workload import COUNTER, zipf_counts
from countersink.database.migrate import migrate
from countersink.producers import Producer
from countersink.stream.names import stream_key

DRAIN_SECONDS: Final = 120.0
SALT_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.02
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


def apply_all(site: Site, url: str) -> None:
    """Have a worker apply what is in Redis, off the clock. Raises Wrong if it takes too long."""
    with service("worker", site.redis_url, url), site.redis_client() as client:
        deadline = time.monotonic() + DRAIN_SECONDS
        while client.xlen(stream_key(0)):  # workers delete what they have applied
            if time.monotonic() > deadline:
                raise Wrong(f"a worker has not applied all entries within {DRAIN_SECONDS:g} s")
            time.sleep(PAUSE_SECONDS)


def until_salted(producer: Producer) -> None:
    """Wait until the producer has the salt of the counter, which a worker publishes. Raises Wrong
    if it does not come."""
    deadline = time.monotonic() + SALT_SECONDS
    while not producer.counts_members(COUNTER):
        if time.monotonic() > deadline:
            raise Wrong(f"no salt of {COUNTER} within {SALT_SECONDS:g} s")
        time.sleep(PAUSE_SECONDS)

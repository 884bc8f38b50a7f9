"""End to end: a producer process and a worker process, until everything is in the database."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Final

from benchmarks.database import connect
from benchmarks.measuring import Measurement, Paced, Wrong
from benchmarks.processes import PROJECT, Child, peak_megabytes
from benchmarks.rows import WORKER_MEGABYTES
from benchmarks.site import Site
from benchmarks.workload import COUNTER, zipf_counts
from countersink.store.migrate import migrate

COMMAND: Final = (
    sys.executable,
    "-c",
    "import sys; from countersink.cli.entry import main; sys.exit(main())",
)
"""`countersink`, also where the console script is not installed."""
STOP_SECONDS: Final = 20
DISTINCT_GUESS_PER_SECOND: Final = 100_000.0


@contextlib.contextmanager
def worker(redis_url: str, mysql_url: str) -> Iterator[int]:
    """A `countersink worker` with its defaults; gives its process id. Raises Wrong if it fails."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("COUNTERSINK_")
    }
    environment["COUNTERSINK_REDIS_URL"] = redis_url
    environment["COUNTERSINK_MYSQL_URL"] = mysql_url
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*COMMAND, "worker"],
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            yield process.pid
            process.terminate()
            status = process.wait(STOP_SECONDS)
        except BaseException:
            process.kill()
            process.wait()
            log.seek(0)
            sys.stderr.write(log.read().decode("utf-8", "replace")[-4000:])
            raise
        if status != 0:
            log.seek(0)
            raise Wrong(f"the worker ended with status {status}\n{log.read()[-4000:]!r}")


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
                worker(self._site.redis_url, url) as pid,
                Child(
                    "benchmarks.children.producer",
                    redis_url=self._site.redis_url,
                    seconds=seconds,
                    distinct=events,
                ) as child,
            ):
                said = child.hear()
                megabytes = peak_megabytes(pid)
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

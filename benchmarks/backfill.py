"""A log's lines into the database by `countersink backfill`: alone, and by two processes."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, Final

from benchmarks.backfill_logs import Logs
from benchmarks.command import run
from benchmarks.database import connect
from benchmarks.log_lines import Log
from benchmarks.measuring import Benchmark, Measurement, Wrong
from benchmarks.memory import Peaks
from benchmarks.peers.awk import Awk
from benchmarks.peers.line_upserts import LineUpserts
from benchmarks.rows import BACKFILL_MEGABYTES, BACKFILL_MEGABYTES_SMALL
from benchmarks.site import Site
from benchmarks.workload import COUNTER
from countersink.database.migrate import migrate

TOTALS: Final = (
    "SELECT DATE(bucket), counter_key, CAST(SUM(amount) AS SIGNED) FROM counter_slot"
    " WHERE counter = %s GROUP BY DATE(bucket), counter_key"
)


class Backfill:
    """`backfill` and `backfill_two_jobs`."""

    def __init__(self, site: Site, logs: Logs, name: str, *, jobs: int) -> None:
        self.name = name
        self._site = site
        self._logs = logs
        self._jobs = jobs

    def measure(self, seconds: float) -> Measurement:
        """Lines, from the command's start to its end; then the small log, for its memory."""
        log = self._logs.get(seconds)
        taken, megabytes = self._run(log)
        extras: dict[str, float] = {}
        small = self._logs.small(seconds)
        if small is not None:
            _, megabytes_small = self._run(small)
            if megabytes is not None and megabytes_small is not None:
                extras = {
                    BACKFILL_MEGABYTES: megabytes,
                    BACKFILL_MEGABYTES_SMALL: megabytes_small,
                }
        return Measurement(log.lines, taken, extras)

    def _run(self, log: Log) -> tuple[float, float | None]:
        """Into an empty database; the seconds it took, and the megabytes of the largest process."""
        with self._site.database() as url:
            migrate(url)
            with Peaks() as peaks:
                said, taken = run(_arguments(log, self._jobs), self._site.redis_url, url, peaks)
            self._check(url, log, said)
        return taken, peaks.megabytes()

    def _check(self, url: str, log: Log, said: dict[str, Any]) -> None:
        """Raises Wrong unless the tables hold exactly what is in the log."""
        figures = {name: said[name] for name in ("lines", "rejected")}
        if figures != {"lines": log.lines, "rejected": log.cut_off}:
            raise Wrong(f"{self.name}: {figures}, but {log.lines} lines, {log.cut_off} cut off")
        if totals(url) != log.hits:
            raise Wrong(f"{self.name}: not what is in the log")


def rows(site: Site) -> list[Benchmark]:
    """All of them, and the peers, of one and the same log."""
    logs = Logs(site.directory)
    return [
        Backfill(site, logs, "backfill", jobs=1),
        Backfill(site, logs, "backfill_two_jobs", jobs=2),
        Awk(logs),
        LineUpserts(site, logs),
    ]


def totals(url: str) -> dict[tuple[date, str], int]:
    """What the tables say."""
    connection = connect(url, autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute(TOTALS, (COUNTER,))
            return {(day, key.decode()): int(total) for day, key, total in cursor.fetchall()}
    finally:
        connection.close()


def _arguments(log: Log, jobs: int) -> list[str]:
    rejects: Path = log.path.with_suffix(".rejects")
    return [
        *("backfill", str(log.path), "--counter", COUNTER, "--format", "json"),
        *("--rejects", str(rejects), "--jobs", str(jobs)),
    ]

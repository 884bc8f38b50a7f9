"""The loop that everybody writes first: one upsert per line of the log."""

from __future__ import annotations

from typing import Final

from benchmarks.backfill_logs import Logs
from benchmarks.measuring import Measurement
from benchmarks.peers import tables
from benchmarks.processes import Child
from benchmarks.site import Site


class LineUpserts:
    """`peer_upsert_per_line`: a regular expression and an upsert per line, for as long as asked."""

    name: Final = "peer_upsert_per_line"

    def __init__(self, site: Site, logs: Logs) -> None:
        self._site = site
        self._logs = logs

    def measure(self, seconds: float) -> Measurement:
        """The log's first lines, from the first of them to the last commit."""
        log = self._logs.get(seconds)
        with self._site.database() as url:
            tables.create(url, tables.PLAIN)
            with Child(
                "benchmarks.children.line_upserts", url=url, path=str(log.path), seconds=seconds
            ) as child:
                said = child.hear()
            tables.check(url, said["counted"])
        return Measurement(said["lines"], said["seconds"])

"""Peer: one RQ job per event."""

from __future__ import annotations

from typing import Final

from benchmarks.measuring import Measurement, Paced
from benchmarks.peers import tables
from benchmarks.processes import Child
from benchmarks.site import Site

GUESS_PER_SECOND: Final = 400.0


class RqJobs:
    """Jobs that were enqueued beforehand, executed by one SimpleWorker."""

    name = "peer_rq"

    def __init__(self, site: Site) -> None:
        self._site = site
        self._paced = Paced(GUESS_PER_SECOND)

    def measure(self, seconds: float) -> Measurement:
        """Events applied, from the worker's start of work until the queue is empty."""
        return self._paced.run(seconds, self._run)

    def _run(self, events: int) -> Measurement:
        with self._site.database() as url:
            tables.create(url, tables.PLAIN)
            with Child(
                "benchmarks.children.rq_worker",
                redis_url=self._site.redis_url,
                url=url,
                events=events,
            ) as child:
                taken: float = child.hear()["seconds"]
            tables.check(url, events)
        return Measurement(events, taken)

"""Peers: a job per event, or per thousand of them, by the usual job queues."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from benchmarks.measuring import Measurement, Paced
from benchmarks.peers import tables
from benchmarks.processes import Child
from benchmarks.site import Site

BATCH: Final = 1_000
MODULES: Final = {
    "peer_rq": "rq",
    "peer_dramatiq": "dramatiq",
    "peer_dramatiq_batches": "dramatiq",
    "peer_taskiq": "taskiq",
    "peer_arq": "arq",
    "peer_bytewax": "bytewax",
}
"""The library of each."""
GUESS_PER_SECOND: Final = {"peer_dramatiq_batches": 150_000.0, "peer_bytewax": 20_000.0}
GUESS_ELSE: Final = 300.0


class Jobs:
    """Jobs that were enqueued beforehand, executed by one worker process."""

    def __init__(self, site: Site, name: str) -> None:
        self.name = name
        self._site = site
        self._events_per_job = BATCH if name.endswith("_batches") else 1
        self._child = f"benchmarks.children.{MODULES[name]}_worker"
        self._paced = Paced(
            GUESS_PER_SECOND.get(name, GUESS_ELSE), multiple_of=self._events_per_job
        )

    def measure(self, seconds: float) -> Measurement:
        """Events applied, from the worker's start of work until the last job is done."""
        return self._paced.run(seconds, self._run)

    def _run(self, events: int) -> Measurement:
        with self._site.database() as url:
            tables.create(url, tables.PLAIN)
            with Child(
                self._child,
                redis_url=self._site.redis_url,
                url=url,
                events=events,
                events_per_job=self._events_per_job,
            ) as child:
                taken: float = child.hear()["seconds"]
            tables.check(url, events)
        return Measurement(events, taken)


def why_missing(name: str) -> str | None:
    """Why a row cannot be measured; None if it can."""
    module = MODULES[name]
    return None if find_spec(module) else f"{module} is not installed: scripts/venv.sh peers"

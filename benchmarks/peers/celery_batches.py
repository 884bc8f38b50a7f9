"""Peer: Celery with celery-batches, one aggregated upsert per flush."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.children.celery_app import FLUSH_EVERY
from benchmarks.measuring import Measurement, Paced, Wrong
from benchmarks.peers import tables
from benchmarks.processes import ANSWER_SECONDS, Child
from benchmarks.site import Site

GUESS_PER_SECOND: Final = 1_500.0


class CeleryBatches:
    """Messages that were published beforehand, consumed by one worker with the solo pool."""

    name = "peer_celery_batches"

    def __init__(self, site: Site) -> None:
        self._site = site
        # Whole flushes: a rest would wait for the one-second timer, which is no figure of speed.
        self._paced = Paced(GUESS_PER_SECOND, multiple_of=FLUSH_EVERY)

    def measure(self, seconds: float) -> Measurement:
        """Events applied, from the worker's being ready to the commit of its last flush."""
        return self._paced.run(seconds, self._run)

    def _run(self, events: int) -> Measurement:
        with self._site.database() as url:
            tables.create(url, tables.PLAIN)
            arguments = {"redis_url": self._site.redis_url, "url": url, "events": events}
            with Child("benchmarks.children.celery_publisher", **arguments) as publisher:
                publisher.hear()
            with Child("benchmarks.children.celery_worker", **arguments) as worker:
                ready: float = worker.hear()["ready"]
                applied, at = 0, ready
                deadline = time.monotonic() + ANSWER_SECONDS
                while applied < events:
                    if time.monotonic() > deadline:
                        raise Wrong(f"celery-batches applied {applied} of {events} events")
                    message = worker.hear()
                    applied, at = message["applied"], message["at"]
            tables.check(url, events)
        return Measurement(events, at - ready)

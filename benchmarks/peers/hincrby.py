"""Peer: HINCRBY in pipelines of 500, and a second process that renames the hash and flushes it."""

from __future__ import annotations

from benchmarks.measuring import Measurement
from benchmarks.peers import tables
from benchmarks.processes import Child
from benchmarks.site import Site


class Hincrby:
    """The fastest of the hand-built ways (a crash in mid-flush loses events)."""

    name = "peer_hincrby"

    def __init__(self, site: Site) -> None:
        self._site = site

    def measure(self, seconds: float) -> Measurement:
        """Events applied, from the first HINCRBY until the flusher has committed the last hash."""
        with self._site.database() as url:
            tables.create(url, tables.PLAIN)
            with (
                Child(
                    "benchmarks.children.hincrby_flusher", redis_url=self._site.redis_url, url=url
                ) as flusher,
                Child(
                    "benchmarks.children.hincrby_producer", redis_url=self._site.redis_url
                ) as producer,
            ):
                flusher.hear()
                producer.hear()
                producer.say(seconds=seconds)
                sent = producer.hear()
                flusher.say(finish=True)
                done = flusher.hear()
            tables.check(url, sent["events"])
        return Measurement(sent["events"], done["at"] - sent["first"])

"""Peers that are written by hand: one process counts, and one, but for the dictionary, applies."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final

from benchmarks.measuring import Measurement, Wrong
from benchmarks.peers import tables
from benchmarks.processes import Child, Message
from benchmarks.site import Site

EVERY_SECONDS: Final = 1.0
"""How often a dictionary is handed on."""
LOST: Final = "lost_share"
"""The extra field with the share of the events that never came."""
MAY_LOSE: Final = "statsd_udp"
"""Datagrams are dropped where they come faster than they are read: what was stored counts."""


class ByHand:
    """`peer_folded_dict`, `peer_folded_stream`, `peer_stream_entries`, `peer_hincrby`,
    `peer_statsd_udp`."""

    def __init__(self, site: Site, way: str) -> None:
        self.name = f"peer_{way}"
        self._site = site
        self._way = way

    def measure(self, seconds: float) -> Measurement:
        """Events stored, from the first call until the last commit."""
        with self._site.database() as url, ExitStack() as stack:
            tables.create(url, tables.PLAIN)
            port = free_port()
            consumer = None
            if self._way != "folded_dict":
                consumer = stack.enter_context(consuming(self._site, self._way, url, port))
                consumer.hear()
            producer = stack.enter_context(
                counting(self._site, self._way, url, port, EVERY_SECONDS)
            )
            producer.hear()
            producer.say(seconds=seconds)
            said = done = producer.hear()
            if consumer is not None:
                done = finished(consumer)
            stored = tables.total(url)
        if stored > said["events"] or (stored < said["events"] and self._way != MAY_LOSE):
            raise Wrong(f"{self.name}: {said['events']} events counted, {stored} in the table")
        extras = {LOST: 1 - stored / said["events"]} if self._way == MAY_LOSE else {}
        return Measurement(stored, done["at"] - said["first"], extras)


def free_port() -> int:
    """A UDP port that nobody listens at."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def counting(site: Site, way: str, url: str, port: int, every: float) -> Child:
    """The process that counts; a folded dictionary is handed on ``every`` so many seconds."""
    return Child(
        "benchmarks.children.by_hand",
        way=way,
        redis_url=site.redis_url,
        url=url,
        port=port,
        every=every,
    )


def consuming(site: Site, way: str, url: str, port: int) -> Child:
    """The process that applies."""
    return Child(
        "benchmarks.children.by_hand_consumer",
        way=way,
        redis_url=site.redis_url,
        url=url,
        port=port,
    )


def finished(consumer: Child) -> Message:
    """The message of a consumer that has applied all that there is."""
    consumer.say(finish=True)
    return consumer.hear()

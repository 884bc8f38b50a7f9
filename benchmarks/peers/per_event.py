"""Peers that send one statement per event over 16 connections: plain UPDATE, and slotted upsert."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from benchmarks.measuring import Measurement
from benchmarks.peers import tables
from benchmarks.processes import Child
from benchmarks.site import Site

PROCESSES: Final = 2
CONNECTIONS: Final = 16
"""In 2 processes of 8 threads: see README.md for the other divisions that were tried."""


class PerEvent:
    """16 connections, each: one autocommitted statement per event."""

    def __init__(self, site: Site, name: str, *, slotted: bool) -> None:
        self.name = name
        self._site = site
        self._slotted = slotted

    def measure(self, seconds: float) -> Measurement:
        """Events applied, from the first statement to the end of the last."""
        with self._site.database() as url, ExitStack() as stack:
            tables.create(
                url,
                tables.SLOTTED if self._slotted else tables.PLAIN,
                with_rows=not self._slotted,
            )
            children = [
                stack.enter_context(
                    Child(
                        "benchmarks.children.per_event",
                        url=url,
                        slotted=self._slotted,
                        threads=CONNECTIONS // PROCESSES,
                        offset=number / PROCESSES,
                    )
                )
                for number in range(PROCESSES)
            ]
            for child in children:
                child.hear()  # connected
            for child in children:
                child.say(seconds=seconds)
            answers = [child.hear() for child in children]
            events = sum(answer["events"] for answer in answers)
            tables.check(url, events)
        first = min(answer["first"] for answer in answers)
        last = max(answer["last"] for answer in answers)
        return Measurement(events, last - first)

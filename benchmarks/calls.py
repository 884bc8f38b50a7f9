"""Rows that count inside one process: the bare dictionary, and the calls of a Producer."""

from __future__ import annotations

from typing import Any

from benchmarks.measuring import Measurement
from benchmarks.processes import Child
from benchmarks.site import Site


class Calls:
    """`bare` or one of the calls of a Producer, in a fresh process."""

    def __init__(self, site: Site, name: str) -> None:
        self.name = name
        self._site = site

    def measure(self, seconds: float) -> Measurement:
        """See `benchmarks.children.calls` for what is timed, and by which clock."""
        with (
            self._site.database(),
            Child(
                "benchmarks.children.calls",
                name=self.name,
                redis_url=self._site.redis_url,
                seconds=seconds,
            ) as child,
        ):
            said: dict[str, Any] = child.hear()
        return Measurement(said["events"], said["seconds"], said["extras"])

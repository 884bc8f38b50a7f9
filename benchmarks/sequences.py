"""Numbers that are handed out once: by a sequence, and by the two usual hand-made ways."""

from __future__ import annotations

from typing import Final

from benchmarks.measuring import Measurement, Wrong
from benchmarks.peers import numbers
from benchmarks.processes import Child
from benchmarks.rows import NUMBERS_EIGHT, NUMBERS_ONE, on
from benchmarks.site import Site
from countersink.database.migrate import migrate

WAYS: Final[tuple[numbers.Way, ...]] = ("sequence", "for_update", "last_insert_id")

TOGETHER: Final = 8
"""Processes, all on one row."""
BLOCK: Final = 100


class Numbers:
    """`sequence_…`, `peer_for_update_…`, `peer_last_insert_id_…`."""

    def __init__(
        self, site: Site, name: str, way: numbers.Way, *, processes: int = 1, block: int = 1
    ) -> None:
        self.name = name
        self._site = site
        self._way = way
        self._processes = processes
        self._block = block

    def measure(self, seconds: float) -> Measurement:
        """Numbers handed out. Raises Wrong if one of them is missing or comes twice."""
        with self._site.database() as url:
            if self._way == "sequence":
                migrate(url)
            else:
                numbers.create(url)
            with Child(
                "benchmarks.children.numbers",
                way=self._way,
                url=url,
                processes=self._processes,
                block=self._block,
                seconds=seconds,
            ) as child:
                said = child.hear()
        taken: list[int] = said["numbers"]
        if taken != list(range(1, len(taken) * self._block + 1, self._block)):
            raise Wrong(f"{self.name}: {len(set(taken)):,} different of {len(taken):,} numbers")
        return Measurement(said["timed"] * self._block, said["seconds"])


def rows(site: Site) -> list[Numbers]:
    """All of them, on that server."""
    return [
        *(
            Numbers(site, on(site.kind, row), way)
            for row, way in zip(NUMBERS_ONE, WAYS, strict=True)
        ),
        Numbers(site, on(site.kind, "sequence_blocks"), "sequence", block=BLOCK),
        *(
            Numbers(site, on(site.kind, row), way, processes=TOGETHER)
            for row, way in zip(NUMBERS_EIGHT, WAYS, strict=True)
        ),
    ]

"""What the triggers of a tracked table cost whoever inserts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from benchmarks.app_table import BY, CREATE, DAY, TABLE
from benchmarks.database import connect, one_value
from benchmarks.measuring import Measurement, Wrong
from benchmarks.processes import Child
from benchmarks.rows import INSERTS, on
from benchmarks.site import Site
from countersink.database.migrate import migrate
from countersink.store import Store

TOGETHER: Final = 8
"""Connections, in 2 processes."""
BULK_ROWS: Final = 1_000
"""Rows per statement of the bulk inserts."""
MICROSECONDS: Final = "microseconds_per_row"
"""The extra field with what a connection waits for each row, in µs."""


class Inserts:
    """`insert…` and `insert…_tracked…`: the same rows into the same table, one of them tracked."""

    def __init__(
        self, site: Site, name: str, *, tracked: bool, connections: int = 1, rows: int = 1
    ) -> None:
        self.name = name
        self._site = site
        self._tracked = tracked
        self._connections = connections
        self._rows = rows

    def measure(self, seconds: float) -> Measurement:
        """Rows inserted. Raises Wrong if they are not there, or not counted."""
        with self._site.database() as url, ExitStack() as stack:
            migrate(url)
            create(url)
            store = stack.enter_context(Store(url))
            if self._tracked:
                store.tracked.track(TABLE, by=BY, day=DAY)
            processes = min(2, self._connections)
            children = [
                stack.enter_context(
                    Child(
                        "benchmarks.children.row_writer",
                        url=url,
                        threads=self._connections // processes,
                        rows=self._rows,
                        each=False,
                    )
                )
                for _ in range(processes)
            ]
            for child in children:
                child.hear()  # connected
            for child in children:
                child.say(seconds=seconds)
            answers = [child.hear() for child in children]
            rows = sum(answer["rows"] for answer in answers)
            there = one_value(url, f"SELECT COUNT(*) FROM {TABLE}")
            counted = store.row_count(TABLE) if self._tracked else there
        if not rows == there == counted:
            raise Wrong(f"{self.name}: {rows} rows inserted, {there} there, {counted} counted")
        taken = max(answer["last"] for answer in answers) - min(
            answer["first"] for answer in answers
        )
        return Measurement(rows, taken, {MICROSECONDS: taken * 1e6 * self._connections / rows})


def create(url: str) -> None:
    """Make the table."""
    connection = connect(url, autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute(CREATE)
    finally:
        connection.close()


def rows(site: Site) -> list[Inserts]:
    """The rows of one server."""
    ways = ({"connections": 1}, {"connections": TOGETHER}, {"rows": BULK_ROWS})
    return [
        Inserts(site, on(site.kind, row), tracked=row.endswith("tracked"), **way)
        for pair, way in zip(INSERTS, ways, strict=True)
        for row in pair
    ]

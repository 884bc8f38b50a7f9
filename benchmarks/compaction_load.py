"""Writers beside compaction: what it costs them, and whether anything is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any, Final

from benchmarks.compaction_ways import Way
from benchmarks.database import one_value
from benchmarks.filling import Filling, fill
from benchmarks.measuring import Measurement, Wrong
from benchmarks.processes import Child
from benchmarks.rows import DRIFT, SHARE_KEPT, WENT_DOWN
from benchmarks.site import Site
from countersink.database.migrate import migrate

WRITERS: Final = 2
DAY: Final = date(2026, 1, 5)
"""Over long ago: its bucket is closed."""
FULL_DAY: Final = Filling("/articles/", 8_000, DAY, 1, 16, first_slot=1 + WRITERS, digits=4)
"""More than is compacted at the scheduled pace while a measurement lasts. The workload's names are
among its keys."""
BEGUN_SECONDS: Final = 0.5
"""Until the writers have been at most of the keys."""
TOTAL: Final = "SELECT SUM(amount) FROM counter_slot"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, in seconds of the monotonic clock that all processes share."""

    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.ended - self.begun

    def rows_of(self, commits: list[tuple[float, int]]) -> int:
        """The rows of the commits within it."""
        return sum(rows for at, rows in commits if self.begun < at <= self.ended)


class Beside:
    """`writers_…`: two saturated writers, each in its slot, and a reader.

    Nine of ten batches are of today, one is late, of a day that is over and full of slot rows. That
    day is compacted for half of the time, with a quarter before and one after: so neither half has
    the better part of a machine or of a table that gets slower or faster.
    """

    def __init__(self, site: Site, name: str, way: Way) -> None:
        self.name = name
        self._site = site
        self._way = way

    def measure(self, seconds: float) -> Measurement:
        """Rows that the writers committed while compaction went on, for ``seconds``.

        Raises Wrong if one is lost, unless it is the textbook's compaction: how many it loses is
        what there is to see.
        """
        with self._site.database() as url:
            migrate(url)
            fill(url, [replace(FULL_DAY, keys=min(FULL_DAY.keys, int(FULL_DAY.keys * seconds)))])
            filled = one_value(url, TOTAL)
            with ExitStack() as stack:
                alone, beside, compacted, said = self._run(stack, url, seconds)
            total = one_value(url, TOTAL)
        commits = [commit for answer in said[:WRITERS] for commit in answer["commits"]]
        reader = said[WRITERS]
        drift = total - filled - sum(rows for _, rows in commits)
        if drift and not self._way.startswith("peer"):
            raise Wrong(f"{self.name}: the total is {drift:+,} off what the writers committed")
        rows = beside.rows_of(commits)
        without = sum(span.rows_of(commits) for span in alone) / sum(span.seconds for span in alone)
        return Measurement(
            rows,
            beside.seconds,
            {
                "alone_per_second": without,
                SHARE_KEPT: rows / beside.seconds / without,
                DRIFT: drift,
                WENT_DOWN: reader["went_down"],
                "reads": reader["reads"],
                "passes": compacted["passes"],
                "removed_per_second": compacted["removed"] / beside.seconds,
                "refused": compacted["refused"],
                "reruns": sum(answer["reruns"] for answer in said[:WRITERS]),
                "errors": sum(answer["errors"] for answer in said[:WRITERS]),
            },
        )

    def _run(
        self, stack: ExitStack, url: str, seconds: float
    ) -> tuple[list[Span], Span, dict[str, Any], list[dict[str, Any]]]:
        """The spans without and with compaction, what compaction and the others said of it."""
        late = datetime(DAY.year, DAY.month, DAY.day, 12, tzinfo=UTC)
        others = [
            stack.enter_context(
                Child(
                    "benchmarks.children.slot_writer",
                    url=url,
                    slot=slot,
                    minute=int(time.time()) // 60,
                    late_minute=int(late.timestamp()) // 60,
                    offset=slot * 45,
                )
            )
            for slot in range(1, 1 + WRITERS)
        ]
        others.append(stack.enter_context(Child("benchmarks.children.slot_reader", url=url)))
        compactor = stack.enter_context(
            Child("benchmarks.children.compactor", url=url, way=self._way, bucket=f"{DAY} 00:00:00")
        )
        for child in (*others, compactor):
            child.hear()  # connected
        for child in others:
            child.say(begin=True)
        time.sleep(min(BEGUN_SECONDS, seconds))
        spans: list[Span] = []
        with _span(spans):
            time.sleep(seconds / 2)
        with _span(spans):
            compactor.say(begin=True)
            time.sleep(seconds)
            compactor.say(stop=True)
            compacted = compactor.hear()
        with _span(spans):
            time.sleep(seconds / 2)
        for child in others:
            child.say(stop=True)
        before, beside, after = spans
        return [before, after], beside, compacted, [child.hear() for child in others]


@contextmanager
def _span(into: list[Span]) -> Iterator[None]:
    begun = time.monotonic()
    yield
    into.append(Span(begun, time.monotonic()))

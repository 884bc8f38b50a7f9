"""The different members of one key's year: the union of the sketches of 365 days."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from benchmarks.command import service
from benchmarks.database import one_value
from benchmarks.measuring import Wrong
from benchmarks.pipeline import until_salted
from benchmarks.rows import on
from benchmarks.series import repeat
from benchmarks.sightings import ERRORS
from benchmarks.site import Site
from benchmarks.workload import COUNTER
from countersink.database.migrate import migrate
from countersink.producers import Producer
from countersink.store import Store

KEY: Final = "/home"
NEIGHBOURS: Final = 100
"""Other keys, which have some members on each day."""
NEIGHBOURS_MEMBERS: Final = 3
FIRST: Final = datetime(2025, 1, 1, 12, tzinfo=UTC)
DAYS: Final = 365
VISITORS: Final = 200_000
"""Of whom those of a day are drawn."""
MEMBERS: Final = 5_000
QUICK_MEMBERS: Final = 300
"""In a run of less than a second per measurement: still more than a sketch keeps exactly."""
APPLIED_SECONDS: Final = 170.0
BOUND_MS: Final = 50
WHAT: Final = f"the different members of one key's {DAYS} days"
_OF_KEY: Final = f"FROM visitor_slot WHERE counter_key = '{KEY}'"
_SEED: Final = 20_261_125


class UniqueYear:
    """`unique_year_…`: counts a year of members through a worker, and asks for their number."""

    def __init__(self, site: Site) -> None:
        self.name = on(site.kind, "unique_year")
        self._site = site

    def measure(self, seconds: float) -> list[dict[str, Any]]:
        """The row of the `unique_year` of results.json; the question is repeated for ``seconds``.

        Raises Wrong if the answer is far off, or not the same each time.
        """
        a_day = QUICK_MEMBERS if seconds < 1 else MEMBERS
        with self._site.database() as url, Store(url) as store:
            migrate(url)
            store.counters.set(COUNTER, salt_days=0)
            with service("worker", self._site.redis_url, url):
                members = self._count(a_day)
            sketches = one_value(url, f"SELECT COUNT(*) {_OF_KEY}")
            size = one_value(url, f"SELECT SUM(LENGTH(sketch)) {_OF_KEY}")
            start = FIRST.date()
            ask = partial(
                store.totals.unique,
                COUNTER,
                key=KEY,
                start=start,
                end=start + timedelta(DAYS - 1),
            )
            answer = ask()
            figures = repeat(itertools.repeat((ask, answer)), seconds).figures()
        if sketches != DAYS or not answer.estimate:
            raise Wrong(f"{self.name}: {sketches} sketches, answered with {answer}")
        if abs(answer.total - members) > ERRORS * (answer.high - answer.low) / 2:
            raise Wrong(f"{self.name}: {members:,} members, answered with {answer}")
        return [
            {
                "name": self.name,
                "ms": figures,
                "sketches": sketches,
                "sketch_bytes": size,
                "members": members,
                "answer": answer.total,
                "target": f"≤ {BOUND_MS} ms",
                "met": figures["median"] <= BOUND_MS,
            }
        ]

    def _count(self, a_day: int) -> int:
        """Count so many members of the key on each day, and some of the others; how many different
        ones the key has had."""
        draw = random.Random(_SEED)
        everybody = range(VISITORS)
        different: set[int] = set()
        with Producer(self._site.redis_url) as producer:
            until_salted(producer)
            for number in range(DAYS):
                at = FIRST + timedelta(number)
                of_day = draw.sample(everybody, a_day)
                different.update(of_day)
                for visitor in of_day:
                    producer.seen(COUNTER, KEY, f"visitor-{visitor:08d}", at=at)
                for neighbour in range(NEIGHBOURS):
                    for visitor in of_day[:NEIGHBOURS_MEMBERS]:
                        producer.seen(
                            COUNTER, f"/articles/{neighbour:04d}", f"visitor-{visitor:08d}", at=at
                        )
            applied = producer.flush(timeout=APPLIED_SECONDS, applied=True)
            if not applied or producer.stats().dropped:
                raise Wrong(f"{self.name}: not all members were applied: {producer.stats()}")
        return len(different)

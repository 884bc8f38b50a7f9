"""An application that counts page views: `python -m demo.app NUMBER INCREMENTS LAST_DAY`.

Two of these run in the demo. Each spreads its increments over the seven days that end with
LAST_DAY, sends them in about ten seconds, and prints one JSON document: its increments by day, and
the figures of its producer.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

from countersink.producers import Producer

COUNTER = "page_views"
DAYS = 7
SECONDS = 10.0
"""Duration of the traffic: long enough to kill a worker during it."""

_PAGES = ["/", "/pricing", "/docs", "/blog", "/login", "/about", "/features", "/changelog"]
PAGES = [*_PAGES, *(f"/blog/post-{number}" for number in range(200))]
WEEK = [1.0, 1.1, 1.2, 1.15, 1.05, 0.6, 0.5]
"""Traffic by day of the week, Monday first."""


def events(number: int, count: int, last: date) -> Iterator[tuple[str, datetime]]:
    """``count`` page views with their times, which depend only on the arguments."""
    draw = random.Random(number)
    days = [last - timedelta(days=back) for back in reversed(range(DAYS))]
    pages = draw.choices(PAGES, [1 / rank for rank in range(1, len(PAGES) + 1)], k=count)
    chosen = draw.choices(days, [WEEK[day.weekday()] for day in days], k=count)
    midnights = {day: datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days}
    for page, day in zip(pages, chosen, strict=True):
        yield page, midnights[day] + timedelta(minutes=draw.randrange(24 * 60))


def main() -> int:
    """Send the page views, and wait until MySQL has them."""
    number, count, last = int(sys.argv[1]), int(sys.argv[2]), date.fromisoformat(sys.argv[3])
    sent: Counter[str] = Counter()
    with Producer.from_env() as producer:
        begun = time.monotonic()
        for done, (page, at) in enumerate(events(number, count, last), start=1):
            producer.increment(COUNTER, page, at=at)
            sent[at.date().isoformat()] += 1
            if done % 1000 == 0:  # spreads the traffic, as real traffic is spread
                ahead = begun + SECONDS * done / count - time.monotonic()
                if ahead > 0:
                    time.sleep(ahead)
        applied = producer.flush(timeout=90, applied=True)
        stats = producer.stats()
    print(
        json.dumps(
            {
                "accepted": stats.accepted,
                "dropped": stats.dropped,
                "resent": stats.resent,
                "applied": applied,
                "by_day": sent,
            }
        )
    )
    return 0 if applied else 1


if __name__ == "__main__":
    sys.exit(main())

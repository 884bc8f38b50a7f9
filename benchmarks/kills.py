"""Losses and doublings by twenty SIGKILLs: with a worker, and with what is written by hand.

Who applies the events is killed, and at once another one is started in its place; of the folded
dictionary that is who counts them. All ways take the same blows at the same times.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from itertools import cycle, islice
from typing import Any, Final

from benchmarks.database import connect
from benchmarks.measuring import Wrong
from benchmarks.peers import tables
from benchmarks.peers.by_hand import consuming, counting, finished, free_port
from benchmarks.processes import Child, Message
from benchmarks.site import Site
from benchmarks.workload import zipf_keys
from countersink.database.migrate import migrate

WAYS: Final = {
    "ours": "Producer → Redis → worker",
    "folded_dict": "a dictionary, upserted each second; its process is killed",
    "folded_stream": "the same into a stream, and a consumer group",
    "statsd_udp": "lines of StatsD, and a plain aggregator",
    "hincrby": "HINCRBY, RENAME and flush",
}
"""The ways to count, whose processes are killed, with a line on each."""
KILLS: Final = 20
QUICK_KILLS: Final = 2
"""Of a run of less than a second per measurement."""
GAPS: Final = (0.4, 1.8)
"""Seconds that each has, once it has begun, at least and at most."""
RATE: Final = 20_000
"""Events per second."""
EVERY_SECONDS: Final = 0.05
"""Between two entries of the stream, ours or by hand: as many as five producers send."""
TOTALS: Final = "SELECT counter_key, CAST(SUM(amount) AS SIGNED) FROM counter_slot GROUP BY 1"
BY_HAND: Final = "SELECT name, cnt FROM hits"
_SEED: Final = 20_261_129


class Kills:
    """`kills`."""

    name: Final = "kills"

    def __init__(self, site: Site) -> None:
        self._site = site

    def measure(self, seconds: float) -> list[dict[str, Any]]:
        """The `kills` of results.json. Raises Wrong if ours loses or doubles an event."""
        draw = random.Random(_SEED)
        kills = QUICK_KILLS if seconds < 1 else KILLS
        gaps = [draw.uniform(*GAPS) for _ in range(kills)]
        rows = [self._of_way(way, gaps) for way in WAYS]
        if rows[0]["lost"] or rows[0]["doubled"]:
            raise Wrong(f"{self.name}: {rows[0]}")
        return rows

    def _of_way(self, way: str, gaps: list[float]) -> dict[str, Any]:
        events = int(RATE * (sum(gaps) + 1))
        every = EVERY_SECONDS if way in ("ours", "folded_stream") else 1.0
        port = free_port()
        with (
            self._site.database() as url,
            tempfile.NamedTemporaryFile() as marks,
            ExitStack() as stack,
        ):
            if way == "ours":
                migrate(url)
            else:
                tables.create(url, tables.PLAIN)
            marks.write(bytes(8))
            marks.flush()

            def count() -> Child:
                child = stack.enter_context(counting(self._site, way, url, port, every))
                child.say(events=events, rate=RATE, marks=marks.name)
                return child

            def apply() -> Child:
                return stack.enter_context(consuming(self._site, way, url, port))

            start = count if way == "folded_dict" else apply
            victim = start()
            victim.hear()  # it begins
            producer = victim if way == "folded_dict" else count()
            for gap in gaps:
                time.sleep(gap)
                victim.kill()
                victim = start()
                victim.hear()
            if way == "folded_dict":
                producer = victim
            _said(producer, "events")
            if way == "ours":
                victim.kill()
            elif way != "folded_dict":
                finished(victim)
            sent = Counter(islice(cycle(zipf_keys()), events))
            stored = _stored(url, TOTALS if way == "ours" else BY_HAND)
        return {
            "name": f"kills_{way}",
            "kills": len(gaps),
            "sent": events,
            "stored": stored.total(),
            "lost": (sent - stored).total(),
            "doubled": (stored - sent).total(),
        }


def _said(child: Child, what: str) -> Message:
    """The message that has this; what it says before is that it is connected."""
    while what not in (message := child.hear()):
        pass
    return message


def _stored(url: str, query: str) -> Counter[str]:
    connection = connect(url, autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute(query)
            return Counter({name.decode(): int(count) for name, count in cursor.fetchall()})
    finally:
        connection.close()

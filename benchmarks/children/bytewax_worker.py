"""The process of `peer_bytewax`: fills a stream, an entry per event, then runs a dataflow over it.

Bytewax counts the events of each key and second; a sink upserts what a second had.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from typing import Any, Final

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators.windowing import SystemClock, TumblingWindower, count_window
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main
from redis import Redis

from benchmarks.peers.tables import Hits
from benchmarks.processes import answer, first_message
from benchmarks.workload import zipf_keys

STREAM: Final = "hits:stream"
ENTRIES: Final = 1_000
SECOND: Final = timedelta(seconds=1)


class Reader(StatelessSourcePartition[str]):
    """Reads so many entries, and ends."""

    def __init__(self, client: Any, events: int) -> None:
        self._client = client
        self._left = events
        self._after = b"0"

    def next_batch(self) -> list[str]:
        if not self._left:
            raise StopIteration
        [(_, entries)] = self._client.xread({STREAM: self._after}, count=ENTRIES)
        self._after = entries[-1][0]
        self._left -= len(entries)
        return [fields[b"key"].decode() for _, fields in entries]


class Writer(StatelessSinkPartition[tuple[str, tuple[int, int]]]):
    """Upserts counts."""

    def __init__(self, url: str) -> None:
        self._hits = Hits(url)

    def write_batch(self, items: list[tuple[str, tuple[int, int]]]) -> None:
        counts: Counter[str] = Counter()
        for key, (_, count) in items:
            counts[key] += count
        self._hits.add(counts)


def main() -> None:
    arguments = first_message()
    client: Any = Redis.from_url(arguments["redis_url"])
    keys = islice(cycle(zipf_keys()), arguments["events"])
    while some := list(islice(keys, ENTRIES)):
        pipeline = client.pipeline(transaction=False)
        for key in some:
            pipeline.xadd(STREAM, {"key": key})
        pipeline.execute()

    class Source(DynamicSource[str]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Reader:
            return Reader(client, arguments["events"])

    class Sink(DynamicSink[tuple[str, tuple[int, int]]]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Writer:
            return Writer(arguments["url"])

    flow = Dataflow("hits")
    read = op.input("read", flow, Source())
    windower = TumblingWindower(align_to=datetime(2026, 1, 1, tzinfo=UTC), length=SECOND)
    counted = count_window("count", read, SystemClock(), windower, key=lambda key: key)
    op.output("write", counted.down, Sink())
    begun = time.monotonic()
    run_main(flow)
    answer({"seconds": time.monotonic() - begun})


if __name__ == "__main__":
    main()

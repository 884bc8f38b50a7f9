"""The counting process of `benchmarks.peers.by_hand`: what an application does with each event.

``ours`` is `Producer.increment`, for `benchmarks.kills`, where the ways take the same blows.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final

from redis import Redis
from statsd import StatsClient

from benchmarks.children.producer import flushed
from benchmarks.peers.tables import Hits
from benchmarks.processes import Message, answer, first_message, next_message
from benchmarks.workload import COUNTER, SEQUENCE, zipf_keys
from countersink.producers import Producer

STREAM: Final = "hits:stream"
HASH: Final = "hits"
PER_PIPELINE: Final = 500
CHUNK: Final = 1_000
"""Events between two looks at the clock."""
TICK_SECONDS: Final = 0.01
"""The same of a given rate."""

Count = Callable[[str], object]


counts: dict[str, int] = {}
lock = threading.Lock()


def count(key: str) -> None:
    """Count an event in the dictionary."""
    with lock:
        counts[key] = counts.get(key, 0) + 1


@contextmanager
def folded(hand_on: Callable[[dict[str, int]], object], every: float) -> Iterator[Count]:
    """Count in the dictionary, which a thread hands on ever so often, and once more at the end."""

    def flush() -> None:
        global counts
        with lock:
            taken, counts = counts, {}
        if taken:
            hand_on(taken)

    def run() -> None:
        while not ended.wait(every):
            flush()

    ended = threading.Event()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield count
    ended.set()
    thread.join()
    flush()


def into_table(arguments: Message) -> AbstractContextManager[Count]:
    """The dictionary goes into the table: what was counted since the last time is lost in a
    crash."""
    return folded(Hits(arguments["url"]).add, arguments["every"])


def into_stream(arguments: Message) -> AbstractContextManager[Count]:
    """The dictionary becomes an entry of a stream, a field for each key."""
    client: Any = Redis.from_url(arguments["redis_url"])
    return folded(partial(client.xadd, STREAM), arguments["every"])


@contextmanager
def piped(pipeline: Any, add: Count, send: str) -> Iterator[Count]:
    """Events in pipelines of 500."""
    waiting = 0
    execute = getattr(pipeline, send)

    def event(key: str) -> None:
        nonlocal waiting
        add(key)
        waiting += 1
        if waiting == PER_PIPELINE:
            execute()
            waiting = 0

    yield event
    execute()


def entries(arguments: Message) -> AbstractContextManager[Count]:
    """An entry of the stream for each event."""
    pipeline = Redis.from_url(arguments["redis_url"]).pipeline(transaction=False)
    return piped(pipeline, lambda key: pipeline.xadd(STREAM, {key: 1}), "execute")


def hincrby(arguments: Message) -> AbstractContextManager[Count]:
    """HINCRBY of one hash."""
    pipeline = Redis.from_url(arguments["redis_url"]).pipeline(transaction=False)
    return piped(pipeline, lambda key: pipeline.hincrby(HASH, key, 1), "execute")


def statsd(arguments: Message) -> AbstractContextManager[Count]:
    """A line of StatsD for each event, many in a datagram."""
    pipeline = StatsClient("127.0.0.1", arguments["port"], maxudpsize=1432).pipeline()
    return piped(pipeline, pipeline.incr, "send")


@contextmanager
def ours(arguments: Message) -> Iterator[Count]:
    """A Producer; at the end all is applied."""
    with Producer(arguments["redis_url"], flush_interval=arguments["every"]) as producer:
        yield partial(producer.increment, COUNTER)
        flushed(producer, applied=True)


WAYS: Final[dict[str, Callable[[Message], AbstractContextManager[Count]]]] = {
    "folded_dict": into_table,
    "folded_stream": into_stream,
    "stream_entries": entries,
    "hincrby": hincrby,
    "statsd_udp": statsd,
    "ours": ours,
}


def as_fast_as_it_goes(event: Count, seconds: float) -> int:
    """Count for so long; how many events."""
    keys = zipf_keys()
    chunks = [keys[start : start + CHUNK] for start in range(0, SEQUENCE, CHUNK)]
    events = 0
    deadline = time.monotonic() + seconds
    while True:
        for chunk in chunks:
            for key in chunk:
                event(key)
            events += CHUNK
            if time.monotonic() >= deadline:
                return events


def at_rate(event: Count, events: int, rate: int, marks: str) -> int:
    """Count the events that were not counted yet, so many per second; how many there are.

    ``marks``: a file of 8 bytes with the number of those that were, which outlives the process.
    """
    keys = zipf_keys()
    file = os.open(marks, os.O_RDWR)
    with mmap.mmap(file, 8) as mark, memoryview(mark).cast("Q") as done:
        begun, first = time.monotonic(), done[0]
        while done[0] < events:
            due = min(events, first + int((time.monotonic() - begun) * rate))
            for number in range(done[0], due):
                event(keys[number % SEQUENCE])
                done[0] = number + 1
            time.sleep(TICK_SECONDS)
    return events


def main() -> None:
    arguments = first_message()
    zipf_keys()
    with WAYS[arguments["way"]](arguments) as event:
        answer({"connected": True})
        message = next_message()
        first = time.monotonic()
        if "seconds" in message:
            events = as_fast_as_it_goes(event, message["seconds"])
        else:
            events = at_rate(event, message["events"], message["rate"], message["marks"])
    answer({"events": events, "first": first, "at": time.monotonic()})


if __name__ == "__main__":
    main()

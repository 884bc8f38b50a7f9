"""The consuming process of `benchmarks.peers.by_hand`: from Redis, or from datagrams, to the table.

``ours`` becomes `countersink worker`, for `benchmarks.kills`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from redis import Redis
from redis.exceptions import ResponseError

from benchmarks.children.by_hand import HASH, STREAM
from benchmarks.children.udp_receiver import LARGEST, open_receiver
from benchmarks.command import COMMAND, environment
from benchmarks.peers.tables import Hits
from benchmarks.processes import Interrupted, Message, answer, first_message

INTERVAL_SECONDS: Final = 1.0
FLUSHING: Final = "hits:flushing"
GROUP: Final = "hits"
CONSUMER: Final = "one"
ENTRIES: Final = 1_000
"""At most, of one transaction."""
BLOCK_MS: Final = 20


def stream(arguments: Message, finish: Interrupted) -> None:
    """A consumer group of one. What was applied and not acknowledged when it was killed comes
    again, and is counted again."""
    client: Any = Redis.from_url(arguments["redis_url"])
    hits = Hits(arguments["url"])
    with contextlib.suppress(ResponseError):  # the group is there
        client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    answer({"connected": True})
    after = "0"  # first what was read before, and not acknowledged
    while True:
        found = client.xreadgroup(GROUP, CONSUMER, {STREAM: after}, count=ENTRIES, block=BLOCK_MS)
        entries = found[0][1] if found else []
        if not entries and after == ">" and finish.is_set():
            return
        if not entries:
            after = ">"
            continue
        counts: Counter[str] = Counter()
        for _, fields in entries:
            for name, amount in fields.items():
                counts[name.decode()] += int(amount)
        hits.add(counts)
        ids = [number for number, _ in entries]
        with client.pipeline(transaction=False) as pipeline:
            pipeline.xack(STREAM, GROUP, *ids)
            pipeline.xdel(STREAM, *ids)
            pipeline.execute()


def hincrby(arguments: Message, finish: Interrupted) -> None:
    """RENAME, HGETALL, one transaction, DEL. Nothing protects it from losing the renamed hash."""
    client: Any = Redis.from_url(arguments["redis_url"])
    hits = Hits(arguments["url"])
    answer({"connected": True})
    finished = False
    while not finished:
        finished = finish.wait(INTERVAL_SECONDS)
        if client.exists(HASH):
            client.rename(HASH, FLUSHING)
            counts = client.hgetall(FLUSHING)
            hits.add({name.decode(): int(amount) for name, amount in counts.items()})
            client.delete(FLUSHING)


def statsd(arguments: Message, finish: Interrupted) -> None:
    """A plain aggregator. What the socket does not hold is lost, and in a crash what was counted
    since the last time."""
    hits = Hits(arguments["url"])
    counts: Counter[str] = Counter()
    with open_receiver(arguments["port"]) as receiver:
        receiver.settimeout(BLOCK_MS / 1000)
        answer({"connected": True})
        due = time.monotonic() + INTERVAL_SECONDS
        ended = False
        while not ended:
            try:
                for line in receiver.recv(LARGEST).decode().split("\n"):
                    name, _, value = line.partition(":")
                    counts[name] += int(value.partition("|")[0])
            except TimeoutError:
                ended = finish.is_set()
            if ended or time.monotonic() >= due:
                hits.add(counts)
                counts.clear()
                due = time.monotonic() + INTERVAL_SECONDS


def ours(arguments: Message, finish: Interrupted) -> None:
    """The real command, as shipped."""
    answer({"connected": True})
    command = [*COMMAND, "worker"]
    os.execve(command[0], command, environment(arguments["redis_url"], arguments["url"]))


CONSUMERS: Final[dict[str, Callable[[Message, Interrupted], None]]] = {
    "folded_stream": stream,
    "stream_entries": stream,
    "hincrby": hincrby,
    "statsd_udp": statsd,
    "ours": ours,
}


def main() -> None:
    arguments = first_message()
    finish = Interrupted()
    finish.listen()
    CONSUMERS[arguments["way"]](arguments, finish)
    answer({"at": time.monotonic()})


if __name__ == "__main__":
    main()

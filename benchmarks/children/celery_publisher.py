"""Publishes the messages of `benchmarks.peers.celery_batches` over one connection."""

from __future__ import annotations

from itertools import cycle, islice

from benchmarks.children.celery_app import Flusher, make_app
from benchmarks.processes import answer, first_message
from benchmarks.workload import zipf_keys


def main() -> None:
    arguments = first_message()
    app, task = make_app(arguments["redis_url"], Flusher())
    with app.producer_pool.acquire(block=True) as producer:
        for key in islice(cycle(zipf_keys()), arguments["events"]):
            task.apply_async((key,), producer=producer)
    answer({"published": arguments["events"]})


if __name__ == "__main__":
    main()

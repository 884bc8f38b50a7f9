"""The process of `benchmarks.peers.rq_jobs`: enqueues the jobs, then works through them.

A SimpleWorker (no fork per job) with JSON, without results: the fastest that RQ can be.
"""

from __future__ import annotations

import time
from itertools import cycle, islice
from typing import Final

from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

from benchmarks.children import rq_job
from benchmarks.database import connect
from benchmarks.processes import answer, first_message
from benchmarks.workload import zipf_keys

PER_PIPELINE: Final = 500


def main() -> None:
    arguments = first_message()
    events: int = arguments["events"]
    client = Redis.from_url(arguments["redis_url"])
    jobs = Queue("hits", connection=client, serializer=JSONSerializer)
    keys = list(islice(cycle(zipf_keys()), events))
    for start in range(0, events, PER_PIPELINE):
        jobs.enqueue_many(
            [
                Queue.prepare_data(rq_job.count, args=(key,), result_ttl=0)
                for key in keys[start : start + PER_PIPELINE]
            ]
        )
    rq_job.connection = connect(arguments["url"], autocommit=True)
    worker = SimpleWorker([jobs], connection=client, serializer=JSONSerializer)
    worker.log_job_description = False
    begun = time.monotonic()
    worker.work(burst=True, logging_level="WARNING")
    answer({"seconds": time.monotonic() - begun})


if __name__ == "__main__":
    main()

"""The Celery application of `benchmarks.peers.celery_batches`: its settings and its one task."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

from celery import Celery
from celery_batches import Batches

from benchmarks.peers.tables import Hits
from benchmarks.processes import answer

FLUSH_EVERY: Final = 1_000
FLUSH_SECONDS: Final = 1
TASK: Final = "count_event"


class Flusher:
    """Applies a batch of messages as one transaction, and says so on standard output."""

    def __init__(self, hits: Hits | None = None) -> None:
        self._hits = hits
        self._applied = 0

    def __call__(self, requests: list[Any]) -> None:
        """Called by celery-batches with the messages of one flush."""
        assert self._hits is not None
        self._hits.add(Counter(request.args[0] for request in requests))
        self._applied += len(requests)
        answer({"applied": self._applied, "at": time.monotonic()})


def make_app(redis_url: str, flusher: Flusher) -> tuple[Any, Any]:
    """The application and its task: no results, no rate limits, all the prefetch a batch needs."""
    app = Celery("benchmark", broker=redis_url, set_as_current=True)
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=0,
        worker_disable_rate_limits=True,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )
    task = app.task(
        flusher.__call__,
        name=TASK,
        base=Batches,
        flush_every=FLUSH_EVERY,
        flush_interval=FLUSH_SECONDS,
    )
    return app, task

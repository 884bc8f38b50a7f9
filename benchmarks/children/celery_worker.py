"""The worker of `benchmarks.peers.celery_batches`: solo pool, nothing switched on that costs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

from celery.signals import worker_ready

from benchmarks.children.celery_app import Flusher, make_app
from benchmarks.peers.tables import Hits
from benchmarks.processes import answer, first_message


def main() -> None:
    arguments = first_message()
    app, _ = make_app(arguments["redis_url"], Flusher(Hits(arguments["url"])))

    def ready(**_: Any) -> None:
        answer({"ready": time.monotonic()})

    worker_ready.connect(ready, weak=False)
    threading.Thread(target=end_with_input, daemon=True).start()
    app.worker_main(
        [
            "worker",
            "--pool=solo",
            "--loglevel=ERROR",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        ]
    )


def end_with_input() -> None:
    """Stop at once when the parent has closed our input: the figures are with it already."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

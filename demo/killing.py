"""Killing a worker while it holds entries that it has read and not yet acknowledged."""

from __future__ import annotations

import signal
import subprocess
import time

import redis

from countersink.stream.names import GROUP, stream_key

STREAM = stream_key(0)
PATIENCE_SECONDS = 30.0
WORTH_KILLING = 4
"""Entries in a worker's hands that make a good example; after PICKY_SECONDS one will do."""
PICKY_SECONDS = 3.0


def kill_in_mid_batch(client: redis.Redis, worker: subprocess.Popen[str]) -> int | None:
    """SIGKILL it with entries in its hands; how many. None when it never had any: not killed.

    The worker is frozen for each look, so that what is seen is what the kill leaves behind.
    """
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < PATIENCE_SECONDS:
        worker.send_signal(signal.SIGSTOP)
        pending = pending_of(client, worker.pid)
        if pending >= (WORTH_KILLING if waited < PICKY_SECONDS else 1):
            worker.kill()
            worker.wait()
            return pending
        worker.send_signal(signal.SIGCONT)
        time.sleep(0.002)  # let it work: it is to be caught at it
    return None


def pending_of(client: redis.Redis, pid: int) -> int:
    """Entries delivered to the worker of that process and not acknowledged."""
    try:
        consumers = client.xinfo_consumers(STREAM, GROUP)
    except redis.ResponseError:
        return 0  # no stream or no group yet
    # a consumer's name is host, process id and a random part
    return sum(int(c["pending"]) for c in consumers if f"-{pid}-".encode() in c["name"])

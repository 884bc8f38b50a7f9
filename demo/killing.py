"""Killing a worker while it holds entries that it has read and not yet acknowledged."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

import redis

from countersink.stream.names import GROUP, stream_key

STREAM = stream_key(0)
PATIENCE_SECONDS = 30.0
PICKY_SECONDS = 3.0


def kill_in_mid_batch(client: redis.Redis, worker: subprocess.Popen[str], worth: int) -> int | None:
    """SIGKILL it with entries in its hands; how many. None when it never had any: not killed.

    The worker is frozen for each look, so that what is seen is what the kill leaves behind. For
    the first seconds only ``worth`` entries or more are enough.
    """
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < PATIENCE_SECONDS:
        worker.send_signal(signal.SIGSTOP)
        pending = sum(int(each["pending"]) for each in consumers_of(client, worker.pid))
        if pending >= (worth if waited < PICKY_SECONDS else 1):
            worker.kill()
            worker.wait()
            return pending
        worker.send_signal(signal.SIGCONT)
        time.sleep(0.001)  # let it work: it is to be caught at it
    return None


def consumers_of(client: redis.Redis, pid: int) -> list[dict[str, Any]]:
    """What Redis knows of the consumers of that process: at most one."""
    try:
        consumers: Any = client.xinfo_consumers(STREAM, GROUP)
    except redis.ResponseError:
        return []  # no stream or no group yet
    # a consumer's name is host, process id and a random part
    return [each for each in consumers if f"-{pid}-".encode() in each["name"]]

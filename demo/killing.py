"""Kill of a worker that has read entries and not yet acknowledged them."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

import redis

from countersink.stream.names import GROUP, stream_key

STREAM = stream_key(0)
ATTEMPT_SECONDS = 30.0
"""Seconds after which no kill is attempted."""
MANY_SECONDS = 3.0
"""Seconds in which only a worker with many pending entries is killed."""


def kill_in_mid_batch(client: redis.Redis, worker: subprocess.Popen[str], many: int) -> int | None:
    """Kill a worker by SIGKILL while it has pending entries, and return their number; None if it
    had none, and was not killed.

    SIGSTOP freezes the worker during each check, so that the kill leaves exactly these entries. In
    the first seconds, only ``many`` entries or more are enough.
    """
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < ATTEMPT_SECONDS:
        worker.send_signal(signal.SIGSTOP)
        pending = sum(int(each["pending"]) for each in consumers_of(client, worker.pid))
        if pending >= (many if waited < MANY_SECONDS else 1):
            worker.kill()
            worker.wait()
            return pending
        worker.send_signal(signal.SIGCONT)
        time.sleep(0.001)  # lets it read and apply
    return None


def consumers_of(client: redis.Redis, pid: int) -> list[dict[str, Any]]:
    """The consumer of a process, from XINFO CONSUMERS; empty if there is none."""
    try:
        consumers: Any = client.xinfo_consumers(STREAM, GROUP)
    except redis.ResponseError:
        return []  # no stream or no group yet
    # a consumer's name is host, process id and a random part
    return [each for each in consumers if f"-{pid}-".encode() in each["name"]]

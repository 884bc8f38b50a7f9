"""Jobs for RQ that end in every way."""

import os
import signal

from rq import Retry

from tests.producers.middleware.selling import sell


def add(one: int, other: int) -> int:
    """Finishes, and counts by itself."""
    sell()
    return one + other


def charge() -> None:
    """Fails, or is retried where it was enqueued with a retry."""
    raise ValueError("no money")


def ship() -> Retry:
    """Asks to be run again."""
    return Retry(max=2)


def die() -> None:
    """Kills its work horse."""
    os.kill(os.getpid(), signal.SIGKILL)

"""Producers of tests: one that sends all the while, and one that keeps what it counts."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from countersink.producers import Producer
from tests.support.entries import again_and_again
from tests.support.waiting import eventually

STORED_S = 60.0
_numbers = count()


def recorder() -> Producer:
    """A producer that keeps its increments in a place of its own, which is empty."""
    return Producer(f"memory://{next(_numbers)}")


@contextmanager
def producing(
    redis_url: str, send: Callable[[Producer, int], object], least: int = 0
) -> Iterator[list[int]]:
    """Send from a thread meanwhile, at least so often; the numbers that were sent, from 0. At the
    end all of it is stored.
    """
    sent: list[int] = []

    def send_one() -> None:
        time.sleep(0.001)
        send(producer, len(sent))
        sent.append(len(sent))

    with Producer(redis_url, flush_interval=0.05) as producer:
        with again_and_again(send_one):
            yield sent
            eventually(lambda: len(sent) >= least, STORED_S)
        # It tells at once that members wait for their salt.
        eventually(lambda: producer.flush(timeout=STORED_S), STORED_S)
        assert producer.stats().dropped == 0

"""The difference between this machine's clock and Redis's.

All of a deployment's ``at`` fields and default event times are on one clock, Redis's, so that a
producer whose own clock is a year off does not count into the wrong year.
"""

import time

import redis

from countersink.stream.connection import mapped


def offset_ms(client: redis.Redis) -> int:
    """Redis's clock minus ours in ms, to within half of the round trip that this call takes.

    Raises:
        StreamError: Redis did not answer.
    """
    before = time.time()
    with mapped():
        seconds, microseconds = client.time()
    middle = (before + time.time()) / 2
    return round((seconds + microseconds / 1_000_000 - middle) * 1000)

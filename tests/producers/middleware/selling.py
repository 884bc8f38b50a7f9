"""What jobs count with a producer of their module, of which no job queue knows."""

import os

from countersink.producers import Producer

producer = Producer.from_env() if "COUNTERSINK_REDIS_URL" in os.environ else None


def sell() -> None:
    """Counts a visit, whose flush is waited for, and a sale, whose flush no process lives to see:
    it is stored because the process ends.
    """
    if producer is not None:
        producer.increment("visits")
        assert producer.flush(20)
        producer.increment("sales")

"""Sending one increment and knowing what became of it."""

import os
import time
from datetime import datetime
from typing import Final

from countersink.cli.failures import Failure
from countersink.stream.clock import offset_ms
from countersink.stream.connection import connect, mapped
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from countersink.stream.errors import StreamUnavailable
from countersink.stream.limits import minute_of
from countersink.stream.names import stream_key
from countersink.stream.partitions import note_use, partitions

ATTEMPTS: Final = 3


def send_one(redis_url: str, counter: str, key: str, amount: int, at: datetime | None) -> None:
    """Store one increment in the queue.

    A lost reply is answered by sending the same bytes again, which cannot count twice.

    Raises:
        StreamError: nothing was sent.
        Failure: it was sent, and Redis never said whether it arrived.
    """
    client = connect(redis_url, client_name="countersink-increment")
    now = time.time_ns() // 1_000_000 + offset_ms(client)
    minute = now // 60_000 if at is None else minute_of(at)
    rows = encode_rows([(counter, key, minute, amount)])
    entry = Sealed(new_entry_id(now), now, rows, 1)
    partition = os.getpid() % partitions(client)
    note_use(client, partition)
    stream = stream_key(partition)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with mapped():
                client.xadd(stream, entry.fields())
        except StreamUnavailable as error:
            if attempt == ATTEMPTS:
                raise Failure(
                    f"{error}; the increment may or may not be stored: compare the totals "
                    "before you send it again"
                ) from error
        else:
            return

"""Sending parcels: one round trip, one verdict for each."""

from collections.abc import Sequence
from dataclasses import dataclass

import redis

from countersink.producers.parcel import Parcel
from countersink.stream.connection import mapped
from countersink.stream.errors import StreamError, translate
from countersink.stream.names import stream_key
from countersink.stream.partitions import note_use


@dataclass(frozen=True, slots=True)
class Delivery:
    """What Redis said to a pipeline of parcels.

    Attributes:
        stored: the parcels it acknowledged.
        last_id: the stream id of the last of them, ``None`` if there are none.
        length: entries in the stream afterwards.
        error: why the others, or the question for the length, were refused.
    """

    stored: list[Parcel]
    last_id: str | None
    length: int
    error: StreamError | None


def deliver(client: redis.Redis, partition: int, parcels: Sequence[Parcel]) -> Delivery:
    """XADD every parcel to the partition's stream, and ask for its length, in one pipeline without
    a transaction.

    Raises:
        StreamError: the connection failed; any of the parcels may have arrived, so all are to be
            sent again as they are.
    """
    stream = stream_key(partition)
    with mapped(), client.pipeline(transaction=False) as pipe:
        # First, so that no entry is stored where nobody looks.
        note_use(pipe, partition)
        for parcel in parcels:
            pipe.xadd(stream, parcel.sealed().fields())
        pipe.xlen(stream)
        _, *answers, length = pipe.execute(raise_on_error=False)
    stored: list[Parcel] = []
    last_id: str | None = None
    error: StreamError | None = None
    for parcel, answer in zip(parcels, answers, strict=True):
        if isinstance(answer, Exception):
            error = translate(answer)
            error.__cause__ = answer
        else:
            stored.append(parcel)
            last_id = answer.decode() if isinstance(answer, bytes) else str(answer)
    if isinstance(length, Exception) and error is None:
        error = translate(length)  # unknown, which is not 0: nothing says that more may be sent
        error.__cause__ = length
    return Delivery(stored, last_id, length if isinstance(length, int) else 0, error)

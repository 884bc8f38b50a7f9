"""Batches on their way into the row buffer, where room was kept for all of them."""

from collections import Counter
from collections.abc import Sequence

from countersink.producers.generations import TABLE_BYTES, named_bytes, rows_bytes
from countersink.producers.increments import Batch, Event
from countersink.producers.rows import RowBuffer
from countersink.stream.limits import MAX_AMOUNT, MIN_AMOUNT


def batch_bytes(batch: Batch) -> int:
    """What its rows take in memory at most: as if none of them were there."""
    tables = {(counter, at) for counter, _, at, _ in batch.plain}
    plain = rows_bytes([event[1] for event in batch.plain])
    size = len(tables) * TABLE_BYTES + plain
    for names, events in batch.named:
        size += named_bytes(names, events)
    return size


def add_batches(buffer: RowBuffer, batches: Sequence[Batch], minute: int) -> None:
    """Add all of them: their room was promised. The buffer's owner holds its lock, and redeems that
    afterwards.

    Args:
        buffer: where to.
        batches: checked ones.
        minute: now.
    """
    _add_plain(buffer, [event for batch in batches for event in batch.plain], minute)
    for batch in batches:
        for names, events in batch.named:
            rows = [
                (counter, key, minute if at is None else at, amount)
                for counter, key, at, amount in events
            ]
            buffer.add_named(names, rows, bounded=False)


def _add_plain(buffer: RowBuffer, events: Sequence[Event], minute: int) -> None:
    ones: dict[tuple[str, int | None], list[str]] = {}  # what there is most of, and cheapest
    others: list[Event] = []
    for event in events:
        counter, key, at, amount = event
        if amount != 1:
            others.append(event)
        elif (counter, at) in ones:
            ones[counter, at].append(key)
        else:
            ones[counter, at] = [key]
    for (counter, at), keys in ones.items():
        buffer.add_ones(counter, minute if at is None else at, keys, bounded=False)
    for (counter, key, at, amount), calls in Counter(others).items():
        when = minute if at is None else at
        if MIN_AMOUNT <= amount * calls <= MAX_AMOUNT:
            buffer.add(counter, key, when, amount * calls, calls, bounded=False)
        else:  # the sum leaves 64 bits
            for _ in range(calls):
                buffer.add(counter, key, when, amount, 1, bounded=False)

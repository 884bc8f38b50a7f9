"""Counting an access log that comes through a pipe."""

import time
from typing import Final

from countersink.producers.access_log import Parser
from countersink.producers.log_files import LogError, Pipe
from countersink.producers.log_lines import Cutter
from countersink.producers.stop import Stop
from countersink.producers.tail_batch import Batch, Reporter, Summary
from countersink.producers.tail_sender import Sender

STORE_AFTER: Final = 1.0
"""Seconds after which what came is stored, however little."""


def tail_pipe(
    sender: Sender,
    fd: int,
    *,
    name: str,
    parser: Parser,
    reporter: Reporter,
    stop: Stop,
    summary: Summary | None = None,
) -> Summary:
    """Count what comes through a pipe until it ends or ``stop`` is set.

    A pipe has no place to go back to: what another run reads is counted again. ``summary``, if
    given, is added to as it goes on.

    Raises:
        LogError: it cannot be read.
        TailError: a stop came while Redis was away.
        StreamError: Redis refuses for good.
    """
    partition = sender.partition()
    batch = Batch(parser, reporter, summary or Summary())
    pipe, cutter = Pipe(fd, stop.is_set), Cutter()
    stored_at = time.monotonic()

    def store() -> None:
        nonlocal stored_at
        if batch.counts:
            sender.add(partition, batch.counts)
        batch.stored()
        stored_at = time.monotonic()

    damage: LogError | None = None
    while not stop.is_set():
        try:
            data = pipe.take(cutter.wanted)
        except LogError as error:
            damage = error
            break
        if data == b"":
            break
        if data is not None:
            batch.count(name, cutter.feed(data))
        if batch.full or data is None or time.monotonic() - stored_at >= STORE_AFTER:
            store()
    if not stop.is_set() and damage is None:
        batch.count(name, cutter.finish())
    store()
    if damage is not None:
        raise damage
    return batch.summary

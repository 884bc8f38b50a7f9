"""From the streams to batches: new entries, those of dead workers, and those that nobody has.

Reading the next batch on a second thread while MySQL works on this one was measured: the two then
share Python's lock, and what reading no longer took, applying took more.
"""

from collections import deque
from typing import Final

from countersink.stream.delivery import Delivery
from countersink.stream.group import Group
from countersink.worker.batch import Batch
from countersink.worker.decoding import incoming
from countersink.worker.housekeeping import Housekeeping, is_empty
from countersink.worker.logs import Log
from countersink.worker.options import WorkerOptions

_DRAIN_CLAIM_EVERY_S: Final = 1.0


class Intake:
    """Reads, claims, sweeps and decodes. A batch has to be settled before the next one is taken:
    while it is in hand, a look for entries that others left would find it, too.

    Args:
        group: the consumer's own; its streams are kept up to date.
        options: the worker's.
        log: the worker's.
    """

    def __init__(self, group: Group, options: WorkerOptions, log: Log) -> None:
        self._group = group
        self._options = options
        self._log = log
        every = options.claim_every_s
        if options.drain:
            every = min(every, _DRAIN_CLAIM_EVERY_S)
        self._housekeeping = Housekeeping(group, options, every, log)
        self._raw: deque[Delivery] = deque()

    @property
    def lost(self) -> int:
        """Entries that were trimmed before anyone applied them, as far as this worker found out."""
        return self._housekeeping.lost

    @property
    def waiting(self) -> int:
        """Deliveries that were read and are not in a batch yet."""
        return len(self._raw)

    def next(self, *, fresh: bool = True) -> Batch:
        """The next batch; empty when nothing came within ``batch_wait_ms``.

        Args:
            fresh: read new entries, too; else only what was read before and is not in a batch yet.

        Raises:
            StreamError: Redis did not do its part. Nothing that was read is lost: the next call
            hands it out.
        """
        if fresh and not self._raw:
            self._housekeeping.run(self._raw)
            if not self._raw:
                self._read()
        batch = self._decode()
        if fresh and self._options.drain and not batch.deliveries:
            batch.drained = is_empty(self._group)
        return batch

    def _read(self) -> None:
        """Take what is there, up to a batch; wait only when nothing is."""
        count = max(1, self._options.batch_entries // len(self._group.streams))
        self._raw.extend(self._group.read(count, self._options.batch_wait_ms))

    def _decode(self) -> Batch:
        batch = Batch()
        while self._raw and batch.rows < self._options.batch_rows:
            delivery = self._raw.popleft()
            entry_id, entry = incoming(delivery, self._log)
            held = delivery.stream, delivery.stream_id, entry_id
            batch.add(held, entry)
        return batch

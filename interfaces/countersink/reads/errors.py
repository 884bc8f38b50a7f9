"""Errors of reads: queue too long, read stopped, total too large; HTTP statuses for them are in
``web/read_pool.py``.

::

    StreamError
    ├── QueueTooLong       there is more in the queue than is read at once
    └── QueueReadStopped   the read of the queue was told to end before it had all
    ValueError
    └── TotalTooLarge      a total that the format of a file does not hold
    CatalogChanged         within this package alone: the queue is to be read again
"""

from countersink.stream.errors import StreamError


class QueueTooLong(StreamError):
    """There is more in the queue than is read at once."""


class QueueReadStopped(StreamError):
    """The read was told to end before it had all."""


class TotalTooLarge(ValueError):
    """A total that 64 bits do not hold."""


class CatalogChanged(Exception):
    """The queue was added up by a catalog that is not that of the snapshot: do it again."""

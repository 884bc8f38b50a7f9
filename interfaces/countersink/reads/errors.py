"""Errors of reads of totals. See ``web/read_pool.py`` for HTTP statuses of errors of the queue.

::

    StreamError
    ├── QueueTooLong       the queue has more entries or rows than one read may take
    └── QueueReadStopped   the read of the queue was stopped before its end
    ValueError
    └── TotalTooLarge      a file format cannot hold the total
    CatalogChanged         internal: the queue has to be read again
"""

from countersink.stream.errors import StreamError


class QueueTooLong(StreamError):
    """The queue has more entries or rows than one read may take."""


class QueueReadStopped(StreamError):
    """The read of the queue was stopped before its end, by ``Bounds.stop``."""


class TotalTooLarge(ValueError):
    """A total does not fit into the 64 bits of a Parquet column."""


class CatalogChanged(Exception):
    """The catalog changed between the read of the queue and the MySQL snapshot. Internal: ``Reads``
    reads the queue again."""

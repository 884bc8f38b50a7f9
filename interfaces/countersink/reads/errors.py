"""Errors of reads. See ``web/read_pool.py`` for their HTTP statuses.

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
    """The read of the queue was stopped before its end."""


class TotalTooLarge(ValueError):
    """A total exceeds 64 bits."""


class CatalogChanged(Exception):
    """The queue was added up with another version of the catalog than the snapshot has."""

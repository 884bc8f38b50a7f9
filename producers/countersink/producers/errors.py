"""Errors of producers and their spool.

::

    Exception
    ├── ValueError
    │   └── InvalidBatch      a batch has invalid increments; no increment of it was counted
    └── SpoolError            the spool cannot be read or written at the moment, or is full

``InvalidBatch`` reaches an application that sends batches, ``SpoolError`` an application that lists
or replays a spool. See :mod:`countersink.stream.errors` for errors of the queue.
"""

from collections.abc import Sequence

from countersink.runtime.errors import ExplainedError


class InvalidBatch(ValueError):
    """A batch has invalid increments; no increment of it was counted.

    Attributes:
        errors: a pair for each invalid increment: its position in the batch, counted from 0, and
            the error message.
    """

    def __init__(self, errors: Sequence[tuple[int, str]]) -> None:
        position, detail = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        super().__init__(f"increment {position}: {detail}{more}")
        self.errors = list(errors)


class SpoolError(ExplainedError):
    """The spool cannot be written or read at the moment (disk full, no permission, not a
    directory), has reached its limit (``spool_max_bytes``), or has a file that is not a segment.
    """

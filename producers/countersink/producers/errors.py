"""Errors of producers and their spool; the messages are worded where they are raised.

::

    Exception
    ├── ValueError
    │   └── InvalidBatch      increments of a batch cannot be: nothing of it was counted
    └── SpoolError            the spool cannot be read or written at the moment

An app meets ``InvalidBatch`` alone, and ``SpoolError`` where it lists or replays a spool itself.
Errors of the queue are in :mod:`countersink.stream.errors`.
"""

from collections.abc import Sequence

from countersink.runtime.errors import ExplainedError


class InvalidBatch(ValueError):
    """Some increments of a batch cannot be; nothing of it was counted.

    Attributes:
        errors: (position from 0, what is wrong with it) of each of them.
    """

    def __init__(self, errors: Sequence[tuple[int, str]]) -> None:
        position, detail = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        super().__init__(f"increment {position}: {detail}{more}")
        self.errors = list(errors)


class SpoolError(ExplainedError):
    """The spool cannot be written or read at the moment (disk full, no right, not a directory), or
    holds as much as it may (``spool_max_bytes``).
    """

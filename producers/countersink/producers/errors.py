"""Errors of producers, spool, ``tail`` and the StatsD listener; the messages are worded where they
are raised.

::

    Exception
    ├── ValueError
    │   ├── InvalidBatch      increments of a batch cannot be: nothing of it was counted
    │   ├── Malformed         a line of an access log cannot be counted: reject it, go on
    │   │   └── Misread       an option for the whole source has to say how it is read
    │   ├── MapError          the map of StatsD's names cannot be used
    │   └── NotLoopback       the StatsD listener could be reached from elsewhere
    ├── SpoolError            the spool cannot be read or written at the moment
    │   └── SpoolFull         it holds as much as it may
    ├── LogError              an access log cannot be opened or read
    ├── Damaged               compressed data cannot be unpacked
    ├── UnknownFormat         it cannot be told what its lines are
    ├── PositionError         its position, in Redis or in the position file, cannot be used
    ├── TailError             `countersink tail` cannot go on
    ├── MalformedMetric       a line is not StatsD, or no counter: ignore it, go on
    └── CannotListen          a socket of the StatsD listener cannot be opened

An app meets ``InvalidBatch`` alone, and ``SpoolError`` where it lists or replays a spool itself.
Errors of the queue are in :mod:`countersink.stream.errors`.
"""

from collections.abc import Sequence


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


class SpoolError(Exception):
    """The spool cannot be written or read at the moment (disk full, no right, not a directory)."""


class SpoolFull(SpoolError):
    """The directory holds as much as it may (``spool_max_bytes``)."""


# --- access logs -----------------------------------------------------------------------------


class Malformed(ValueError):
    """A line that cannot be counted; the message says why."""


class Misread(Malformed):
    """A value that can be read, but in another way than the options say, or in two: what an option
    has to say of all lines alike.
    """


class LogError(Exception):
    """A log cannot be read; the message says why."""


class Damaged(Exception):
    """What follows cannot be unpacked; the message says why, as a phrase."""


class UnknownFormat(Exception):
    """The format cannot be told; the message says what to do."""


class PositionError(Exception):
    """The position of a log cannot be used; the message says what to do."""


class TailError(Exception):
    """Reading cannot go on; the message says what to do. What was stored stays stored."""


# --- StatsD ----------------------------------------------------------------------------------


class MalformedMetric(Exception):
    """The line is not StatsD, or not a counter that can be counted; the message says why."""


class MapError(ValueError):
    """The map cannot be used; the message says where and why."""


class NotLoopback(ValueError):
    """The host is reachable from elsewhere, and nobody said that it may be."""


class CannotListen(Exception):
    """A socket cannot be opened; the message says which, why and what to do."""

"""Errors of the StatsD listener; the messages are worded where they are raised.

::

    Exception
    ├── ValueError
    │   ├── MapError          the map of StatsD's names cannot be used
    │   └── NotLoopback       the StatsD listener could be reached from elsewhere
    ├── MalformedMetric       a line is not StatsD, or no counter: ignore it, go on
    └── CannotListen          a socket of the StatsD listener cannot be opened
"""

from countersink.runtime.errors import ExplainedError


class MalformedMetric(Exception):
    """The line is not StatsD, or not a counter that can be counted; the message says why."""


class MapError(ValueError):
    """The map cannot be used; the message says where and why."""


class NotLoopback(ValueError):
    """The host is reachable from elsewhere, and nobody said that it may be."""


class CannotListen(ExplainedError):
    """A socket cannot be opened; the message says which, why and what to do."""

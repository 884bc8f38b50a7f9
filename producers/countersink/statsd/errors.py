"""Errors of the StatsD listener.

::

    Exception
    ├── ValueError
    │   ├── MapError          the map of StatsD names cannot be used
    │   └── NotLoopback       other machines could send to the StatsD listener
    ├── MalformedMetric       a line is not a valid StatsD counter: skip the line
    └── CannotListen          a socket of the StatsD listener cannot be opened
"""

from countersink.runtime.errors import ExplainedError


class MalformedMetric(Exception):
    """A line is not valid StatsD, or its counter is beyond the limits; the message says why."""


class MapError(ValueError):
    """The map from StatsD names to counters cannot be used; the message says where and why."""


class NotLoopback(ValueError):
    """An address of the listener is not loopback, so that other machines can send to it, and the
    options do not allow that (``anyone``).
    """


class CannotListen(ExplainedError):
    """A socket of the listener cannot be opened. The message has the socket, the reason and the
    next step.
    """

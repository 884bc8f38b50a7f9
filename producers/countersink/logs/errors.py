"""Errors of reading access logs; the messages are worded where they are raised.

::

    Exception
    ├── ValueError
    │   └── Malformed         a line of an access log cannot be counted: reject it, go on
    │       └── Misread       an option for the whole source has to say how it is read
    ├── LogError              an access log cannot be opened or read
    ├── Damaged               compressed data cannot be unpacked
    ├── UnknownFormat         the format of its lines cannot be told
    ├── PositionError         its position, in Redis or in the position file, cannot be used
    └── TailError             `countersink tail` cannot go on
"""

from countersink.runtime.errors import ExplainedError


class Malformed(ValueError):
    """A line that cannot be counted; the message says why."""


class Misread(Malformed):
    """A value that can be read, but in another way than the options say, or in two: what an option
    has to say of all lines alike.
    """


class LogError(ExplainedError):
    """A log cannot be read; the message says why."""


class Damaged(Exception):
    """Compressed data that cannot be unpacked any further; the message says why, as a phrase."""


class UnknownFormat(Exception):
    """The format cannot be told; the message says what to do."""


class PositionError(ExplainedError):
    """The position of a log cannot be used; the message says what to do."""


class TailError(ExplainedError):
    """Reading cannot go on; the message says what to do. What was stored stays stored."""

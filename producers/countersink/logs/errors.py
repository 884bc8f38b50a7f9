"""Errors of reading access logs. The code that raises an error words its message.

::

    Exception
    ├── ValueError
    │   └── Malformed         a line of an access log cannot be counted: reject it, go on
    │       └── Misread       it has an ambiguous value: an option has to say how to read all lines
    ├── LogError              an access log cannot be opened or read
    ├── Damaged               compressed data cannot be unpacked
    ├── UnknownFormat         the format of the lines is not recognized
    ├── PositionError         the position, in Redis or in the position file, cannot be used
    └── TailError             `countersink tail` cannot go on
"""

from countersink.runtime.errors import ExplainedError


class Malformed(ValueError):
    """A line cannot be counted; the message says why."""


class Misread(Malformed):
    """A line cannot be counted because of a value that contradicts the options, or that can be read
    in two ways. The user has to say by an option how to read this value in all lines.
    """


class LogError(ExplainedError):
    """A log cannot be read; the message says why."""


class Damaged(Exception):
    """Compressed data cannot be unpacked any further; the message, a phrase, says why."""


class UnknownFormat(Exception):
    """The format of a log is not recognized; the message names the options to give."""


class PositionError(ExplainedError):
    """The position up to which a log was counted cannot be used; the message says what to do."""


class TailError(ExplainedError):
    """``countersink tail`` cannot go on; the message says what to do. Lines that were counted and
    stored before stay counted.
    """

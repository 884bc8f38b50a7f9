"""Errors of reading access logs. An error's message is written where the error is raised.

::

    Exception
    ├── ValueError
    │   └── Malformed         a line of an access log cannot be counted: reject it, go on
    │       └── Misread       a value can be read in two ways: an option must choose the right one
    ├── LogError              an access log cannot be opened or read
    ├── Damaged               compressed data cannot be unpacked
    ├── UnknownFormat         the format of the lines is not recognized, or needs further options
    ├── PositionError         the position, in Redis or in the position file, cannot be used
    └── TailError             `countersink tail` cannot go on
"""

from countersink.runtime.errors import ExplainedError


class Malformed(ValueError):
    """A line cannot be counted; the message says why."""


class Misread(Malformed):
    """A line cannot be counted, because one of its values contradicts the options or can be read in
    two ways. The user must choose by an option how such a value is read in all lines.
    """


class LogError(ExplainedError):
    """A log cannot be read; the message says why."""


class Damaged(Exception):
    """Compressed data is damaged, so that the rest of it cannot be unpacked. The message is a
    phrase that says why.
    """


class UnknownFormat(Exception):
    """A log's format is not recognized, is not the same in all its first lines, lacks a requested
    field, or needs a time zone. The message says what is wrong, and names options that help.
    """


class PositionError(ExplainedError):
    """``countersink tail`` cannot use its position file, or the position in it (the place up to
    which the log was counted). The message says what to do.
    """


class TailError(ExplainedError):
    """``countersink tail`` cannot go on; the message says why. Lines that were counted and
    stored before stay counted.
    """

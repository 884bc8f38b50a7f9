"""Errors of API keys, links and notes.

::

    NoSuchKey      a LookupError: no valid API key has this id or name
    NoSuchLink     a LookupError: no valid link has this id
    TooManyLinks   a ValueError: the maximum of valid links is reached
    TooManyNotes   a ValueError: the maximum of notes on a counter is reached
"""

from countersink.runtime.errors import ExplainedError


class NoSuchKey(ExplainedError, LookupError):
    """No valid API key has this id or name, or several keys have the name."""


class NoSuchLink(ExplainedError, LookupError):
    """No valid link has this id."""

    advice = "see countersink link list"


class TooManyLinks(ExplainedError, ValueError):
    """The maximum of valid links is reached."""


class TooManyNotes(ValueError):
    """The maximum of notes on a counter is reached."""

"""Errors of API keys, links and notes.

::

    NoSuchKey      a LookupError: no valid API key has this id or name
    NoSuchLink     a LookupError: no valid link has this id
    TooManyLinks   a ValueError: the maximum of valid links is reached
    TooManyNotes   a ValueError: the maximum of notes on a counter is reached
"""

from countersink.runtime.errors import ExplainedError


class NoSuchKey(ExplainedError, LookupError):
    """No key that is still valid has this id or name, or several have the name."""


class NoSuchLink(ExplainedError, LookupError):
    """No link that is valid has this id."""

    advice = "see countersink link list"


class TooManyLinks(ExplainedError, ValueError):
    """There are as many valid links as there may be."""


class TooManyNotes(ValueError):
    """A counter has as many notes as it may have."""

"""Errors of API keys, links, notes and boards.

::

    BoardRefused   a ValueError: a board of this name exists, the maximum of boards is reached, or a
                   counter of a board to share does not exist
    NoSuchBoard    a LookupError: no board has this name
    NoSuchKey      a LookupError: no key that is not revoked has this id or name, or several have
                   the name
    NoSuchLink     a LookupError: no link has this id, or it has expired
    TooManyLinks   a ValueError: the maximum of valid links, or of those of one API key, is reached
    TooManyNotes   a ValueError: one counter has the maximum of notes, or there is the maximum of
                   notes on all counters together
"""

from countersink.runtime.errors import ExplainedError


class BoardRefused(ExplainedError, ValueError):
    """A board of this name exists already, the maximum of boards is reached, or a counter of a
    board to share does not exist."""


class NoSuchBoard(ExplainedError, LookupError):
    """No board has this name."""

    advice = "see countersink board list"


class NoSuchKey(ExplainedError, LookupError):
    """No API key that is not revoked has this id or name, or several such keys have the name."""


class NoSuchLink(ExplainedError, LookupError):
    """No link has this id, or it has expired."""

    advice = "see countersink link list"


class TooManyLinks(ExplainedError, ValueError):
    """The maximum of valid links, or of those of one API key, is reached."""


class TooManyNotes(ValueError):
    """One counter has the maximum of notes, or there is the maximum of those notes that apply to
    all counters together."""

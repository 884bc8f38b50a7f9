"""Errors of ``runtime``: the base of all whose messages are for users (``ExplainedError``), and
``GivenUp``, when the waiting for a server had to end.

::

    ExplainedError  the message is for a user; its class may add what to do
    GivenUp         a server did not come back before the waiting had to end
"""


class ExplainedError(Exception):
    """Base of errors whose message is for a user."""

    advice: str = ""
    """What to do next, which a command adds to the message."""


class GivenUp(Exception):
    """The server did not come back before the waiting had to end; the cause is its last error."""

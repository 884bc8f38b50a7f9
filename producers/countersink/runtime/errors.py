"""Errors of ``runtime``.

::

    ExplainedError  the message is for a user; its class may add advice
    GivenUp         the wait for a server ended before the server came back
"""


class ExplainedError(Exception):
    """Base of errors whose message is for a user."""

    advice: str = ""
    """The user's next step, which a command adds to the message."""


class GivenUp(Exception):
    """The wait for a server ended before it came back; the cause is the server's last error."""

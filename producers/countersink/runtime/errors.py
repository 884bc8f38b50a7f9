"""Errors of ``runtime``.

::

    ExplainedError  the message is for a user; its class may add advice
    GivenUp         a stop ended the wait for a server before the server came back
"""


class ExplainedError(Exception):
    """Base class of the errors whose message is for a user."""

    advice: str = ""
    """The user's next step. A command prints it after the message."""


class GivenUp(Exception):
    """The wait for a server ended because of a stop, before the server came back. ``__cause__`` is
    the server's last error, if a call to it failed.
    """

"""Errors of ``runtime``.

::

    ExplainedError  the message is for a user; its class may add advice
    GivenUp         a wait was given up because of a stop, mostly for a server that was away
"""


class ExplainedError(Exception):
    """Base class of the errors whose message is for a user. A command prints ``advice``, if there
    is any, after the message.
    """

    advice: str = ""
    """The user's next step. A command prints it after the message."""


class GivenUp(Exception):
    """A wait was given up. In most cases a stop was requested while a server was away; then
    ``__cause__`` is the server's last error. In a worker's thread that reads one partition it may
    also mean that the worker's loop ended before it applied the thread's batch.
    """

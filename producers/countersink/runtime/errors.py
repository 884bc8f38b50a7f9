"""Errors of ``runtime``: ``GivenUp``, when the waiting for a server had to end.

::

    GivenUp     a server did not come back before the waiting had to end
"""


class GivenUp(Exception):
    """The server did not come back before the waiting had to end; the cause is its last error."""

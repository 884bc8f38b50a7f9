"""Errors of ``runtime``.

::

    GivenUp     a server did not come back before the waiting had to end
"""


class GivenUp(Exception):
    """The server did not come back before the waiting had to end; the cause is its last error."""

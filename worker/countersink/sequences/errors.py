"""Errors of sequences.

::

    StoreError
    ├── SequenceUncertain  a statement ended without a reply: its value, if any, is lost;
    │                      ask for the next one
    └── SequenceExhausted  no value is left; also a ValueError
"""

from countersink.database.errors import StoreError


class SequenceUncertain(StoreError):
    """The connection broke before the server's reply, or the statement was interrupted (KILL QUERY,
    ``max_statement_time``).

    The server may have handed out a value that no caller has received. That value is lost. Ask for
    the next one.
    """


class SequenceExhausted(StoreError, ValueError):
    """The next value would be beyond the sequence's limits, or beyond 64 bits."""

"""Errors of sequences.

::

    StoreError
    ├── SequenceUncertain  a statement ended without a reply: its value, if any, is lost;
    │                      ask for the next one
    └── SequenceExhausted  no value is left; also a ValueError
"""

from countersink.database.errors import StoreError


class SequenceUncertain(StoreError):
    """It is unknown whether values were handed out: the connection broke before the server's reply,
    or the statement was interrupted (KILL QUERY, ``max_statement_time``).

    If the server has handed them out, no caller has received them, and they are lost. Ask for the
    next ones.
    """


class SequenceExhausted(StoreError, ValueError):
    """A value that was asked for would be beyond the sequence's limits, or beyond 64 bits. No value
    was handed out."""

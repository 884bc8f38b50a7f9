"""Errors of sequences.

::

    StoreError
    ├── SequenceUncertain  a statement broke off before its reply: its value, if any, is lost;
    │                      ask for the next one
    └── SequenceExhausted  no value is left; also a ValueError
"""

from countersink.database.errors import StoreError


class SequenceUncertain(StoreError):
    """The connection broke before the server's reply, or the statement was interrupted (KILL QUERY,
    ``max_statement_time``), so it may have handed out a value that nobody got. It is not handed out
    again: ask for the next one."""


class SequenceExhausted(StoreError, ValueError):
    """The next value would be beyond the sequence's limits, or beyond 64 bits."""

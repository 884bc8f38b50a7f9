"""Totals together with what is still in the queue, and how fresh they are."""

from countersink.reads.moments import Read
from countersink.reads.reads import Reads

__all__ = ["Read", "Reads"]

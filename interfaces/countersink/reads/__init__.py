"""Totals together with what is still in the queue, and how fresh they are."""

from countersink.reads.pending import ANYTHING, Moment, Reads

__all__ = ["ANYTHING", "Moment", "Reads"]

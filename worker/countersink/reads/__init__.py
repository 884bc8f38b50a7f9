"""Totals together with what is still in the queue, and how fresh they are."""

from countersink.reads.snapshot import Read, Reads

__all__ = ["Read", "Reads"]

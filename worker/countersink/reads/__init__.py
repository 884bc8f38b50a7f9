"""Totals together with what is still in the queue."""

"""Applying entries to the counters, each exactly once, and dead letters of what cannot be
counted."""

"""Counts each entry exactly once; keeps what cannot be counted as dead letters."""

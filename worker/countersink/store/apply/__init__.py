"""Applying entries, each exactly once; and the dead letters of what cannot be counted."""

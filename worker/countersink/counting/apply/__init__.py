"""Applying entries: counts each exactly once, and keeps as dead letters what cannot be counted."""

"""Applies entries: counts each exactly once. What cannot be counted becomes a dead letter."""

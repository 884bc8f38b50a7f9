"""Counters: their settings and policies, their buckets, and how they are deleted."""

"""Counters: settings, catalog, buckets, notes, deletion."""

"""Counters: names, settings, breakdowns, catalog, buckets, steps of retention, deletion."""

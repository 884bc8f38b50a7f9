"""Counters: settings, policies, buckets, notes, deletion."""

"""Counting: entries applied once each, counters and settings, the ledger, totals, visitors."""

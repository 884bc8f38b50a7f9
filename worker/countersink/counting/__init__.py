"""Counting: entries applied each once, counters and their settings, the ledger, totals, visitors."""

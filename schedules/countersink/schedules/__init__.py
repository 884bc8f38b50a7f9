"""Scheduled jobs: compaction, retention, pruning, checks. Empty for now."""

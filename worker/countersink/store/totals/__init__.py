"""Totals: sums of what was counted, by day, hour, month or key, on an open session."""

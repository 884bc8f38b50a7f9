"""What a producer holds in memory: events as callers leave them, rows that they are folded into."""

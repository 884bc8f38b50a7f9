"""Counting of a backfill's sources: which source a file is, its chunks, lines counted before, and
the transaction that counts a chunk."""

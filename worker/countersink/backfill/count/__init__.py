"""Counting of a backfill's sources: identification of a file's source, its chunks, detection of
lines counted before, and the transaction that counts a chunk."""

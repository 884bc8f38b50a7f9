"""Counting of a backfill's sources: finds out which known source a file is, reads chunks, detects
lines that another source has, and counts each chunk in one transaction."""

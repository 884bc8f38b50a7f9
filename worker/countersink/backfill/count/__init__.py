"""This package counts a backfill's sources. It finds out which known source a file is, reads the
chunks that are not counted yet, refuses chunks with many lines that another source has as well, and
counts each chunk in one transaction."""

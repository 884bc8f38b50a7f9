"""Input of a backfill: from names on the command line to files, their bytes, and spans of whole
lines."""

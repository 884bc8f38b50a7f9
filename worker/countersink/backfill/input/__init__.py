"""Input: from names on a command line to bytes, and from bytes to spans of whole lines."""

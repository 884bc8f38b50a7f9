"""What can go wrong with the spool."""


class SpoolError(Exception):
    """The spool cannot be written or read at the moment (disk full, no right, not a directory)."""


class SpoolFull(SpoolError):
    """The directory holds as much as it may (``spool_max_bytes``)."""

"""The database server's clock, in SQL."""

from typing import Final

# Not UNIX_TIMESTAMP(), which ends in 2038 on MariaDB 10. Sessions are in UTC.
NOW_MS: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000"
"""The server's clock as Unix ms."""

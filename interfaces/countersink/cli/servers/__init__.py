"""Private Redis and MariaDB servers, for ``countersink up``; those of tests, demo and benchmarks
are made of them in ``tests/support/servers.py``.

Each has its own directory, a free port of 127.0.0.1 and a password kept beside its data. Each
ends with the process that started it, even when that is killed.
"""

from countersink.cli.errors import ServerError, ServerFailed, ServerMissing
from countersink.cli.servers.mariadb import MariaDBServer, RedisServer

__all__ = ["MariaDBServer", "RedisServer", "ServerError", "ServerFailed", "ServerMissing"]

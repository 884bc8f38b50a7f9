"""Private Redis, MariaDB and MySQL servers, for ``countersink up``, the demo, benchmarks and tests.

Each has its own directory, a free port of 127.0.0.1 and a password kept beside its data. Each
ends with the process that started it, even when that is killed.
"""

from countersink.cli.errors import ServerError, ServerFailed, ServerMissing
from countersink.cli.servers.mysql import FAST, Kind, MySQLServer
from countersink.cli.servers.redis import AppendFsync, RedisServer

__all__ = [
    "FAST",
    "AppendFsync",
    "Kind",
    "MySQLServer",
    "RedisServer",
    "ServerError",
    "ServerFailed",
    "ServerMissing",
]

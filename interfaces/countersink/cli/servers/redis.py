"""A private Redis server: its configuration."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from countersink.cli.servers.base import LOOPBACK, PrivateServer, redis_server, write_private


class RedisServer(PrivateServer):
    """Redis with an append-only file and ``noeviction``: what the queue needs.

    ``extra`` are further lines of redis.conf, given as on its command line
    (``("--appendonly", "no")``); the last one of a name wins.
    """

    name = "redis"
    port_taken = ("Address already in use",)

    appendfsync: str = "everysec"

    @property
    def url(self) -> str:
        return self.url_for(0)

    def url_for(self, database: int) -> str:
        """The URL of one numbered database."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/{database}"

    def _prepare(self) -> None:
        redis_server()

    def _command(self) -> list[str]:
        # in a file, since a command line shows its password to every user of the machine
        config = self.directory / "redis.conf"
        write_private(
            config,
            f'requirepass "{self.password}"\n'
            f"bind {LOOPBACK}\n"
            f"port {self.port}\n"
            f"unixsocket {self.socket}\n"
            "unixsocketperm 700\n"
            f"dir {self.directory}\n"
            "daemonize no\n" + self._settings(),
        )
        return [*redis_server(), str(config), *self.extra]

    def _settings(self) -> str:
        """The lines of the configuration that say what the server is for."""
        return (
            "appendonly yes\n"
            f"appendfsync {self.appendfsync}\n"
            "maxmemory-policy noeviction\n"
            'save ""\n'
        )

    def _answers(self) -> bool:
        client = redis.Redis(
            unix_socket_path=str(self.socket),
            password=self.password,
            socket_timeout=1.0,
            retry=Retry(NoBackoff(), 0),  # its own ten tries would only slow down ours
        )
        try:
            client.ping()
        except (redis.ConnectionError, redis.TimeoutError):
            return False  # not listening yet, or still loading its data
        finally:
            client.close()
        return True

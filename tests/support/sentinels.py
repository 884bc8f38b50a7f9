"""One Redis master, its replica and three sentinels: real servers, which tests kill and freeze."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis

from countersink.cli.private_server import LOOPBACK, write_private
from countersink.stream.connection import connect
from tests.support.factories import ServerFactory
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

MASTER = "mymaster"
PASSWORD = "pass/word@of+servers"
SENTINEL_PASSWORD = "word@of/sentinels"
QUICK = ("publish-period", "ask-period", "info-period", "tilt-period")
"""Times of a sentinel, otherwise 1 to 30 s. Not ping-period: only a replica whose INFO is newer
than five of them is promoted, and once the master is down that comes every second."""


class SentinelServer(RedisServer):
    """One sentinel: the same program with another configuration."""

    name = "sentinel"

    def __init__(
        self,
        directory: Path,
        master_port: int,
        password: str,
        extra: Sequence[str] = (),
        *,
        down_after_ms: int = 500,
    ) -> None:
        super().__init__(directory, extra=("--sentinel", *extra))
        self._down_after_ms = down_after_ms
        self._master_port = master_port
        self._master_password = password

    def _settings(self) -> str:
        return (
            f"sentinel monitor {MASTER} {LOOPBACK} {self._master_port} 2\n"
            f'sentinel auth-pass {MASTER} "{self._master_password}"\n'
            f'sentinel sentinel-pass "{self.password}"\n'
            f"sentinel down-after-milliseconds {MASTER} {self._down_after_ms}\n"
            f"sentinel failover-timeout {MASTER} 2000\n"
        )


class Watched(ServerFactory[RedisServer]):
    """Started servers, and the URL that leads to the master by way of the sentinels.

    Two sentinels must agree on a failover.
    """

    def __init__(self, parent: Path, sentinels: int = 3) -> None:
        super().__init__(parent)
        self.master = self._redis()
        self.replica = self._redis("--replicaof", f"{LOOPBACK} {self.master.port}")
        with self.client(self.replica) as client:
            eventually(lambda: client.info("replication")["master_link_status"] == "up")
        self.sentinels = [self._sentinel(number) for number in range(sentinels)]
        for sentinel in self.sentinels:
            eventually(partial(self._is_ready, sentinel))

    @property
    def hosts(self) -> str:
        """The sentinels as a URL has them."""
        return ",".join(f"{LOOPBACK}:{sentinel.port}" for sentinel in self.sentinels)

    @property
    def url(self) -> str:
        """What every process is given."""
        return self.url_for()

    def url_for(self, name: str = MASTER, hosts: str | None = None, database: int = 0) -> str:
        """The URL of another master, by way of other sentinels."""
        place = f"{hosts or self.hosts}/{name}/{database}"
        secret = quote(SENTINEL_PASSWORD, "")
        return f"redis+sentinel://default:{quote(PASSWORD, '')}@{place}?sentinel_password={secret}"

    def client(self, server: RedisServer) -> redis.Redis:
        """A client of one of the servers, whatever it is at the moment."""
        return connect(server.url_for(0).replace(PASSWORD, quote(PASSWORD, "")))

    def state(self, sentinel: RedisServer) -> dict[str, Any]:
        """What a sentinel knows about the master."""
        with redis.Redis(
            host=LOOPBACK, port=sentinel.port, password=SENTINEL_PASSWORD, protocol=2
        ) as client:
            masters: Any = client.sentinel_masters()
            found: dict[str, Any] = masters[MASTER]
            return found

    def is_replica(self, server: RedisServer) -> bool:
        """Whether a server follows its master, and no process of ours is connected to it."""
        try:
            with self.client(server) as client:
                replication: Any = client.info("replication")
                names = [each["name"] for each in client.client_list()]
        except redis.ConnectionError:
            return False  # sentinels cut all connections of a master that they demote
        return bool(
            replication["role"] == "slave"
            and replication["master_link_status"] == "up"
            and not any(name.startswith("countersink") for name in names)
        )

    def is_master(self, server: RedisServer) -> bool:
        """Whether all sentinels have agreed on this one."""
        return all(self.state(sentinel)["port"] == server.port for sentinel in self.sentinels)

    def wait_replicated(self) -> None:
        """Until the replica has all that the master has; nothing must write meanwhile."""

        def same() -> bool:
            with self.client(self.master) as master, self.client(self.replica) as replica:
                there: Any = master.info("replication")
                here: Any = replica.info("replication")
            return bool(there["master_repl_offset"] == here["slave_repl_offset"])

        eventually(same)

    def _redis(self, *extra: str) -> RedisServer:
        directory = self._directory()
        write_private(directory / "redis.password", PASSWORD)
        return self._started(
            RedisServer(
                directory,
                appendfsync="always",
                extra=("--masterauth", PASSWORD, "--repl-diskless-sync-delay", "0", *extra),
            )
        )

    def _sentinel(self, number: int) -> RedisServer:
        directory = self._directory()
        write_private(directory / "sentinel.password", SENTINEL_PASSWORD)
        # Two may want to lead the failover at once. The third decides, since it does not yet.
        slower = 1_000 if number == 2 else 500
        server = self._started(
            SentinelServer(directory, self.master.port, PASSWORD, down_after_ms=slower)
        )
        with redis.Redis(host=LOOPBACK, port=server.port, password=SENTINEL_PASSWORD) as client:
            client.execute_command("SENTINEL", "DEBUG", *(x for name in QUICK for x in (name, 100)))
        return server

    def _is_ready(self, sentinel: RedisServer) -> bool:
        state = self.state(sentinel)
        return bool(
            state["num-other-sentinels"] == len(self.sentinels) - 1 and state["num-slaves"] == 1
        )

"""A Redis Cluster of real servers on loopback, which tests kill, freeze, promote and reshard."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from redis.crc import key_slot

from countersink.cli.private_server import LOOPBACK, free_port, write_private
from countersink.stream.connection import connect
from countersink.stream.names import stream_key
from tests.support.certificates import make_certificates
from tests.support.factories import ServerFactory
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

SLOTS = 16_384
PASSWORD = "pass/word@of+nodes"
NODE_TIMEOUT_MS = 500


class ClusterServer(RedisServer):
    """One node: Redis or Valkey with another configuration, and on TLS alone if asked for.

    Args:
        directory: for its data.
        program: the server; None: Redis as in all tests.
        certificates: a directory made by :func:`make_certificates`; None: without TLS.
        announce: the address that it tells the clients; None: its own.
        extra: further lines of its configuration.
    """

    def __init__(
        self,
        directory: Path,
        *,
        program: Sequence[str] | None = None,
        certificates: Path | None = None,
        extra: Sequence[str] = (),
    ) -> None:
        super().__init__(directory, appendfsync="always", extra=extra)
        self._bus_port = free_port()
        self._certificates = certificates
        self._program = None if program is None else list(program)

    def cut_off(self) -> None:
        """Start it anew where it and the others do not find each other: it knows what it knew."""
        self.kill()
        nodes = self.directory / "nodes.conf"
        nodes.write_text(re.sub(r"@\d+", f"@{free_port()}", nodes.read_text()))
        self._bus_port = free_port()
        self.start()

    def _prepare(self) -> None:
        if self._program is None:
            super()._prepare()

    def _command(self) -> list[str]:
        command = super()._command()
        config = command.index(str(self.directory / "redis.conf"))
        return [*(self._program or command[:config]), *command[config:]]

    def _settings(self) -> str:
        plain = (
            "cluster-enabled yes\n"
            f"cluster-port {self._bus_port}\n"
            f"cluster-node-timeout {NODE_TIMEOUT_MS}\n"
            "cluster-replica-validity-factor 0\n"
            "cluster-allow-replica-migration no\n"
            # The death of a master without replicas must not stop the others.
            "cluster-require-full-coverage no\n"
            "repl-diskless-sync-delay 0\n"
            # A replica is listed once it has received something.
            "repl-ping-replica-period 1\n"
            f'masterauth "{self.password}"\n'
        )
        if self._certificates is None:
            return super()._settings() + plain
        return (
            super()._settings()
            + plain
            + f"port 0\ntls-port {self.port}\ntls-cluster yes\ntls-replication yes\n"
            + f"tls-cert-file {self._certificates}/cert.pem\n"
            + f"tls-key-file {self._certificates}/key.pem\n"
            + f"tls-ca-cert-file {self._certificates}/ca.pem\n"
            + "tls-auth-clients no\n"
        )


@dataclass(eq=False, repr=False)
class Shard:
    """A part of the hash slots.

    Attributes:
        master: the server that was the master at first.
        replicas: the others.
    """

    master: ClusterServer
    replicas: list[ClusterServer] = field(default_factory=list)

    @property
    def servers(self) -> list[ClusterServer]:
        """All of them."""
        return [self.master, *self.replicas]


class RedisCluster(ServerFactory[RedisServer]):
    """Started servers that form a cluster, and its URL.

    Args:
        parent: of the servers' directories.
        masters: how many, each with an equal part of the slots.
        replicas: of each master.
        password: of all servers.
        tls: speak TLS alone.
        program: the server's command, such as ``["valkey-server"]``; None: Redis.
        extra: further lines of the configuration of all servers.
    """

    def __init__(
        self,
        parent: Path,
        *,
        masters: int = 3,
        replicas: int = 1,
        password: str = PASSWORD,
        tls: bool = False,
        program: Sequence[str] | None = None,
        extra: Sequence[str] = (),
    ) -> None:
        super().__init__(parent)
        self._password = password
        self._program = program
        self._extra = tuple(extra)
        self.certificates: Path | None = None
        if tls:
            self.certificates = self._directory() / "certificates"
            make_certificates(self.certificates, LOOPBACK)
        self.shards = [
            Shard(self._server(), [self._server() for _ in range(replicas)]) for _ in range(masters)
        ]
        self._join()

    @property
    def servers(self) -> list[ClusterServer]:
        """All of them, the first masters before the first replicas."""
        depth = range(len(self.shards[0].servers))
        return [shard.servers[n] for n in depth for shard in self.shards]

    @property
    def hosts(self) -> str:
        """All nodes as a URL has them."""
        return ",".join(f"{LOOPBACK}:{server.port}" for server in self.servers)

    @property
    def url(self) -> str:
        """What every process is given."""
        return self.url_for()

    def url_for(self, hosts: str | None = None) -> str:
        """The URL by way of other nodes."""
        scheme = "redis" if self.certificates is None else "rediss"
        query = "" if self.certificates is None else f"?ssl_ca_certs={self.certificates}/ca.pem"
        secret = quote(self._password, "")
        return f"{scheme}+cluster://:{secret}@{hosts or self.hosts}/0{query}"

    def client(self, server: RedisServer) -> redis.Redis:
        """A client of one of the servers alone, whatever it is at the moment."""
        return connect(f"unix://:{quote(self._password, '')}@{server.socket}")

    def ask(self, server: RedisServer, *command: str | int | bytes) -> Any:
        """What one of the servers answers."""
        with self.client(server) as client:
            return client.execute_command(*command)

    def master_of(self, key: str | int) -> ClusterServer:
        """The server that has the slot of a key, or of a partition's stream, as most servers say
        that can be asked.
        """
        slot = slot_of(key)
        for server in self.servers:
            if not server.running:
                continue
            try:
                with self.client(server) as client:
                    role: Any = client.info("replication")["role"]
                    slots: Any = client.execute_command("CLUSTER SLOTS")
                    own = client.execute_command("CLUSTER MYID")
            except (redis.ConnectionError, redis.TimeoutError):
                continue
            serving = next((each[2][2] for each in slots if each[0] <= slot <= each[1]), None)
            if role == "master" and serving == own:
                return server
        raise AssertionError(f"no server has the slot {slot}")

    def shard_of(self, key: str | int) -> Shard:
        """The shard whose first master had the slot of a key, or of a partition, at the start."""
        slot = slot_of(key)
        return self.shards[slot * len(self.shards) // SLOTS]

    def is_whole(self, slots: int = SLOTS) -> bool:
        """Whether all servers that run see all slots served, and all replicas in step."""
        for server in self.servers:
            if not server.running:
                continue
            with self.client(server) as client:
                info: Any = client.execute_command("CLUSTER INFO")
                replication: Any = client.info("replication")
            found = _pairs(info)
            if found["cluster_state"] != "ok" or int(found["cluster_slots_ok"]) != slots:
                return False
            if replication["role"] == "slave" and replication["master_link_status"] != "up":
                return False
        return True

    def promote(self, shard: Shard) -> ClusterServer:
        """Make the first replica the master, in good order; returns it."""
        replica = shard.replicas[0]

        def took_over() -> bool:
            with self.client(replica) as client:
                info: Any = client.info("replication")
                if info["role"] == "master":
                    return True
                client.execute_command("CLUSTER FAILOVER")
                return False

        eventually(took_over)
        return replica

    def wait_promoted(self, shard: Shard) -> ClusterServer:
        """Until one of the replicas that run is the master for all others; returns it."""

        def promoted() -> ClusterServer | None:
            for replica in shard.replicas:
                if self.is_master(replica):
                    return replica
            return None

        found = eventually(promoted)
        assert found is not None
        return found

    def move(self, first: int, last: int, source: RedisServer, target: RedisServer) -> None:
        """Move hash slots with what is in them, as ``redis-cli --cluster reshard`` does."""
        source_id, target_id = self._id(source), self._id(target)
        with self.client(source) as there, self.client(target) as here:
            for slot in range(first, last + 1):
                setslot = ("CLUSTER", "SETSLOT", slot)
                here.execute_command(*setslot, "IMPORTING", source_id)
                there.execute_command(*setslot, "MIGRATING", target_id)
                while keys := there.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
                    there.execute_command(
                        *("MIGRATE", LOOPBACK, target.port, "", 0, 10_000),
                        *(("AUTH", self._password) if self._password else ()),
                        *("KEYS", *keys),
                    )
                here.execute_command(*setslot, "NODE", target_id)
                there.execute_command(*setslot, "NODE", target_id)
                for other in self.servers:
                    if other not in (source, target) and self.is_master(other):
                        self.ask(other, *setslot, "NODE", target_id)
        # Who moves a slot on before all know of the last move may lose it: of two masters that take
        # the same epoch, not knowing of each other's, one takes a later one, and its slots with it.
        epoch = self._epochs(target)[0]
        eventually(
            lambda: all(
                self._sees(each, last, target_id) and self._epochs(each)[1] >= epoch
                for each in self.servers
                if each.running
            )
        )

    def move_stream(self, key: str | int, source: RedisServer, target: RedisServer) -> None:
        """Move the slot of a key, or of a partition."""
        self.move(slot_of(key), slot_of(key), source, target)

    def uncover(self, key: str | int) -> int:
        """Take the slot of a key away from its master, so that nobody has it; returns it."""
        slot = slot_of(key)
        owner = self.master_of(key)
        name = self._id(owner)
        others = [each for each in self.servers if each is not owner and self.is_master(each)]
        self.ask(owner, "CLUSTER", "DELSLOTS", slot)
        begun = time.time() * 1000
        # What it has told before, and is still under way, would give the slot back to it.
        eventually(lambda: all(self._heard(server, name) > begun for server in others))
        for server in others:
            if self._sees(server, slot, name):
                with self.client(server) as client, client.pipeline() as whole:
                    whole.execute_command("CLUSTER", "DELSLOTS", slot)
                    whole.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", name)
                    whole.execute()
        return slot

    def replace(self, key: str, successor: RedisServer) -> None:
        """Cut the master of a key off, and let another master have the key's slot, empty."""
        old, owner, slot = self.master_of(key), self._id(successor), key_slot(key.encode())
        old.cut_off()
        others = [server for server in self.servers if server is not old]
        self.ask(successor, "CLUSTER", "BUMPEPOCH")
        for server in others:
            self.ask(server, "CLUSTER", "SETSLOT", slot, "NODE", owner)
        eventually(lambda: all(self._sees(server, slot, owner) for server in others))
        for server, state in (*((server, "ok") for server in others), (old, "fail")):
            eventually(partial(self._is, server, state))

    def make_anew(self) -> None:
        """Forget all, and form another cluster of the same servers."""
        for server in self.servers:
            self.ask(server, "FLUSHALL")
            self.ask(server, "CLUSTER", "RESET", "HARD")
        self._join()

    def wait_replicated(self) -> None:
        """Until each replica has all that its master has; nothing must write meanwhile."""

        def same() -> bool:
            for shard in self.shards:
                offsets = set()
                for server in shard.servers:
                    if server.running:
                        with self.client(server) as client:
                            info: Any = client.info("replication")
                        master = info["role"] == "master"
                        offsets.add(info["master_repl_offset" if master else "slave_repl_offset"])
                if len(offsets) > 1:
                    return False
            return True

        eventually(same)

    def _server(self) -> ClusterServer:
        directory = self._directory()
        write_private(directory / "redis.password", self._password)
        server = ClusterServer(
            directory,
            program=self._program,
            certificates=self.certificates,
            extra=self._extra,
        )
        self._started(server)
        return server

    def _join(self) -> None:
        for number, server in enumerate(self.servers):
            self.ask(server, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers:
            for other in self.servers:  # gossip alone would take seconds
                bus = other._bus_port
                self.ask(server, "CLUSTER", "MEET", LOOPBACK, other.port, bus)
        bounds = [SLOTS * n // len(self.shards) for n in range(len(self.shards) + 1)]
        for shard, begin, end in zip(self.shards, bounds, bounds[1:], strict=False):
            self.ask(shard.master, "CLUSTER", "ADDSLOTSRANGE", begin, end - 1)
        for server in self.servers:
            eventually(partial(self._knows_all, server))
        for shard in self.shards:
            master = self._id(shard.master)
            for replica in shard.replicas:
                self.ask(replica, "CLUSTER", "REPLICATE", master)
        eventually(self.is_whole)
        for server in self.servers:
            eventually(partial(self._lists_replicas, server))

    def is_master(self, server: RedisServer) -> bool:
        """Whether a server runs, and is one."""
        return server.running and self.ask(server, "ROLE")[0] in ("master", b"master")

    def _sees(self, server: RedisServer, slot: int, owner: str) -> bool:
        """Whether a server that runs knows who has the slot."""
        if not server.running:
            return True
        slots = self.ask(server, "CLUSTER SLOTS")
        return owner.encode() in [each[2][2] for each in slots if each[0] <= slot <= each[1]]

    def _heard(self, server: RedisServer, other: str) -> int:
        """When it got the last answer of another one, in Unix ms."""
        nodes = [
            line.split() for line in self.ask(server, "CLUSTER", "NODES").decode().splitlines()
        ]
        return next(int(fields[5]) for fields in nodes if fields[0] == other)

    def _epochs(self, server: RedisServer) -> tuple[int, int]:
        """Its own, and the highest that it knows."""
        found = _pairs(self.ask(server, "CLUSTER INFO"))
        return int(found["cluster_my_epoch"]), int(found["cluster_current_epoch"])

    def _is(self, server: RedisServer, state: str) -> bool:
        return _pairs(self.ask(server, "CLUSTER INFO"))["cluster_state"] == state

    def _knows_all(self, server: RedisServer) -> bool:
        found = _pairs(self.ask(server, "CLUSTER INFO"))
        return int(found["cluster_known_nodes"]) == len(self.servers)

    def _lists_replicas(self, server: RedisServer) -> bool:
        slots = self.ask(server, "CLUSTER SLOTS")
        return len(slots) == len(self.shards) and all(
            len(each) == 3 + len(self.shards[0].replicas) for each in slots
        )

    def _id(self, server: RedisServer) -> str:
        found = self.ask(server, "CLUSTER", "MYID")
        return found.decode() if isinstance(found, bytes) else str(found)


def slot_of(key: str | int) -> int:
    """The slot of a key, or of a partition's stream."""
    return key_slot((stream_key(key) if isinstance(key, int) else key).encode())


def _pairs(info: Any) -> dict[str, str]:
    """CLUSTER INFO, which redis-py parses or not, by its version."""
    if isinstance(info, dict):
        return {str(name): str(value) for name, value in info.items()}
    text = info.decode() if isinstance(info, bytes) else str(info)
    return dict(line.split(":", 1) for line in text.split() if ":" in line)

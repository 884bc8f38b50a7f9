"""Redis Cluster: its URLs and their errors; a client that sends each command to the master of the
command's key and follows redirections (``REDIRECTIONS``); and the topology, which says which master
serves each hash slot. ``TOPOLOGY_S`` is how long a topology is used, ``QUESTION_TIMEOUT`` how long
a node has to return it.

:class:`ClusterClient` is a :class:`redis.Redis`, so that callers need not distinguish the two. It
has a plain client of redis-py for each node, and uses redis-py's connections, pools, pipelines,
parsers and hash slots. It does not use :class:`redis.cluster.RedisCluster`, which has these faults:

* After a lost connection its pipelines send every command again, in spite of the options. With
  redis-py 8.1 and no retries, three XADDs whose replies were lost made six entries.
* After an error it asks hanging nodes for the topology, each for the full socket timeout.
* For each XREADGROUP it first asks a node where the keys are in the command.
* Old versions drop options, among them the check of the host name in a certificate.

A command that a node answers by MOVED, ASK or TRYAGAIN was not executed. It is sent to the node
that the answer names, or for TRYAGAIN a little later to the master of the hash slot. A command
without an answer is not sent again.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

import redis
from redis.client import Pipeline
from redis.cluster import parse_cluster_slots
from redis.commands.core import Script
from redis.connection import ConnectionPool, DefaultParser, SSLConnection
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ResponseError,
    TryAgainError,
)
from redis.utils import str_if_bytes

from countersink.stream.errors import StreamMisconfigured
from countersink.stream.sentinel import split_hosts

QUESTION_TIMEOUT: Final = 1.0
"""Seconds that a node has to return the topology, before the next node is asked."""
TOPOLOGY_S: Final = 1.0
"""Seconds for which :meth:`ClusterClient.masters` uses a topology without a new query."""
DEFAULT_PORT: Final = 6379
REDIRECTIONS: Final = 16
"""Most redirections of one command. After these the cluster counts as not serving."""
_LEARN_AGAIN_S: Final = 0.1
"""Least seconds between two queries for the topology that errors cause."""
_SILENT_S: Final = 3.0
"""Seconds for which a node that did not answer is not asked again, if another node has answered."""
_TRY_AGAIN_S: Final = 0.05

_EXAMPLE: Final = "redis+cluster://redis-1:6379,redis-2:6379,redis-3:6379"
_REDIRECTING: Final[dict[str, type[Exception]]] = {
    "ASK": AskError,
    "MOVED": MovedError,
    "TRYAGAIN": TryAgainError,
    "CLUSTERDOWN": ClusterDownError,
    "CROSSSLOT": ClusterCrossSlotError,
    "MASTERDOWN": MasterDownError,
}
"""Exception classes by the prefix of the error reply. The parsers of redis-py before 6 lack
them.
"""
_WITHOUT_KEY: Final = frozenset(
    (
        *("ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "ECHO", "INFO", "KEYS"),
        *("LATENCY", "PING", "RANDOMKEY", "ROLE", "SCAN", "SCRIPT", "SLOWLOG", "TIME", "WAIT"),
    )
)
_KEY_AFTER_SUBCOMMAND: Final = frozenset(("MEMORY", "OBJECT", "XGROUP", "XINFO"))


class Address(NamedTuple):
    """Host and port of a node."""

    host: str
    port: int

    @property
    def text(self) -> str:
        """``host:port``, with an IPv6 address in []."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Topology:
    """A node's answer to the question which master serves which hash slot.

    Attributes:
        slots: for each hash slot, by its number, the address of its master, or None if it has no
            master. A MOVED answer changes an item.
        masters: the masters that have hash slots, sorted by their lowest hash slot; so a replica
            that is promoted takes the position of its former master.
        nodes: all nodes, including replicas.
        rank: a pair by which topologies are compared: the highest is preferred. Its items are
            whether the node that answered says that the cluster serves (``cluster_state``; false
            if the node cannot reach the majority of masters), and the cluster's epoch that this
            node knows, a number that Redis Cluster raises with each failover.
        learnt: monotonic seconds of the answer, or of a later answer that did not replace it.
    """

    slots: list[Address | None]
    masters: tuple[Address, ...]
    nodes: tuple[Address, ...]
    rank: tuple[bool, int]
    learnt: float


class ClusterClient(redis.Redis):
    """A client of all nodes of a cluster. It connects at the first command. Thread-safe.

    A command without a key goes to any master, if possible to one that answered last time;
    :meth:`scan_iter` asks all masters. All keys of a script must be in one hash slot. A pipeline
    may have commands for several masters, and is no transaction. So after an error some entries may
    be stored. The sender then sends all entries again with the same ids, and each is counted once.
    Lost connections, and hash slots without a master, raise redis-py's errors; see
    :func:`countersink.stream.connection.mapped`.

    Args:
        hosts: hosts and ports of the nodes that are asked for the first topology.
        options: options of the connections.
        tls: whether the connections use TLS.
    """

    is_cluster: Final = True

    def __init__(
        self, hosts: Sequence[tuple[str, int]], options: Mapping[str, Any], *, tls: bool = False
    ) -> None:
        parser = options.get("parser_class", DefaultParser)
        if "MOVED" not in parser.EXCEPTION_CLASSES:
            known = {**parser.EXCEPTION_CLASSES, **_REDIRECTING}
            parser = type(parser.__name__, (parser,), {"EXCEPTION_CLASSES": known})
        settings = {**options, "parser_class": parser}
        if tls:
            settings["connection_class"] = SSLConnection
        self._hosts = tuple(Address(*host) for host in hosts)
        self._nodes = _Nodes(self._hosts[0], settings)
        super().__init__(connection_pool=self._nodes)
        self.auto_close_connection_pool = True  # as from_url makes it
        self._timeout: float | None = None

    @property
    def with_short_timeout(self) -> Self:
        """A copy of the client that waits at most :data:`QUESTION_TIMEOUT` for a reply. It is for
        commands whose failure does no harm. It shares the topology with this client, but not the
        connections, which all such copies share.
        """
        made = copy(self)
        made.auto_close_connection_pool = False
        made._timeout = QUESTION_TIMEOUT
        return made

    def node(self, address: Address) -> redis.Redis:
        """Return redis-py's client of one node. An error of the returned client does not change the
        known topology. Use :meth:`asked` if it shall make the next command query the topology.
        """
        client = self._nodes.client(address, self._timeout)
        client.response_callbacks = self.response_callbacks
        return client

    def masters(self) -> tuple[Address, ...]:
        """Return the addresses of all masters that have hash slots, sorted by their lowest hash
        slot, by a topology that is at most :data:`TOPOLOGY_S` old.

        Raises:
            redis.RedisError: no node returned the topology.
        """
        return self.topology(TOPOLOGY_S).masters

    def master_of(self, key: str | bytes) -> Address | None:
        """Return the address of the master that serves ``key`` by the latest topology, or None if
        the key's hash slot has no master.

        Raises:
            redis.RedisError: the topology is not known or has changed, and no node returned it.
        """
        return self.topology().slots[self._slot(key)]

    def topology(self, max_age_s: float | None = None) -> Topology:
        """Return the topology. It is queried if there is none yet, if an error or a redirection
        showed a change and the known one is older than 0.1 s, or if it is older than ``max_age_s``.

        Args:
            max_age_s: the highest age in seconds; None for any age.

        Raises:
            redis.RedisError: no node returned the topology.
        """
        nodes = self._nodes
        known = nodes.topology
        if known is not None:
            age = time.monotonic() - known.learnt
            if not (nodes.stale and age > _LEARN_AGAIN_S) and (
                max_age_s is None or age <= max_age_s
            ):
                return known
        nodes.topology = found = self._learn()
        nodes.stale = False
        return found

    @contextmanager
    def asked(self, address: Address) -> Iterator[redis.Redis]:
        """Context manager that gives its block redis-py's client of a node. If an error inside the
        block shows that the node is away or is no master, the next command queries the topology.
        A connection error then names the node; an OSError becomes a ``redis.ConnectionError``.
        """
        nodes = self._nodes
        try:
            yield self.node(address)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            nodes.lost[address] = time.monotonic()
            nodes.stale = True
            text = str(error) if address.text in str(error) else f"{address.text}: {error}"
            kind = type(error) if isinstance(error, redis.RedisError) else redis.ConnectionError
            raise kind(text) from error
        except (ClusterDownError, redis.ReadOnlyError):
            nodes.stale = True
            raise
        else:
            nodes.lost.pop(address, None)

    def asked_for(self, key: str) -> AbstractContextManager[redis.Redis]:
        """Return the context manager of :meth:`asked` for the master that serves ``key``.

        Raises:
            redis.RedisError: the key's hash slot has no master, or no node returned the topology.
        """
        return self.asked(self._serving(self._slot(key)))

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command to the master of its key, then to each node to which the answers
        redirect it; return the reply. A command without a key goes to any master.

        Raises:
            redis.RedisError: the command failed, its hash slot has no master, no node returned the
                topology, or the command was redirected :data:`REDIRECTIONS` times.
        """
        slot = self._slot_of(args)
        where, asking = self._serving(slot), False
        for turn in range(REDIRECTIONS):
            try:
                with self.asked(where) as node:
                    if asking:
                        return _executed_asking(node, args, options)
                    return node.execute_command(*args, **options)  # type: ignore[no-untyped-call]
            except MovedError as error:
                where, asking = Address(error.host or where.host, error.port), False
                self._nodes.stale = True
                if turn >= REDIRECTIONS // 4:
                    time.sleep(_TRY_AGAIN_S)  # for a moment two nodes may redirect to each other
                if self._nodes.topology is not None:
                    self._nodes.topology.slots[error.slot_id] = where
            except AskError as error:
                where, asking = Address(error.host or where.host, error.port), True
            except TryAgainError:
                # The keys of a slot that is migrating are on two nodes.
                time.sleep(_TRY_AGAIN_S * min(turn, 2))
                where, asking = self._serving(slot), False
        raise ClusterDownError(f"{REDIRECTIONS} redirections of a command for hash slot {slot}")

    def pipeline(self, transaction: Any = True, shard_hint: Any = None) -> "ClusterPipeline":
        """Return a pipeline. ``transaction`` must be given as false, because a pipeline of a
        cluster is no transaction; the default, redis-py's, fails. ``shard_hint`` is ignored.
        """
        assert not transaction, "a pipeline of a cluster cannot be a transaction"
        return ClusterPipeline(self)

    def register_script(self, script: Any) -> Script:
        """Return a script that runs on the master of the keys of each call."""
        return _NodeScript(self, script)

    def scan_iter(
        self, match: Any = None, count: Any = None, _type: Any = None, **options: Any
    ) -> Iterator[Any]:
        """Yield the keys on all masters that match the pattern ``match``; None matches all. The
        other arguments are those of redis-py's method.
        """
        for address in self.masters():
            with self.asked(address) as node:
                found = list(node.scan_iter(match, count, _type, **options))
            yield from found

    def _learn(self) -> Topology:
        """Ask the known nodes and those of the URL for the topology, one by one. Return the first
        reply whose node says that the cluster serves, and whose epoch is not below the epoch of the
        known topology. (A node that is cut off from the others returns an old one.) If there is
        none, return the best reply, by ``Topology.rank``. But return the known topology if it is
        better and at most half of the nodes have answered.

        Nodes that failed last time are asked last. A node that failed within :data:`_SILENT_S` is
        not asked if another node has answered.

        Raises:
            redis.RedisError: no node returned a topology.
        """
        known = self._nodes.topology
        lost = self._nodes.lost
        received: list[Topology] = []
        answers: dict[str, str] = {}
        refused: list[redis.RedisError] = []
        candidates = dict.fromkeys([*(known.nodes if known is not None else ()), *self._hosts])
        for address in sorted(candidates, key=lambda each: lost.get(each, 0.0)):
            if received and time.monotonic() - lost.get(address, -_SILENT_S) < _SILENT_S:
                continue
            try:
                found = self._ask(address)
            except (redis.RedisError, OSError) as error:
                lost[address] = time.monotonic()
                answers[address.text] = str(error)
                if isinstance(error, (AuthenticationError, NoPermissionError)):
                    refused.append(error)
                elif isinstance(error, ResponseError) and "cluster support disabled" in str(error):
                    refused.append(
                        ResponseError(f"{address.text} is no node of a cluster: use a redis:// URL")
                    )
                continue
            if not found.masters:
                answers[address.text] = "knows no master with hash slots"
                continue
            lost.pop(address, None)
            received.append(found)
            if found.rank >= (True, 0 if known is None else known.rank[1]):
                break
        if received:
            best = max(received, key=lambda each: each.rank)
            # If most nodes have an older topology, the cluster was replaced by another one.
            if known is None or best.rank >= known.rank or 2 * len(received) > len(candidates):
                return best
            return replace(known, learnt=best.learnt)
        if len(refused) == len(answers):
            raise refused[-1]
        said = "; ".join(f"{where}: {answer}" for where, answer in answers.items())
        raise redis.ConnectionError(f"no node of the cluster returned its masters: {said}")

    def _ask(self, address: Address) -> Topology:
        """Return the topology that one node knows."""
        client = self._nodes.new_client(address, QUESTION_TIMEOUT)
        execute: Any = client.execute_command  # redis-py does not type it
        try:
            # In this order: the slots may be newer than their rank, but never older.
            info = str_if_bytes(execute("CLUSTER", "INFO"))
            return _topology(
                dict(line.partition(":")[::2] for line in info.split()),
                execute("CLUSTER", "SLOTS"),
                address.host,
            )
        finally:
            client.connection_pool.disconnect()

    def _serving(self, slot: int | None) -> Address:
        topology = self.topology()
        if slot is None:
            lost = self._nodes.lost
            return min(topology.masters, key=lambda each: lost.get(each, random.random() - 1))
        found = topology.slots[slot]
        if found is None and self.topology(TOPOLOGY_S) is not topology:
            found = self.topology().slots[slot]
        if found is None:
            # Not redis-py's SlotNotCoveredError, which is no RedisError.
            raise ClusterDownError(f"no master of the cluster has the hash slot {slot}")
        return found

    def _slot_of(self, args: Sequence[Any]) -> int | None:
        """Return the hash slot of a command's first key, or None if the command has no key."""
        name, *more = str(args[0]).upper().split()
        if name in _WITHOUT_KEY:
            return None
        if name in ("EVAL", "EVALSHA"):
            return self._slot(args[3]) if int(args[2]) else None
        if name in ("XREAD", "XREADGROUP"):
            place = next(n for n, word in enumerate(args) if word in ("STREAMS", b"STREAMS"))
            return self._slot(args[place + 1])
        return self._slot(args[2 if name in _KEY_AFTER_SUBCOMMAND and not more else 1])

    def _slot(self, key: Any) -> int:
        encoder: Any = self.connection_pool.get_encoder()
        return _slot(encoder.encode(key))


@lru_cache(maxsize=4096)
def _slot(key: bytes) -> int:
    """Return the hash slot of a key. It is cached, because some commands concern all 1,024
    partitions.
    """
    return key_slot(key)


def _executed_asking(node: redis.Redis, args: Any, options: dict[str, Any]) -> Any:
    """Send ASKING and a command to ``node``, to which the hash slot of the command's key is being
    moved. Return the reply to the command.
    """
    pipe: Any = node.pipeline(transaction=False)
    pipe.execute_command("ASKING")
    pipe.execute_command(*args, **options)
    reply = pipe.execute(raise_on_error=False)[1]
    if isinstance(reply, Exception):
        raise reply
    return reply


class ClusterPipeline(Pipeline):
    """A pipeline whose commands go to the masters of their keys, one master after the other, and
    again one by one if they are redirected. If a connection is lost, it raises the error: replies
    received before are lost, and the masters that are left get no commands.
    """

    is_cluster: Final = True

    def __init__(self, client: ClusterClient) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, False, None)
        self._client = client

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send the commands; return their replies in the order of the commands. The first error
        reply is raised if ``raise_on_error`` is true; else error replies are items of the list.
        """
        commands = [(entry[0], entry[1]) for entry in self.command_stack]
        try:
            replies = self._spread(commands)
            if raise_on_error:
                for reply in replies:
                    if isinstance(reply, Exception):
                        raise reply
            return replies
        finally:
            self.reset()

    def _spread(self, commands: Sequence[tuple[Any, Any]]) -> list[Any]:
        places: dict[Address, list[int]] = {}
        for number, (args, _) in enumerate(commands):
            slot = self._client._slot_of(args)
            places.setdefault(self._client._serving(slot), []).append(number)
        replies: list[Any] = [None] * len(commands)
        for address, numbers in places.items():
            with self._client.asked(address) as node:
                pipe: Any = node.pipeline(transaction=False)
                for number in numbers:
                    args, options = commands[number]
                    pipe.execute_command(*args, **options)
                found = pipe.execute(raise_on_error=False)
            for number, reply in zip(numbers, found, strict=True):
                replies[number] = reply
        for number, reply in enumerate(replies):
            if isinstance(reply, (AskError, TryAgainError)):
                args, options = commands[number]
                try:
                    replies[number] = self._client.execute_command(*args, **options)
                except ResponseError as error:
                    replies[number] = error
        return replies


class _NodeScript(Script):
    """A script that runs on the master of its keys. redis-py's own class would load it into any
    node.
    """

    def __call__(self, keys: Any = None, args: Any = None, client: Any = None) -> Any:
        keys, args = tuple(keys or ()), tuple(args or ())
        client = client or self.registered_client
        try:
            return client.evalsha(self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.eval(self.script, len(keys), *keys, *args)


class _Nodes(ConnectionPool):
    """The connections to all nodes, as one connection pool for redis-py, and the latest topology.

    Attributes:
        topology: the latest topology, or None before the first answer.
        stale: whether an error or a redirection showed that the topology has changed since.
        lost: maps each node that did not answer last time to the monotonic time of this failure.
    """

    def __init__(self, first: Address, options: Mapping[str, Any]) -> None:
        super().__init__(host=first.host, port=first.port, **options)
        self.topology: Topology | None = None
        self.stale = False
        self.lost: dict[Address, float] = {}
        self._options = options
        self._clients: dict[tuple[Address, float | None], redis.Redis] = {}

    def client(self, address: Address, timeout: float | None) -> redis.Redis:
        """Return the client of one node that all callers with this ``timeout`` share. The client
        waits at most ``timeout`` seconds for a reply; None means as long as the options of the
        connections say.
        """
        found = self._clients.get((address, timeout))
        if found is not None:
            return found
        return self._clients.setdefault(  # two threads may make one, the first is kept
            (address, timeout), self.new_client(address, timeout)
        )

    def new_client(self, address: Address, timeout: float | None) -> redis.Redis:
        """Return a new client of one node, which is not shared. It waits at most ``timeout``
        seconds for a reply; None means as long as the options of the connections say.
        """
        options = dict(self._options, host=address.host, port=address.port)
        if timeout is not None:
            for name in ("socket_timeout", "socket_connect_timeout"):
                options[name] = min(options[name] or timeout, timeout)
        made = redis.Redis(connection_pool=ConnectionPool(**options))
        made.auto_close_connection_pool = True
        return made

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close the connections to all nodes. If ``inuse_connections`` is false, those that a
        thread is using stay open.
        """
        for client in list(self._clients.values()):
            client.connection_pool.disconnect(inuse_connections)
        super().disconnect(inuse_connections)


def cluster_client(rest: str, options: Mapping[str, Any], *, tls: bool) -> ClusterClient:
    """Return a client of the cluster that a URL names; send nothing yet.

    Args:
        rest: the URL behind ``://``: ``[user:password@]host:port,…[/0]?options``.
        options: options of the connections; options in the URL override them.
        tls: whether the connections use TLS.

    Raises:
        StreamMisconfigured: the URL cannot be used; the message does not repeat it.
        ValueError: an option in the URL cannot be used.
    """
    parts = split_hosts(rest, "redis+cluster", "nodes", DEFAULT_PORT, _EXAMPLE)
    given = parts.options("", parts.query)
    if parts.path not in ("", "/", "/0") or given.pop("db", 0) != 0:
        raise StreamMisconfigured(
            "a Redis Cluster has only database 0: end the redis+cluster:// URL with its hosts, as"
            f" in {_EXAMPLE}"
        )
    return ClusterClient(parts.addresses, {**options, **given}, tls=tls)


def _topology(info: Mapping[str, str], reply: Any, host: str) -> Topology:
    """Return the topology in the answers of a node to CLUSTER INFO and CLUSTER SLOTS.

    Args:
        info: the fields of CLUSTER INFO.
        reply: the reply to CLUSTER SLOTS.
        host: the host of the node; the reply may leave it out.
    """
    slots: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    masters: dict[Address, int] = {}
    nodes: dict[Address, None] = {}
    ranges: dict[tuple[int, int], dict[str, Any]] = parse_cluster_slots(reply, current_host=host)
    for (first, last), servers in sorted(ranges.items()):
        master = Address(*servers["primary"])
        masters.setdefault(master, first)
        nodes |= dict.fromkeys((master, *(Address(*each) for each in servers["replicas"])))
        slots[first : last + 1] = [master] * (last + 1 - first)
    rank = info["cluster_state"] == "ok", int(info["cluster_current_epoch"])
    return Topology(slots, tuple(masters), tuple(nodes), rank, time.monotonic())

"""Redis Cluster: its URLs and their errors, a client that sends each command to the master of its
key and follows redirections (``REDIRECTIONS``), and the topology: the masters of the hash slots,
how long it is used (``TOPOLOGY_S``), and the timeout of a query for it (``QUESTION_TIMEOUT``).

:class:`ClusterClient` is a :class:`redis.Redis`, so that callers need not distinguish them.
Connections, pools, pipelines, parsing and hash slots are redis-py's, with a plain client per node.
:class:`redis.cluster.RedisCluster` is not used: its pipelines send every command again after a lost
connection, in spite of the options (8.1, without retries: three XADDs whose replies were lost made
six entries); after an error it asks hanging nodes for the topology, each for the full socket
timeout; for XREADGROUP it asks a node for the keys each time; and old versions drop options, among
them the check of the host name in a certificate.

A command that was answered by MOVED, ASK or TRYAGAIN was not executed. It is sent to the node in
the answer, or a little later to the same node. A command without an answer is not sent again.
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
"""Seconds that a node has to return the topology before the next node is asked."""
TOPOLOGY_S: Final = 1.0
"""Seconds for which :meth:`ClusterClient.masters` uses a topology."""
DEFAULT_PORT: Final = 6379
REDIRECTIONS: Final = 16
"""Most redirections of one command; more count as an outage."""
_LEARN_AGAIN_S: Final = 0.1
"""Seconds between two queries for the topology because of errors."""
_SILENT_S: Final = 3.0
"""Seconds for which a node that did not answer is not asked if another node has answered."""
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
"""Error classes that the parsers of redis-py before 6 lack."""
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
        """``host:port``; an IPv6 address in []."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Topology:
    """The masters of the hash slots.

    Attributes:
        slots: the master of each slot, by its number; None: no master. MOVED changes an item.
        masters: masters with slots, by their lowest slot: a promotion keeps the order.
        nodes: all nodes, replicas included.
        rank: whether the answering node sees the majority of masters (``cluster_state``), and the
            highest epoch that it knows: of two topologies the newer one has the higher rank.
        learnt: the monotonic time of the answer.
    """

    slots: list[Address | None]
    masters: tuple[Address, ...]
    nodes: tuple[Address, ...]
    rank: tuple[bool, int]
    learnt: float


class ClusterClient(redis.Redis):
    """A client of all nodes of a cluster; the first command connects. Thread-safe.

    A command without a key goes to any master; :meth:`scan_iter` asks all masters. The keys of a
    script must share a hash slot. A pipeline may span several masters, and is no transaction:
    entries that are sent again have the same ids and count once. Lost connections, and slots
    without a master, raise redis-py's errors, for :func:`countersink.stream.connection.mapped`.

    Args:
        hosts: the first nodes to ask for the topology.
        options: options of connections.
        tls: whether connections use TLS.
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
        """A copy of the client with a timeout of at most :data:`QUESTION_TIMEOUT`, for commands
        that are not essential. It shares connections and topology.
        """
        made = copy(self)
        made.auto_close_connection_pool = False
        made._timeout = QUESTION_TIMEOUT
        return made

    def node(self, address: Address) -> redis.Redis:
        """The plain client of one node; its errors do not update the topology (:meth:`asked`)."""
        client = self._nodes.client(address, self._timeout)
        client.response_callbacks = self.response_callbacks
        return client

    def masters(self) -> tuple[Address, ...]:
        """All masters that have slots, by their lowest slot.

        Raises:
            redis.RedisError: no node returned the topology.
        """
        return self.topology(TOPOLOGY_S).masters

    def master_of(self, key: str | bytes) -> Address | None:
        """The master that serves ``key`` in the latest topology; None: its slot has none.

        Raises:
            redis.RedisError: there is no topology yet, and no node returned it.
        """
        return self.topology().slots[self._slot(key)]

    def topology(self, max_age_s: float | None = None) -> Topology:
        """The topology: queried again if an error or a redirection shows that it has changed, or
        if it is older than ``max_age_s``.

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
        """The plain client of a node; an error inside the block that shows that the node is away
        makes the next command query the topology.
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
        """:meth:`asked` for the master that serves ``key``.

        Raises:
            redis.RedisError: its slot has no master, or no node returned the topology.
        """
        return self.asked(self._serving(self._slot(key)))

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command to the master of its key, and then to the nodes of its redirections."""
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
        """A pipeline without a transaction."""
        assert not transaction, "a pipeline of a cluster cannot be a transaction"
        return ClusterPipeline(self)

    def register_script(self, script: Any) -> Script:
        """A script that runs on the master of its keys."""
        return _NodeScript(self, script)

    def scan_iter(
        self, match: Any = None, count: Any = None, _type: Any = None, **options: Any
    ) -> Iterator[Any]:
        """The keys of all masters."""
        for address in self.masters():
            with self.asked(address) as node:
                found = list(node.scan_iter(match, count, _type, **options))
            yield from found

    def _learn(self) -> Topology:
        """The topology from the first node that sees the majority and is not behind the topology
        known so far: a node that is cut off returns an old one. Lost nodes are asked last.
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
        """The topology from one node."""
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
        """The hash slot of a command's first key; None: it has no key."""
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
    """The hash slot of a key; cached, as some commands concern all 1,024 possible partitions."""
    return key_slot(key)


def _executed_asking(node: redis.Redis, args: Any, options: dict[str, Any]) -> Any:
    """The reply to a command for a key of a slot that is migrating to ``node``."""
    pipe: Any = node.pipeline(transaction=False)
    pipe.execute_command("ASKING")
    pipe.execute_command(*args, **options)
    reply = pipe.execute(raise_on_error=False)[1]
    if isinstance(reply, Exception):
        raise reply
    return reply


class ClusterPipeline(Pipeline):
    """Commands for the masters of their keys: one pipeline of redis-py to each, one after the
    other. A lost connection raises, and the replies of the other masters are lost.
    """

    is_cluster: Final = True

    def __init__(self, client: ClusterClient) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, False, None)
        self._client = client

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """The replies, in the order of the commands; the first error is raised if asked for."""
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
    """A script that is sent to the master of its keys; redis-py's loads it into any node."""

    def __call__(self, keys: Any = None, args: Any = None, client: Any = None) -> Any:
        keys, args = tuple(keys or ()), tuple(args or ())
        client = client or self.registered_client
        try:
            return client.evalsha(self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.eval(self.script, len(keys), *keys, *args)


class _Nodes(ConnectionPool):
    """The connections to all nodes, and the topology. :meth:`disconnect` closes all connections.

    Attributes:
        topology: the latest one.
        stale: an error or a redirection shows that it has changed.
        lost: nodes that do not answer → monotonic time of the latest failure.
    """

    def __init__(self, first: Address, options: Mapping[str, Any]) -> None:
        super().__init__(host=first.host, port=first.port, **options)
        self.topology: Topology | None = None
        self.stale = False
        self.lost: dict[Address, float] = {}
        self._options = options
        self._clients: dict[tuple[Address, float | None], redis.Redis] = {}

    def client(self, address: Address, timeout: float | None) -> redis.Redis:
        """The client of one node, with a timeout of at most ``timeout`` seconds."""
        found = self._clients.get((address, timeout))
        if found is not None:
            return found
        return self._clients.setdefault(  # two threads may make one, the first is kept
            (address, timeout), self.new_client(address, timeout)
        )

    def new_client(self, address: Address, timeout: float | None) -> redis.Redis:
        """A client of one node that is not shared."""
        options = dict(self._options, host=address.host, port=address.port)
        if timeout is not None:
            for name in ("socket_timeout", "socket_connect_timeout"):
                options[name] = min(options[name] or timeout, timeout)
        made = redis.Redis(connection_pool=ConnectionPool(**options))
        made.auto_close_connection_pool = True
        return made

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close all connections, also those on which another thread waits for a reply."""
        for client in list(self._clients.values()):
            client.connection_pool.disconnect(inuse_connections)
        super().disconnect(inuse_connections)


def cluster_client(rest: str, options: Mapping[str, Any], *, tls: bool) -> ClusterClient:
    """A client of the cluster that a URL names; sends nothing.

    Args:
        rest: the URL behind ``://``: ``[user:password@]host:port,…[/0]?options``.
        options: options of connections; the URL's options override them.
        tls: whether connections use TLS.

    Raises:
        StreamMisconfigured: the URL cannot be used; the message does not repeat it.
        ValueError: an option of the URL cannot be used.
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
    """The topology in the answers of ``host`` to CLUSTER INFO and CLUSTER SLOTS."""
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

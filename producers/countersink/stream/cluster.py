"""Redis Cluster: its URLs and their errors, a client that sends each command to the master of its
key and follows redirections (``REDIRECTIONS``), which masters there are and how long they are
believed (``TOPOLOGY_S``), and the timeouts of one question about them (``QUESTION_TIMEOUT``) and
of all (``SEARCH_TIMEOUT``).

:class:`ClusterClient` is a :class:`redis.Redis`, so that whoever has one need not know.
Connections, pools, pipelines, parsing and hash slots are redis-py's, with a plain client per node.
:class:`redis.cluster.RedisCluster` is not used: its pipelines send every command again after a lost
connection, whatever the options say; after an error it asks nodes that hang for the topology, each
for the whole socket timeout; for XREADGROUP it asks a node for the keys each time; and old versions
drop options, the look at the name in a certificate among them.

A command that was answered by MOVED, ASK or TRYAGAIN was not executed. It goes to the node that was
named, or a little later to the same one. A command that was not answered is not sent again.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

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
"""Seconds until a node that is asked for the topology counts as gone, and the next one is asked."""
SEARCH_TIMEOUT: Final = 5.0
"""Seconds for which nodes are asked, one after the other; many that hang get less each."""
TOPOLOGY_S: Final = 1.0
"""Seconds for which :meth:`ClusterClient.masters` believes the last answer."""
DEFAULT_PORT: Final = 6379
REDIRECTIONS: Final = 16
"""Redirections of one command: more than that are an outage."""
_LEARN_AGAIN_S: Final = 0.1
"""Seconds between two questions for the topology because of errors."""
_SILENT_S: Final = 3.0
"""Seconds for which a node that did not answer is not asked if another one told something."""
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
"""What parsers of redis-py before 6 do not know."""
_WITHOUT_KEY: Final = frozenset(
    (
        *("ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "ECHO", "INFO", "KEYS"),
        *("LATENCY", "PING", "RANDOMKEY", "ROLE", "SCAN", "SCRIPT", "SLOWLOG", "TIME", "WAIT"),
    )
)
_KEY_AFTER_SUBCOMMAND: Final = frozenset(("MEMORY", "OBJECT", "XGROUP", "XINFO"))

T = TypeVar("T")


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
    """Which master serves which hash slot.

    Attributes:
        slots: by number; None: no master. Entries change where a node says MOVED.
        masters: those with slots, by their lowest one: a promotion leaves the order as it is.
        nodes: all, replicas included.
        rank: whether the node that told it sees the majority of masters (``cluster_state``), and
            the highest epoch that it knows: of two topologies the newer one has the higher rank.
        learnt: when, on the monotonic clock.
    """

    slots: list[Address | None]
    masters: tuple[Address, ...]
    nodes: tuple[Address, ...]
    rank: tuple[bool, int]
    learnt: float


class ClusterClient(redis.Redis):
    """A client of all nodes of a cluster. Nothing is sent before the first command.

    A command without a key goes to any master; :meth:`scan_iter` asks all of them. Scripts, and
    transactions of a pipeline, have to keep to one hash slot. A pipeline without a transaction may
    span several masters. Lost connections, and slots without a master, raise redis-py's errors, of
    which :func:`countersink.stream.connection.mapped` makes ours.

    Threads may share it.

    Args:
        hosts: nodes to begin with.
        options: of connections.
        tls: with TLS.
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
        pool = _NodePools(self._hosts[0], settings)
        super().__init__(connection_pool=pool)
        self.auto_close_connection_pool = True  # as from_url makes it
        self._pools = pool
        self._topology: Topology | None = None
        self._stale = False
        self._lost: dict[Address, float] = {}
        self._answered: set[Address] = set()

    def node(self, address: Address) -> redis.Redis:
        """The plain client of one node. Its errors are not noticed here."""
        client = self._pools.client(address)
        client.response_callbacks = self.response_callbacks
        return client

    def hasty(self, address: Address) -> redis.Redis:
        """The same with a timeout of at most :data:`QUESTION_TIMEOUT`, for questions whose answer
        can be done without.
        """
        client = self._pools.client(address, QUESTION_TIMEOUT)
        client.response_callbacks = self.response_callbacks
        return client

    def masters(self) -> tuple[Address, ...]:
        """All masters that have slots, by their lowest slot.

        Raises:
            redis.RedisError: no node tells.
        """
        return self.topology(TOPOLOGY_S).masters

    def master_of(self, key: str | bytes) -> Address | None:
        """The master that serves ``key``, by what was learnt last; None: its slot has none.

        Raises:
            redis.RedisError: nothing was learnt, and no node tells.
        """
        return self.topology().slots[self._slot(key)]

    def topology(self, max_age_s: float | None = None) -> Topology:
        """What is known, learnt anew if an error or a redirection says that it has changed, or if
        it is older than ``max_age_s``.

        Raises:
            redis.RedisError: no node tells.
        """
        known = self._topology
        if known is not None:
            age = time.monotonic() - known.learnt
            if not (self._stale and age > _LEARN_AGAIN_S) and (
                max_age_s is None or age <= max_age_s
            ):
                return known
        self._topology = found = self._learn()
        self._stale = False
        return found

    @contextmanager
    def asked(self, address: Address, *, hasty: bool = False) -> Iterator[redis.Redis]:
        """The plain client of a node; errors inside the block that say that the node is gone are
        noticed, so that the topology is learnt anew.
        """
        try:
            yield self.hasty(address) if hasty else self.node(address)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            self._lost[address] = time.monotonic()
            self._stale = True
            text = str(error) if address.text in str(error) else f"{address.text}: {error}"
            if not (address in self._answered or address in self._hosts):
                text += " (this is an address that the nodes of the cluster announce)"
            kind = type(error) if isinstance(error, redis.RedisError) else redis.ConnectionError
            raise kind(text) from error
        except (ClusterDownError, redis.ReadOnlyError):
            self._stale = True
            raise
        except redis.RedisError:
            self._answered.add(address)
            raise
        else:
            self._answered.add(address)
            self._lost.pop(address, None)

    def asked_for(
        self, key: str | bytes, *, hasty: bool = False
    ) -> AbstractContextManager[redis.Redis]:
        """The same, for the master that serves ``key``.

        Raises:
            redis.RedisError: there is none, or no node tells.
        """
        return self.asked(self._serving(self._slot(key)), hasty=hasty)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command to the master of its key."""
        return self._execute(args, options)

    def hastily(self, *args: Any, **options: Any) -> Any:
        """The same with a timeout of at most :data:`QUESTION_TIMEOUT`."""
        return self._execute(args, options, hasty=True)

    def _execute(self, args: Any, options: dict[str, Any], *, hasty: bool = False) -> Any:
        def send(node: redis.Redis, asking: bool) -> Any:
            if not asking:
                return node.execute_command(*args, **options)  # type: ignore[no-untyped-call]
            pipe: Any = node.pipeline(transaction=False)
            pipe.execute_command("ASKING")
            pipe.execute_command(*args, **options)
            reply = pipe.execute(raise_on_error=False)[1]
            if isinstance(reply, Exception):
                raise reply
            return reply

        return self.follow(self._slot_of(args), send, hasty=hasty)

    def follow(
        self, slot: int | None, send: Callable[[redis.Redis, bool], T], *, hasty: bool = False
    ) -> T:
        """Call ``send`` with the client of the master of ``slot``, and with that of the node that a
        redirection names; the flag says that ASKING has to go before. ``None``: any master.
        """
        where, asking = self._serving(slot), False
        for turn in range(REDIRECTIONS):
            try:
                with self.asked(where, hasty=hasty) as node:
                    return send(node, asking)
            except MovedError as error:
                where, asking = Address(error.host or where.host, error.port), False
                self._stale = True
                if turn >= REDIRECTIONS // 4:
                    time.sleep(_TRY_AGAIN_S)  # two nodes point to each other, for a moment
                if self._topology is not None:
                    self._topology.slots[error.slot_id] = where
            except AskError as error:
                where, asking = Address(error.host or where.host, error.port), True
            except TryAgainError:
                # Keys of a slot that is moving are in two places.
                time.sleep(_TRY_AGAIN_S * min(turn, 2))
                where, asking = self._serving(slot), False
        raise ClusterDownError(f"slot {slot} is moving: {REDIRECTIONS} redirections of one command")

    def pipeline(self, transaction: Any = True, shard_hint: Any = None) -> "ClusterPipeline":
        """A pipeline: with a transaction on one hash slot, without one on any."""
        return ClusterPipeline(self, bool(transaction))

    def hasty_pipeline(self) -> "ClusterPipeline":
        """A pipeline without a transaction, with a timeout of at most :data:`QUESTION_TIMEOUT`."""
        return ClusterPipeline(self, False, hasty=True)

    def register_script(self, script: Any) -> Script:
        """A script that every node may execute."""
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
        """Ask one node after the other, those that were lost last, until one tells that sees the
        majority and knows nothing older than what is known: a node that is cut off tells what was.
        """
        known = self._topology
        told: list[Topology] = []
        answers: dict[str, str] = {}
        refused: list[redis.RedisError] = []
        candidates = dict.fromkeys([*(known.nodes if known is not None else ()), *self._hosts])
        end = time.monotonic() + SEARCH_TIMEOUT
        for turn, address in enumerate(sorted(candidates, key=lambda n: self._lost.get(n, 0.0))):
            now = time.monotonic()
            if told and now - self._lost.get(address, -_SILENT_S) < _SILENT_S:
                continue
            share = (end - now) / (len(candidates) - turn)
            try:
                found = self._ask(address, min(QUESTION_TIMEOUT, max(share, _LEARN_AGAIN_S)))
            except (redis.RedisError, OSError) as error:
                self._lost[address] = time.monotonic()
                answers[address.text] = str(error)
                if isinstance(error, (AuthenticationError, NoPermissionError)):
                    refused.append(error)
                elif isinstance(error, ResponseError) and "cluster support disabled" in str(error):
                    refused.append(
                        ResponseError(f"{address.text} is no node of a cluster: use a redis:// URL")
                    )
                continue
            self._answered.add(address)
            if not found.masters:
                answers[address.text] = "knows no master that has slots"
                continue
            self._lost.pop(address, None)
            told.append(found)
            if found.rank >= (True, 0 if known is None else known.rank[1]):
                break
        if told:
            best = max(told, key=lambda each: each.rank)
            # Where most nodes know of nothing newer, it is another cluster than it was.
            if known is None or best.rank >= known.rank or 2 * len(told) > len(candidates):
                self._forget_all_but({*best.nodes, *self._hosts})
                return best
            return replace(known, learnt=best.learnt)
        if len(refused) == len(answers):
            raise refused[-1]
        said = "; ".join(f"{where}: {answer}" for where, answer in answers.items())
        raise redis.ConnectionError(f"no node of the cluster tells which masters there are: {said}")

    def _ask(self, address: Address, timeout: float) -> Topology:
        """What one node says of the topology."""
        client = self._pools.made(address, timeout)
        execute: Any = client.execute_command  # redis-py leaves this one untyped
        try:
            # In this order: the map may be newer than the rank that it gets, and not older.
            info = str_if_bytes(execute("CLUSTER", "INFO"))
            return _topology(
                dict(line.partition(":")[::2] for line in info.split()),
                execute("CLUSTER", "SLOTS"),
                address.host,
            )
        finally:
            client.connection_pool.disconnect()

    def _forget_all_but(self, nodes: Set[Address]) -> None:
        """Hang up on nodes that left the cluster, so that a process that lives long does not
        collect them.
        """
        self._pools.forget_all_but(nodes)
        for address in {*self._lost, *self._answered} - nodes:
            self._lost.pop(address, None)
            self._answered.discard(address)

    def _serving(self, slot: int | None) -> Address:
        topology = self.topology()
        if slot is None:
            return min(topology.masters, key=lambda each: self._lost.get(each, random.random() - 1))
        found = topology.slots[slot]
        if found is None and self.topology(TOPOLOGY_S) is not topology:
            found = self.topology().slots[slot]
        if found is None:
            # Not redis-py's SlotNotCoveredError, which is no RedisError.
            raise ClusterDownError(f"no master of the cluster has the slot {slot}")
        return found

    def _slot_of(self, args: Sequence[Any]) -> int | None:
        """The hash slot of a command's first key; None: it has no key."""
        name, *more = str(args[0]).upper().split()
        if name in _WITHOUT_KEY:
            return None
        if name in ("EVAL", "EVALSHA"):
            return self._slot(args[3]) if int(args[2]) else None
        if name in ("XREAD", "XREADGROUP"):
            words = [str(word).upper() if isinstance(word, str) else word for word in args]
            place = next(n for n, word in enumerate(words) if word in ("STREAMS", b"STREAMS"))
            return self._slot(args[place + 1])
        return self._slot(args[2 if name in _KEY_AFTER_SUBCOMMAND and not more else 1])

    def _slot(self, key: Any) -> int:
        encoder: Any = self.connection_pool.get_encoder()
        return _slot(encoder.encode(key))


@lru_cache(maxsize=4096)
def _slot(key: bytes) -> int:
    """The hash slot of a key; remembered, as some questions are about all possible partitions."""
    return key_slot(key)


class ClusterPipeline(Pipeline):
    """Commands for the masters of their keys: one pipeline of redis-py to each, one after the
    other. A connection that is lost ends it; what the other masters did is not told then.
    """

    is_cluster: Final = True

    def __init__(self, client: ClusterClient, transaction: bool, *, hasty: bool = False) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, None)
        self._client = client
        self._as_one = transaction
        self._hasty = hasty

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """The replies, in the order of the commands; errors among them are raised if asked for."""
        commands = [(entry[0], entry[1]) for entry in self.command_stack]
        try:
            if not commands:
                return []
            replies = self._together(commands) if self._as_one else self._spread(commands)
            if raise_on_error:
                for number, reply in enumerate(replies):
                    if isinstance(reply, Exception):
                        annotate: Any = self.annotate_exception
                        annotate(reply, number + 1, commands[number][0])
                        raise reply
            return replies
        finally:
            self.reset()

    def _together(self, commands: Sequence[tuple[Any, Any]]) -> list[Any]:
        slots = {self._client._slot_of(args) for args, _ in commands}
        if len(slots) > 1:
            raise ClusterCrossSlotError("a transaction has keys of several hash slots")

        def send(node: redis.Redis, asking: bool) -> list[Any]:
            pipe: Any = node.pipeline(transaction=True)
            if asking:
                # Before MULTI it holds until EXEC has been answered. The pipeline keeps the
                # connection. Where keys are missing EXEC executes nothing and says TRYAGAIN.
                pipe.immediate_execute_command("ASKING")
            for args, options in commands:
                pipe.execute_command(*args, **options)
            replies: list[Any] = pipe.execute(raise_on_error=False)
            return replies

        return self._client.follow(slots.pop(), send)

    def _spread(self, commands: Sequence[tuple[Any, Any]]) -> list[Any]:
        places: dict[Address, list[int]] = {}
        for number, (args, _) in enumerate(commands):
            slot = self._client._slot_of(args)
            places.setdefault(self._client._serving(slot), []).append(number)
        replies: list[Any] = [None] * len(commands)
        for address, numbers in places.items():
            with self._client.asked(address, hasty=self._hasty) as node:
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
                    replies[number] = self._client._execute(args, options, hasty=self._hasty)
                except ResponseError as error:
                    replies[number] = error
        return replies


class _NodeScript(Script):
    """redis-py loads a script into some node; here the one that has the keys gets it."""

    def __call__(self, keys: Any = None, args: Any = None, client: Any = None) -> Any:
        keys, args = tuple(keys or ()), tuple(args or ())
        client = client or self.registered_client
        try:
            return client.evalsha(self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.eval(self.script, len(keys), *keys, *args)


class _NodePools(ConnectionPool):
    """The connections to all nodes. :meth:`disconnect` breaks each of them."""

    def __init__(self, first: Address, options: Mapping[str, Any]) -> None:
        super().__init__(host=first.host, port=first.port, **options)
        self._options = options
        self._clients: dict[tuple[Address, float | None], redis.Redis] = {}

    def client(self, address: Address, timeout: float | None = None) -> redis.Redis:
        """The client of one node, with a timeout of at most ``timeout`` seconds."""
        found = self._clients.get((address, timeout))
        if found is not None:
            return found
        return self._clients.setdefault(  # of two threads' one remains
            (address, timeout), self.made(address, timeout)
        )

    def made(self, address: Address, timeout: float | None) -> redis.Redis:
        """A client of one node that is the caller's own."""
        options = dict(self._options, host=address.host, port=address.port)
        if timeout is not None:
            for name in ("socket_timeout", "socket_connect_timeout"):
                options[name] = min(options[name] or timeout, timeout)
        made = redis.Redis(connection_pool=ConnectionPool(**options))
        made.auto_close_connection_pool = True
        return made

    def forget_all_but(self, nodes: Set[Address]) -> None:
        """Hang up on the other ones, except where another thread waits for a reply."""
        for key in list(self._clients):
            if key[0] not in nodes and (client := self._clients.pop(key, None)) is not None:
                client.connection_pool.disconnect(inuse_connections=False)

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Hang up, also where another thread waits for a reply."""
        for client in list(self._clients.values()):
            client.connection_pool.disconnect(inuse_connections)
        super().disconnect(inuse_connections)


def cluster_client(rest: str, options: Mapping[str, Any], *, tls: bool) -> ClusterClient:
    """A client of the cluster that a URL names. Nothing is sent.

    Args:
        rest: the URL behind ``://``: ``[user:password@]host:port,…[/0]?options``.
        options: of connections, those of the URL go before them.
        tls: with TLS.

    Raises:
        StreamMisconfigured: the URL cannot be used; the message does not repeat it.
        ValueError: nor can one of its options.
    """
    parts = split_hosts(rest, "redis+cluster", "nodes", DEFAULT_PORT, _EXAMPLE)
    given = parts.options("", parts.query)
    if parts.path not in ("", "/", "/0") or given.pop("db", 0) != 0:
        raise StreamMisconfigured(
            "a Redis Cluster has the database 0 alone: a redis+cluster:// URL ends with its hosts,"
            f" such as {_EXAMPLE}"
        )
    return ClusterClient(parts.addresses, {**options, **given}, tls=tls)


def _topology(info: Mapping[str, str], reply: Any, host: str) -> Topology:
    """What ``host`` answered to CLUSTER INFO and CLUSTER SLOTS."""
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

"""Checks of ``countersink doctor`` on Redis: version, role, sentinels, nodes of a cluster, memory,
persistence, rights, partitions, queue, clocks; what warns, what fails (limits), and the advice for
each. Nothing is written."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS

from countersink.cli import output
from countersink.cli.commands.operate import partitions
from countersink.cli.commands.operate.doctor import Finding, clock, fail, of, ok, warn
from countersink.cli.commands.operate.info import as_text, queue
from countersink.stream.clock import offset_ms
from countersink.stream.connection import cluster_of, command, mapped
from countersink.stream.errors import StreamError
from countersink.stream.names import GROUP, PARTITIONS_KEY, applied_key, stream_key, worker_key
from countersink.stream.sentinel import watched

if TYPE_CHECKING:
    from countersink.stream.cluster import ClusterClient

MINIMUM: Final = (6, 2)
LEAST_SENTINELS: Final = 3
_LAG_WARN_MS: Final = 60_000
_FULL: Final = 0.8

_STREAM: Final = stream_key(0)
_HASH: Final = worker_key("doctor")
_NEEDED: Final[tuple[tuple[str, ...], ...]] = (
    ("XADD", _STREAM, "*", "f", "v"),
    ("XREADGROUP", "GROUP", GROUP, "c", "STREAMS", _STREAM, ">"),
    ("XCLAIM", _STREAM, GROUP, "c", "0", "0-0"),
    ("XACK", _STREAM, GROUP, "0-0"),
    ("XDEL", _STREAM, "0-0"),
    ("XGROUP", "CREATE", _STREAM, GROUP, "0"),
    ("XPENDING", _STREAM, GROUP),
    ("XINFO", "GROUPS", _STREAM),
    ("XRANGE", _STREAM, "-", "+"),
    ("XLEN", _STREAM),
    ("EVALSHA", "0" * 40, "1", _STREAM),
    ("SCRIPT", "LOAD", "return 1"),
    ("GET", PARTITIONS_KEY),
    ("HSET", _HASH, "f", "v"),
    ("HGET", applied_key(_STREAM), "group"),
    ("HINCRBY", applied_key(_STREAM), "count", "1"),
    ("EXPIRE", _HASH, "1"),
    ("SCAN", "0"),
    ("TIME",),
)
"""What producers, workers and this command send."""
_OF_CLUSTERS: Final[tuple[tuple[str, ...], ...]] = (
    ("CLUSTER", "SLOTS"),
    ("CLUSTER", "INFO"),
    ("ASKING",),
)
"""What they send to a cluster, too."""


def lines(client: redis.Redis) -> Iterator[Finding]:
    """All lines about Redis.

    Raises:
        StreamError: it does not answer, or refuses what none of the lines is about.
    """
    cluster = cluster_of(client)
    if cluster is not None:
        yield from _cluster(cluster)
    else:
        with mapped():
            server = RedisState(client, client.info(), is_master=True)
        if server.info.get("redis_mode") == "cluster":
            lone = fail(
                f"Redis {server.info.get('redis_version')}, a node of a cluster",
                "set COUNTERSINK_REDIS_URL to redis+cluster:// and the addresses of its nodes",
            )
            yield from of("redis", lone)
            return
        yield from of("redis", *_version(server))
        yield from of("redis role", *_role(server))
        yield from of("redis sentinel", *_sentinels(server))
        yield from of("redis clock", *_clock(server))
        yield from of("redis eviction", *_eviction(server))
        yield from of("redis memory", *_memory(server))
        yield from of("redis persistence", *_persistence(server))
        yield from of("redis rights", *_rights(server))
    yield from of("partitions", *_partitions(client))
    yield from of("queue", _queue(client))


def _cluster(cluster: "ClusterClient") -> Iterator[Finding]:
    """The lines about the nodes of a Redis Cluster: those that are the same once."""
    with mapped():
        topology = cluster.topology(0.0)
    replicas = len(topology.nodes) - len(topology.masters)
    shape = ok(f"{len(topology.masters)} masters, {replicas} replicas")
    yield from of("redis cluster", shape)
    nodes: dict[str, RedisState] = {}
    for address in topology.nodes:
        name, node = address.text, cluster.with_short_timeout.node(address)
        is_master = address in topology.masters
        try:
            with mapped():
                nodes[name] = RedisState(node, node.info(), is_master, in_cluster=True)
        except StreamError as error:
            away = warn(f"replica {name}: {error}", "start it")
            if is_master:
                away = fail(f"master {name}: {error}", "start it, or let a replica take over")
            yield from of("redis node", away)
    masters = {name: node for name, node in nodes.items() if node.is_master}
    yield from _of_each(nodes, "redis", _version)
    yield from _of_each(masters, "redis role", _role)
    yield from _of_each(nodes, "redis slots", _slots)
    yield from of("redis slots", *_moving(masters))
    yield from _of_each(masters, "redis coverage", _coverage)
    yield from _of_each(masters, "redis clock", _clock)
    yield from _of_each(nodes, "redis eviction", _eviction)
    yield from _of_each(nodes, "redis memory", _memory)
    yield from _of_each(nodes, "redis persistence", _persistence)
    yield from _of_each(masters, "redis rights", _rights)


@dataclass(frozen=True, slots=True)
class RedisState:
    """A server that answers: a single Redis, or a node of a cluster.

    Attributes:
        client: of this one alone.
        info: what INFO said.
        is_master: whether it has hash slots.
        in_cluster: whether it is a node of a cluster.
    """

    client: redis.Redis
    info: Mapping[str, Any]
    is_master: bool
    in_cluster: bool = False


def _of_each(
    nodes: Mapping[str, RedisState],
    check: str,
    findings: Callable[[RedisState], Iterable[Finding]],
) -> Iterator[Finding]:
    """The findings on nodes: what is the same on all of them once, else with the nodes on which it
    is so.
    """
    found: dict[Finding, list[str]] = {}
    for name, node in nodes.items():
        try:
            for each in findings(node):
                found.setdefault(each, []).append(name)
        except StreamError as error:
            lost = fail(f"{name}: {error}", "ask again; is it overloaded?")
            yield from of("redis node", lost)
    for finding, names in found.items():
        shown = f"{', '.join(names)}: {finding.found}"
        if len(names) == len(nodes):
            shown = f"{finding.found} (each of {len(nodes)} nodes)"
        yield from of(check, replace(finding, found=shown))


def _slots(server: RedisState) -> Iterator[Finding]:
    try:
        reply = command(server.client, "CLUSTER", "INFO")
    except StreamError:
        yield ok("not checked: CLUSTER INFO is not allowed")
        return
    if not isinstance(reply, dict):
        reply = dict(line.partition(":")[::2] for line in as_text(reply).split())
    state, served = str(reply.get("cluster_state")), int(reply.get("cluster_slots_ok", 0))
    if state == "ok" and served == REDIS_CLUSTER_HASH_SLOTS:
        yield ok("all hash slots have a master that serves")
    else:
        yield fail(
            f"cluster_state {state}, {REDIS_CLUSTER_HASH_SLOTS - served:,} hash slots without a"
            " master that serves: what lies there cannot be reached",
            "start the node that had them, or redis-cli --cluster fix",
        )


def _moving(masters: Mapping[str, RedisState]) -> Iterator[Finding]:
    """The line about hash slots on their way from one master to another; none if there are none, or
    CLUSTER NODES is not allowed.
    """
    slots: dict[int, list[str]] = {}
    for name, node in masters.items():
        with suppress(StreamError):
            reply = as_text(command(node.client, "CLUSTER", "NODES"))
            for slot in re.findall(r"\[(\d+)-[<>]-", reply):
                slots.setdefault(int(slot), []).append(name)
    if slots:
        some = output.few([f"{slot} of {' and '.join(slots[slot])}" for slot in sorted(slots)])
        yield warn(
            f"{len(slots):,} hash slots are MIGRATING or IMPORTING ({some}): if no"
            " reshard is at work, one was broken off, and what has a key on each side waits",
            "redis-cli --cluster fix, unless a reshard is at work",
        )


def _coverage(server: RedisState) -> Iterator[Finding]:
    whole = _config(server.client, "cluster-require-full-coverage")
    if whole in ("no", None):
        told = whole or "not known: CONFIG GET is forbidden"
        yield ok(f"cluster-require-full-coverage {told}")
    else:
        yield warn(
            "cluster-require-full-coverage yes: while one shard is away, no other takes entries",
            "CONFIG SET cluster-require-full-coverage no, on all nodes and in redis.conf",
        )


def _partitions(client: redis.Redis) -> Iterator[Finding]:
    """The lines about partitions; none where there is one, on one server."""
    layout = partitions.look(client)
    for warning in layout["warnings"]:
        yield warn(warning, "see countersink partitions")
    if layout["nodes"] and not layout["warnings"]:
        yield ok(f"{layout['partitions']} on {len(layout['nodes'])} masters")


def _clock(server: RedisState) -> Iterator[Finding]:
    yield clock("Redis", offset_ms(server.client))


def _version(server: RedisState) -> Iterator[Finding]:
    text = str(server.info.get("redis_version", ""))
    numbers = tuple(int(n) for n in re.findall(r"\d+", text)[:2])
    found = f"Redis {text}"
    if numbers < MINIMUM:
        least = ".".join(map(str, MINIMUM))
        yield fail(found, f"upgrade to Redis {least} or newer (XPENDING … IDLE)")
    else:
        yield ok(found)


def _role(server: RedisState) -> Iterator[Finding]:
    info = server.info
    replicas = int(info.get("connected_slaves", 0))
    if info.get("role") != "master":
        yield fail(
            f"a replica of {info.get('master_host')}",
            "point COUNTERSINK_REDIS_URL at the primary: a replica takes no writes",
        )
    elif replicas:
        found = f"a primary with {replicas} asynchronous replica{'s' if replicas > 1 else ''}"
        if "min_slaves_good_slaves" in info:  # there only if it is set
            yield ok(f"{found}, min-replicas-to-write is set")
        else:
            yield warn(
                f"{found}, min-replicas-to-write 0",
                "a failover can lose what the replica had not received: set min-replicas-to-write, "
                "or accept it (what is lost is never counted twice)",
            )
    elif server.in_cluster:
        yield warn(
            "a master without a replica: when it dies, what it holds cannot be counted until it is"
            " back, and is lost with its disk",
            "redis-cli --cluster add-node … --cluster-slave, and min-replicas-to-write 1",
        )
    else:
        yield ok("a primary")


def _sentinels(server: RedisState) -> Iterator[Finding]:
    """The line about what watches Redis; none for a URL without sentinels."""
    with mapped():
        seen = watched(server.client)
    if seen is None:
        return
    found = (
        f"the master {seen.name} is {seen.address}; {seen.sentinels} sentinel"
        f"{'s watch' if seen.sentinels > 1 else ' watches'} it, {seen.replicas} replica"
        f"{'s are' if seen.replicas != 1 else ' is'} up"
    )
    if seen.replicas == 0:
        yield warn(found, "start a replica: there is none to promote when the master dies")
    elif seen.sentinels < LEAST_SENTINELS:
        yield warn(
            found,
            f"run at least {LEAST_SENTINELS}, on machines of their own: a majority of them has to"
            " agree on a failover",
        )
    else:
        yield ok(found)


def _eviction(server: RedisState) -> Iterator[Finding]:
    info = server.info
    policy, limit = str(info.get("maxmemory_policy")), int(info.get("maxmemory", 0))
    if policy == "noeviction":
        yield ok("maxmemory-policy noeviction")
    elif limit:
        yield fail(
            f"maxmemory-policy {policy}: Redis deletes whole streams when it is full",
            "CONFIG SET maxmemory-policy noeviction, and in redis.conf",
        )
    else:
        yield warn(
            f"maxmemory-policy {policy}, without effect as long as maxmemory is not set",
            "CONFIG SET maxmemory-policy noeviction, and in redis.conf, before somebody sets it",
        )


def _memory(server: RedisState) -> Iterator[Finding]:
    info = server.info
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if limit and used > _FULL * limit:
        yield warn(
            f"{used:,} of {limit:,} bytes used",
            "start more workers if there is a backlog, or raise maxmemory",
        )
    else:
        of = f" of {limit:,}" if limit else ""
        yield ok(f"{used:,}{of} bytes used")


def _persistence(server: RedisState) -> Iterator[Finding]:
    info = server.info
    for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if str(info.get(name, "ok")) != "ok":
            yield fail(f"{name} is {info[name]}", "look at Redis's log: disk full?")
    if not int(info.get("aof_enabled", 0)):
        yield warn(
            "no append-only file: a crash loses the whole backlog, or all since the last snapshot",
            "CONFIG SET appendonly yes, and in redis.conf",
        )
        return
    fsync = _config(server.client, "appendfsync")
    if fsync == "always":
        yield ok("appendonly yes, appendfsync always")
    elif fsync is None:
        yield warn(
            "appendonly yes, appendfsync not known: CONFIG GET is forbidden",
            "ask who runs it: everysec can lose the last second, always loses nothing",
        )
    else:
        lost = "the last second" if fsync == "everysec" else "what the system had not written"
        yield warn(
            f"appendonly yes, appendfsync {fsync}: a crash of the machine can lose {lost}",
            "accept it, or CONFIG SET appendfsync always (slower)",
        )


def _rights(server: RedisState) -> Iterator[Finding]:
    client, commands = server.client, (*_NEEDED, *(_OF_CLUSTERS if server.in_cluster else ()))
    try:
        user = as_text(command(client, "ACL", "WHOAMI"))
        replies = [as_text(command(client, "ACL", "DRYRUN", user, *needed)) for needed in commands]
    except StreamError:
        # Redis before 7 has no DRYRUN, and a careful administrator forbids ACL.
        yield ok("not checked: ACL DRYRUN is not there, or not allowed")
        return
    refused = [reply for reply in replies if reply != "OK"]
    if refused:
        yield fail(
            f"{len(refused)} of {len(commands)} commands are refused: {refused[0]}",
            f"ACL SETUSER {user} ~*countersink:* +@all -@dangerous +info +cluster|slots"
            " +cluster|info",
        )
    else:
        yield ok(f"user {user} may do what is needed")


def _queue(client: redis.Redis) -> Finding:
    state = queue(client)
    workers, lag_ms = len(state["workers"]), state["lag_ms"]
    wait = f"{state['backlog']:,} entries wait"
    if not workers and state["away"]:
        # A worker's figures lie on one master of a cluster.
        found = f"{wait}; whether a worker runs is not known, as a node is away"
        return warn(found, "bring the node back")
    if state["backlog"] and not workers:
        found = f"{wait}, and no worker runs"
        return warn(found, "start one: countersink worker")
    if lag_ms > _LAG_WARN_MS:
        found = f"{wait}, the oldest for {output.ago(lag_ms / 1000)}"
        advice = "see countersink info; start another worker, one per core"
        return warn(found, advice)
    return ok(f"{wait}, {workers} workers run")


def _config(client: redis.Redis, name: str) -> str | None:
    try:
        reply = command(client, "CONFIG", "GET", name)
    except StreamError:
        return None
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return next((as_text(value) for key, value in pairs if as_text(key) == name), None)

"""Checks of ``countersink doctor`` on Redis, with their limits and advice: version, role,
sentinels, nodes of a cluster, memory, persistence, rights, partitions, queue and clocks. They write
nothing."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS

from countersink.cli import output
from countersink.cli.commands.operate import partitions
from countersink.cli.commands.operate.findings import Finding, clock, fail, named, ok, warn
from countersink.cli.commands.operate.info import SILENT, as_text, queue_state
from countersink.runtime.texts import ago, plural
from countersink.stream.connection import MemoryUse, cluster_of, command, mapped
from countersink.stream.entry import offset_ms
from countersink.stream.errors import StreamError, StreamRefused
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
    *(("XADD", _STREAM, "*", "f", "v"), ("XCLAIM", _STREAM, GROUP, "c", "0", "0-0")),
    ("XREADGROUP", "GROUP", GROUP, "c", "STREAMS", _STREAM, ">"),
    *(("XACK", _STREAM, GROUP, "0-0"), ("XDEL", _STREAM, "0-0"), ("XLEN", _STREAM)),
    *(("XGROUP", "CREATE", _STREAM, GROUP, "0"), ("XINFO", "GROUPS", _STREAM)),
    *(("XPENDING", _STREAM, GROUP), ("XRANGE", _STREAM, "-", "+")),
    *(("EVALSHA", "0" * 40, "1", _STREAM), ("SCRIPT", "LOAD", "return 1")),
    *(("GET", PARTITIONS_KEY), ("SCAN", "0"), ("TIME",)),
    *(("HSET", _HASH, "f", "v"), ("EXPIRE", _HASH, "1")),
    *(("HGET", applied_key(_STREAM), "group"), ("HINCRBY", applied_key(_STREAM), "count", "1")),
)
"""Commands that producers, workers and ``doctor`` send to Redis."""
_NEEDED_ON_CLUSTERS: Final = (("CLUSTER", "SLOTS"), ("CLUSTER", "INFO"), ("ASKING",))
"""Commands that they send only if Redis is a cluster."""


def lines(client: redis.Redis) -> Iterator[Finding]:
    """Yield the findings of all checks on Redis. If the URL means a single Redis, but the server is
    a node of a cluster, yield only a failure that says so.

    Raises:
        StreamError: Redis does not answer, or refuses a command for which there is no finding.
    """
    cluster = cluster_of(client)
    if cluster is not None:
        yield from _cluster(cluster)
    else:
        with mapped():
            server = RedisState(client, client.info(), is_master=True)
        if server.info.get("redis_mode") == "cluster":
            node = fail(
                f"Redis {server.info.get('redis_version')}, a node of a cluster",
                "set COUNTERSINK_REDIS_URL to redis+cluster:// and the addresses of its nodes",
            )
            yield from named("redis", node)
            return
        yield from named("redis", *_version(server))
        yield from named("redis role", *_role(server))
        yield from named("redis sentinel", *_sentinels(server))
        yield from named("redis clock", *_clock(server))
        yield from named("redis eviction", *_eviction(server))
        yield from named("redis memory", *_memory(server))
        yield from named("redis persistence", *_persistence(server))
        yield from named("redis rights", *_rights(server))
    try:
        yield from named("partitions", *_partitions(client))
        yield from named("queue", _queue(client))
    except StreamRefused as error:
        # A user of a process may not read all of this, and need not.
        yield from named("queue", ok(f"not checked: {error}"))


def _cluster(cluster: "ClusterClient") -> Iterator[Finding]:
    """Yield the findings on the nodes of a Redis Cluster, also on nodes that do not answer. Equal
    findings are yielded once, with the names of their nodes (for all nodes: with the number)."""
    with mapped():
        topology = cluster.topology(0.0)
    replicas = len(topology.nodes) - len(topology.masters)
    size = f"{plural(len(topology.masters), 'master')}, {plural(replicas, 'replica')}"
    yield from named("redis cluster", ok(size))
    nodes: dict[str, RedisState] = {}
    for address in topology.nodes:
        name, node = address.text, cluster.with_short_timeout.node(address)
        is_master = address in topology.masters
        try:
            with mapped():
                nodes[name] = RedisState(node, node.info(), is_master, in_cluster=True)
        except StreamError as error:
            finding = warn(f"replica {name}: {error}", "start it")
            if is_master:
                finding = fail(f"master {name}: {error}", "start it, or let a replica take over")
            yield from named("redis node", finding)
    masters = {name: node for name, node in nodes.items() if node.is_master}
    yield from _on_each(nodes, "redis", _version)
    yield from _on_each(masters, "redis role", _role)
    yield from _on_each(nodes, "redis slots", _slots)
    yield from named("redis slots", *_moving(masters))
    yield from _on_each(masters, "redis coverage", _coverage)
    yield from _on_each(masters, "redis clock", _clock)
    yield from _on_each(nodes, "redis eviction", _eviction)
    yield from _on_each(nodes, "redis memory", _memory)
    yield from _on_each(nodes, "redis persistence", _persistence)
    yield from _on_each(masters, "redis rights", _rights)


@dataclass(frozen=True, slots=True)
class RedisState:
    """The state of a server that answers: of a single Redis, or of a node of a cluster.

    Attributes:
        client: a client that sends commands to this server only.
        info: the server's reply to INFO.
        is_master: whether the server is a master; True for a single Redis, even for a replica.
        in_cluster: whether the server is a node of a cluster.
    """

    client: redis.Redis
    info: Mapping[str, Any]
    is_master: bool
    in_cluster: bool = False


def _on_each(
    nodes: Mapping[str, RedisState],
    check: str,
    findings: Callable[[RedisState], Iterable[Finding]],
) -> Iterator[Finding]:
    """Yield the findings of a check on ``nodes``. Equal ones are yielded once, with the names of
    their nodes (for all: the number). A node that does not answer or refuses gets a failure."""
    found: dict[Finding, list[str]] = {}
    for name, node in nodes.items():
        try:
            for each in findings(node):
                found.setdefault(each, []).append(name)
        except StreamError as error:
            finding = fail(f"{name}: {error}", "run doctor again; is it overloaded?")
            yield from named("redis node", finding)
    for finding, names in found.items():
        shown = f"{', '.join(names)}: {finding.found}"
        if len(names) == len(nodes):
            shown = f"{finding.found} (each of {len(nodes)} nodes)"
        yield from named(check, replace(finding, found=shown))


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
        yield ok("all hash slots are served")
    else:
        unserved = plural(REDIS_CLUSTER_HASH_SLOTS - served, "hash slot")
        yield fail(
            f"cluster_state {state}, {unserved} not served: their entries cannot be reached",
            "start the node that had them, or run redis-cli --cluster fix",
        )


def _moving(masters: Mapping[str, RedisState]) -> Iterator[Finding]:
    """Yield one warning if hash slots are moving from one master to another. Yield nothing if none
    moves. Masters that do not answer, or do not allow CLUSTER NODES, are skipped."""
    slots: dict[int, list[str]] = {}
    for name, node in masters.items():
        with suppress(StreamError):
            reply = as_text(command(node.client, "CLUSTER", "NODES"))
            for slot in re.findall(r"\[(\d+)-[<>]-", reply):
                slots.setdefault(int(slot), []).append(name)
    if slots:
        named_slots = [f"{slot} of {' and '.join(slots[slot])}" for slot in sorted(slots)]
        some = output.first_names(named_slots)
        yield warn(
            f"{plural(len(slots), 'hash slot')} MIGRATING or IMPORTING ({some}): if no reshard"
            " runs, one was interrupted, and commands with keys on both masters wait",
            "run redis-cli --cluster fix, unless a reshard runs",
        )


def _coverage(server: RedisState) -> Iterator[Finding]:
    full_coverage = _config(server.client, "cluster-require-full-coverage")
    if full_coverage in ("no", None):
        value = full_coverage or "unknown: CONFIG GET is forbidden"
        yield ok(f"cluster-require-full-coverage {value}")
    else:
        yield warn(
            "cluster-require-full-coverage yes: if one shard is down, no shard takes entries",
            "CONFIG SET cluster-require-full-coverage no, on all nodes and in redis.conf",
        )


def _partitions(client: redis.Redis) -> Iterator[Finding]:
    """Yield each warning of ``countersink partitions`` as a finding. If there is none, yield a
    finding with the status ``ok`` for a Redis Cluster, and nothing for a single Redis."""
    layout = partitions.partition_layout(client)
    for warning in layout["warnings"]:
        yield warn(warning, "see countersink partitions")
    if layout["nodes"] and not layout["warnings"]:
        yield ok(f"{layout['partitions']} on {plural(len(layout['nodes']), 'master')}")


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
        found = f"a primary with {plural(replicas, 'asynchronous replica')}"
        if "min_slaves_good_slaves" in info:  # present only if the setting is not 0
            yield ok(f"{found}, min-replicas-to-write is set")
        else:
            yield warn(
                f"{found}, min-replicas-to-write 0",
                "a failover can lose entries that the replica has not received: set "
                "min-replicas-to-write, or accept that (no entry is counted twice)",
            )
    elif server.in_cluster:
        yield warn(
            "a master without a replica: if it dies, its entries are not counted until it runs"
            " again, and are lost with its disk",
            "run redis-cli --cluster add-node … --cluster-slave, and set min-replicas-to-write 1",
        )
    else:
        yield ok("a primary")


def _sentinels(server: RedisState) -> Iterator[Finding]:
    """Yield one finding on the sentinels: a warning if no replica is up, or if fewer sentinels than
    ``LEAST_SENTINELS`` watch the master. Yield nothing if the URL names no sentinels."""
    with mapped():
        seen = watched(server.client)
    if seen is None:
        return
    watch = plural(seen.sentinels, "sentinel watches", "sentinels watch")
    up = plural(seen.replicas, "replica is", "replicas are")
    found = f"the master {seen.name} is {seen.address}; {watch} it, {up} up"
    if seen.replicas == 0:
        yield warn(found, "start a replica, which a failover can promote if the master dies")
    elif seen.sentinels < LEAST_SENTINELS:
        yield warn(
            found,
            f"run at least {LEAST_SENTINELS}, on different machines: a majority has to agree on a"
            " failover",
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
            f"maxmemory-policy {policy}: a full Redis deletes entire streams",
            "CONFIG SET maxmemory-policy noeviction, and in redis.conf",
        )
    else:
        yield warn(
            f"maxmemory-policy {policy}, without effect as long as maxmemory is not set",
            "CONFIG SET maxmemory-policy noeviction, and in redis.conf, before maxmemory is set",
        )


def _memory(server: RedisState) -> Iterator[Finding]:
    memory = MemoryUse.of(server.info)
    used, limit = memory
    if limit and used > _FULL * limit:
        yield (fail if memory.full else warn)(
            f"{used:,} of {limit:,} bytes used{', so it refuses increments' * memory.full}",
            "start more workers if there is a backlog, or raise maxmemory",
        )
    else:
        of_limit = f" of {limit:,}" if limit else ""
        yield ok(f"{used:,}{of_limit} bytes used")


def _persistence(server: RedisState) -> Iterator[Finding]:
    info = server.info
    for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if str(info.get(name, "ok")) != "ok":
            yield fail(f"{name} is {info[name]}", "see Redis's log: is the disk full?")
    if not int(info.get("aof_enabled", 0)):
        yield warn(
            "no append-only file: a crash loses the backlog, or all since the last snapshot",
            "CONFIG SET appendonly yes, and in redis.conf",
        )
        return
    # It loads the file as the user default; before 7 (without DRYRUN) with all rights.
    with suppress(StreamError):
        if _refusals(server.client, "default", _NEEDED):
            yield fail(
                "applied entries come back at a restart: the user default lacks rights",
                "ACL SETUSER default off resetpass ~* &* +@all, and in the file of users",
            )
    fsync = _config(server.client, "appendfsync")
    if fsync == "always":
        yield ok("appendonly yes, appendfsync always")
    elif fsync is None:
        yield warn(
            "appendonly yes, appendfsync unknown: CONFIG GET is forbidden",
            "ask its administrator: everysec can lose the last second, always loses nothing",
        )
    else:
        lost = "the last second" if fsync == "everysec" else "all that is not on disk yet"
        yield warn(
            f"appendonly yes, appendfsync {fsync}: a crash of the machine can lose {lost}",
            "accept it, or CONFIG SET appendfsync always (slower)",
        )


def _rights(server: RedisState) -> Iterator[Finding]:
    commands = (*_NEEDED, *(_NEEDED_ON_CLUSTERS if server.in_cluster else ()))
    try:
        user = as_text(command(server.client, "ACL", "WHOAMI"))
        refused = _refusals(server.client, user, commands)
    except StreamError:
        # Redis before 7 has no DRYRUN, and many administrators forbid ACL.
        yield ok("not checked: ACL DRYRUN is missing or not allowed")
        return
    if refused:
        yield fail(
            f"{len(refused)} of {len(commands)} needed commands are refused: {refused[0]}",
            f"ACL SETUSER {user} ~*countersink:* +@all -@dangerous +info +cluster|slots"
            " +cluster|info",
        )
    else:
        yield ok(f"user {user} has all rights that are needed")


def _refusals(client: redis.Redis, user: str, commands: Iterable[Sequence[str]]) -> list[str]:
    """Return Redis's reason for each of ``commands`` that it would refuse to ``user``.

    Raises:
        StreamError: ACL DRYRUN is missing or not allowed, or Redis does not answer."""
    replies = (as_text(command(client, "ACL", "DRYRUN", user, *each)) for each in commands)
    return [reply for reply in replies if reply != "OK"]


def _queue(client: redis.Redis) -> Finding:
    state = queue_state(client)
    workers = len([each for each in state["workers"] if each.get("state") != SILENT])
    wait = plural(state["backlog"], "entry waits", "entries wait")
    if not workers and state["away"]:
        # A worker's heartbeat is on one master of a cluster.
        found = f"{wait}; workers unknown, as a node does not answer"
        return warn(found, "start the node")
    if state["backlog"] and not workers:
        found = f"{wait}, and no worker runs"
        return warn(found, "start one: countersink worker")
    if state["lag_ms"] > _LAG_WARN_MS:
        found = f"{wait}, the oldest for {ago(state['lag_ms'] / 1000)}"
        advice = "see countersink info; start another worker, one per core"
        return warn(found, advice)
    return ok(f"{wait}, {plural(workers, 'worker runs', 'workers run')}")


def _config(client: redis.Redis, name: str) -> str | None:
    try:
        reply = command(client, "CONFIG", "GET", name)
    except StreamError:
        return None
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return next((as_text(value) for key, value in pairs if as_text(key) == name), None)

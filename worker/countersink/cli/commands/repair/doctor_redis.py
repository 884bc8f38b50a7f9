"""Checks of ``countersink doctor`` on Redis: version, role, sentinels, nodes of a cluster, memory,
persistence, rights, partitions, queue, clocks; what warns, what fails (limits), and the advice for
each. Nothing is written."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS

from countersink.cli import output
from countersink.cli.commands.maintain import partitions
from countersink.cli.commands.maintain.info import as_text, each_master, queue
from countersink.cli.commands.repair.doctor import DoctorCheck, Finding
from countersink.stream.clock import offset_ms
from countersink.stream.connection import cluster_of, command, mapped
from countersink.stream.errors import StreamError
from countersink.stream.names import GROUP, PARTITIONS_KEY, applied_key, stream_key, worker_key
from countersink.stream.sentinel import watched

if TYPE_CHECKING:
    from countersink.stream.cluster import ClusterClient

MINIMUM: Final = (6, 2)
CLOCK_WARN_MS: Final = 2_000
CLOCK_FAIL_MS: Final = 300_000
"""Five minutes: days, at the latest, come out wrong."""
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
    """All lines about Redis; the first alone when it cannot be reached."""
    cluster = cluster_of(client)
    if cluster is not None:
        yield from _cluster(cluster)
        return
    try:
        with mapped():
            info: dict[str, Any] = client.info()
    except StreamError as error:
        yield DoctorCheck("redis").fail(
            str(error),
            "start Redis, or correct COUNTERSINK_REDIS_URL (host, port, user, password, TLS)",
        )
        return
    if info.get("redis_mode") == "cluster":
        yield DoctorCheck("redis").fail(
            f"Redis {info.get('redis_version')}, a node of a cluster",
            "set COUNTERSINK_REDIS_URL to redis+cluster:// and the addresses of its nodes",
        )
        return
    yield _version(info)
    yield _role(info)
    yield from _sentinels(client)
    yield clock("redis clock", "Redis", "this machine", offset_ms(client))
    yield from _memory(info)
    yield from _persistence(client, info)
    yield _rights(client)
    yield from _partitions(client)
    yield _queue(client)


def _cluster(cluster: "ClusterClient") -> Iterator[Finding]:
    """All lines about a Redis Cluster: of each node, those that are the same once."""
    check = DoctorCheck("redis cluster")
    try:
        with mapped():
            topology = cluster.topology(0.0)
    except StreamError as error:
        yield check.fail(str(error), "start its nodes, or correct COUNTERSINK_REDIS_URL")
        return
    shape = (
        f"{len(topology.masters)} masters, {len(topology.nodes) - len(topology.masters)} replicas"
    )
    yield check.ok(shape)
    nodes: dict[str, ClusterNodeState] = {}
    for address in topology.nodes:
        name, node = address.text, cluster.hasty.node(address)
        try:
            with mapped():
                nodes[name] = ClusterNodeState(node, node.info(), address in topology.masters)
        except StreamError as error:
            is_master = address in topology.masters
            yield (DoctorCheck("redis node").fail if is_master else DoctorCheck("redis node").warn)(
                f"{'master' if is_master else 'replica'} {name}: {error}",
                "start it, or let a replica take over" if is_master else "start it",
            )
    masters = {name: node for name, node in nodes.items() if node.is_master}
    yield from _of_each(nodes, lambda node: [_version(node.info)])
    yield from _of_each(masters, lambda node: [_shard(node.info)])
    yield from _of_each(nodes, _slots)
    yield from _moving(masters)
    yield from _of_each(masters, _coverage)
    yield from _of_each(
        masters,
        lambda node: [clock("redis clock", "Redis", "this machine", offset_ms(node.client))],
    )
    yield from _of_each(nodes, lambda node: _memory(node.info))
    yield from _of_each(nodes, lambda node: _persistence(node.client, node.info))
    yield from _of_each(masters, lambda node: [_rights(node.client, (*_NEEDED, *_OF_CLUSTERS))])
    yield from _partitions(cluster)
    yield _queue(cluster)


@dataclass(frozen=True, slots=True)
class ClusterNodeState:
    """A node of a cluster that answers.

    Attributes:
        client: of this node alone.
        info: what INFO said.
        is_master: whether it has hash slots.
    """

    client: redis.Redis
    info: Mapping[str, Any]
    is_master: bool


def _of_each(
    nodes: Mapping[str, ClusterNodeState],
    findings: Callable[[ClusterNodeState], Iterable[Finding]],
) -> Iterator[Finding]:
    """The findings on nodes: what is the same on all of them once; what is not ok with the nodes on
    which it is so; of what is ok and differs that it is.
    """
    found: dict[Finding, list[str]] = {}
    for name, node in nodes.items():
        try:
            for each in findings(node):
                found.setdefault(each, []).append(name)
        except StreamError as error:
            lost = DoctorCheck("redis node").fail(
                f"{name}: {error}", "ask again; is it overloaded?"
            )
            found.setdefault(lost, []).append(name)
    fine: dict[str, set[str]] = {}
    for finding, names in found.items():
        if len(names) == len(nodes):
            yield replace(finding, found=f"{finding.found} (each of {len(nodes)} nodes)")
        elif finding.status != "ok":
            yield replace(finding, found=f"{', '.join(names)}: {finding.found}")
        else:
            fine.setdefault(finding.check, set()).update(names)
    for check, ok in fine.items():
        yield DoctorCheck(check).ok(f"as it should be on {len(ok)} of {len(nodes)} nodes")


def _shard(info: Mapping[str, Any]) -> Finding:
    """The line about a master of a cluster and its replicas."""
    if info.get("role") == "master" and not int(info.get("connected_slaves", 0)):
        return DoctorCheck("redis role").warn(
            "a master without a replica: when it dies, what it holds cannot be counted until it is"
            " back, and is lost with its disk",
            "redis-cli --cluster add-node … --cluster-slave, and min-replicas-to-write 1",
        )
    return _role(info)


def _slots(node: ClusterNodeState) -> Iterator[Finding]:
    check = DoctorCheck("redis slots")
    try:
        reply = command(node.client, "CLUSTER", "INFO")
    except StreamError:
        yield check.ok("not checked: CLUSTER INFO is not allowed")
        return
    if not isinstance(reply, dict):
        reply = dict(line.partition(":")[::2] for line in as_text(reply).split())
    state, served = str(reply.get("cluster_state")), int(reply.get("cluster_slots_ok", 0))
    if state == "ok" and served == REDIS_CLUSTER_HASH_SLOTS:
        yield check.ok("all hash slots have a master that serves")
    else:
        yield check.fail(
            f"cluster_state {state}, {REDIS_CLUSTER_HASH_SLOTS - served:,} hash slots without a"
            " master that serves: what lies there cannot be reached",
            "start the node that had them, or redis-cli --cluster fix",
        )


def _moving(masters: Mapping[str, ClusterNodeState]) -> Iterator[Finding]:
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
        yield DoctorCheck("redis slots").warn(
            f"{len(slots):,} hash slots are MIGRATING or IMPORTING ({some}): if no"
            " reshard is at work, one was broken off, and what has a key on each side waits",
            "redis-cli --cluster fix, unless a reshard is at work",
        )


def _coverage(node: ClusterNodeState) -> Iterator[Finding]:
    check = DoctorCheck("redis coverage")
    whole = _config(node.client, "cluster-require-full-coverage")
    if whole == "no":
        yield check.ok("cluster-require-full-coverage no")
    elif whole is None:
        yield check.ok("cluster-require-full-coverage not known: CONFIG GET is forbidden")
    else:
        yield check.warn(
            "cluster-require-full-coverage yes: while one shard is away, no other takes entries",
            "CONFIG SET cluster-require-full-coverage no, on all nodes and in redis.conf",
        )


def _partitions(client: redis.Redis) -> Iterator[Finding]:
    """The lines about partitions; none where there is one, on one server."""
    check = DoctorCheck("partitions")
    try:
        layout = partitions.look(client)
    except StreamError:
        return  # the queue's line says it
    if layout.warnings:
        for warning in layout.warnings:
            yield check.warn(warning, "see countersink partitions")
    elif layout.masters:
        yield check.ok(f"{layout.number} on {len(layout.masters)} masters")


def clock(name: str, one: str, other: str, difference_ms: int) -> Finding:
    """The line about two clocks, the first ahead by ``difference_ms``."""
    check = DoctorCheck(name)
    apart = abs(difference_ms)
    relation = "ahead of" if difference_ms > 0 else "behind"
    found = f"{one} is {output.ago(apart / 1000)} {relation} {other}"
    if apart < CLOCK_WARN_MS:
        return check.ok(found)
    advice = "let NTP set the clocks: increments without a time of their own count on Redis's clock"
    return (check.fail if apart >= CLOCK_FAIL_MS else check.warn)(found, advice)


def _version(info: Mapping[str, Any]) -> Finding:
    text = str(info.get("redis_version", ""))
    numbers = tuple(int(n) for n in re.findall(r"\d+", text)[:2])
    found = f"Redis {text}"
    if numbers < MINIMUM:
        least = ".".join(map(str, MINIMUM))
        return DoctorCheck("redis").fail(
            found, f"upgrade to Redis {least} or newer (XPENDING … IDLE)"
        )
    return DoctorCheck("redis").ok(found)


def _role(info: Mapping[str, Any]) -> Finding:
    role = info.get("role")
    replicas = int(info.get("connected_slaves", 0))
    if role != "master":
        return DoctorCheck("redis role").fail(
            f"a replica of {info.get('master_host')}",
            "point COUNTERSINK_REDIS_URL at the primary: a replica takes no writes",
        )
    if replicas:
        found = f"a primary with {replicas} asynchronous replica{'s' if replicas > 1 else ''}"
        if "min_slaves_good_slaves" in info:  # there only if it is set
            return DoctorCheck("redis role").ok(f"{found}, min-replicas-to-write is set")
        return DoctorCheck("redis role").warn(
            f"{found}, min-replicas-to-write 0",
            "a failover can lose what the replica had not received: set min-replicas-to-write, "
            "or accept it (what is lost is never counted twice)",
        )
    return DoctorCheck("redis role").ok("a primary")


def _sentinels(client: redis.Redis) -> Iterator[Finding]:
    """The line about what watches Redis; none for a URL without sentinels."""
    check = DoctorCheck("redis sentinel")
    try:
        with mapped():
            seen = watched(client)
    except StreamError as error:
        yield check.warn(str(error), "ask again when the sentinels agree on a master")
        return
    if seen is None:
        return
    found = (
        f"the master {seen.name} is {seen.address}; {seen.sentinels} sentinel"
        f"{'s watch' if seen.sentinels > 1 else ' watches'} it, {seen.replicas} replica"
        f"{'s are' if seen.replicas != 1 else ' is'} up"
    )
    if seen.replicas == 0:
        yield check.warn(found, "start a replica: there is none to promote when the master dies")
    elif seen.sentinels < LEAST_SENTINELS:
        yield check.warn(
            found,
            f"run at least {LEAST_SENTINELS}, on machines of their own: a majority of them has to"
            " agree on a failover",
        )
    else:
        yield check.ok(found)


def _memory(info: Mapping[str, Any]) -> Iterator[Finding]:
    policy, limit = str(info.get("maxmemory_policy")), int(info.get("maxmemory", 0))
    if policy == "noeviction":
        yield DoctorCheck("redis eviction").ok("maxmemory-policy noeviction")
    elif limit:
        yield DoctorCheck("redis eviction").fail(
            f"maxmemory-policy {policy}: Redis deletes whole streams when it is full",
            "CONFIG SET maxmemory-policy noeviction, and in redis.conf",
        )
    else:
        yield DoctorCheck("redis eviction").warn(
            f"maxmemory-policy {policy}, without effect as long as maxmemory is not set",
            "CONFIG SET maxmemory-policy noeviction, and in redis.conf, before somebody sets it",
        )
    used = int(info.get("used_memory", 0))
    if limit and used > _FULL * limit:
        yield DoctorCheck("redis memory").warn(
            f"{used:,} of {limit:,} bytes used",
            "start more workers if there is a backlog, or raise maxmemory",
        )
    else:
        of = f" of {limit:,}" if limit else ""
        yield DoctorCheck("redis memory").ok(f"{used:,}{of} bytes used")


def _persistence(client: redis.Redis, info: Mapping[str, Any]) -> Iterator[Finding]:
    check = DoctorCheck("redis persistence")
    for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if str(info.get(name, "ok")) != "ok":
            yield check.fail(f"{name} is {info[name]}", "look at Redis's log: disk full?")
    if not int(info.get("aof_enabled", 0)):
        yield check.warn(
            "no append-only file: a crash loses the whole backlog, or all since the last snapshot",
            "CONFIG SET appendonly yes, and in redis.conf",
        )
        return
    fsync = _config(client, "appendfsync")
    if fsync == "always":
        yield check.ok("appendonly yes, appendfsync always")
    elif fsync is None:
        yield check.warn(
            "appendonly yes, appendfsync not known: CONFIG GET is forbidden",
            "ask who runs it: everysec can lose the last second, always loses nothing",
        )
    else:
        lost = "the last second" if fsync == "everysec" else "what the system had not written"
        yield check.warn(
            f"appendonly yes, appendfsync {fsync}: a crash of the machine can lose {lost}",
            "accept it, or CONFIG SET appendfsync always (slower)",
        )


def _rights(client: redis.Redis, commands: Sequence[tuple[str, ...]] = _NEEDED) -> Finding:
    check = DoctorCheck("redis rights")
    try:
        user = as_text(command(client, "ACL", "WHOAMI"))
        replies = [as_text(command(client, "ACL", "DRYRUN", user, *needed)) for needed in commands]
    except StreamError:
        # Redis before 7 has no DRYRUN, and a careful administrator forbids ACL.
        return check.ok("not checked: ACL DRYRUN is not there, or not allowed")
    refused = [reply for reply in replies if reply != "OK"]
    if refused:
        return check.fail(
            f"{len(refused)} of {len(commands)} commands are refused: {refused[0]}",
            f"ACL SETUSER {user} ~*countersink:* +@all -@dangerous +info +cluster|slots"
            " +cluster|info",
        )
    return check.ok(f"user {user} may do what is needed")


def _queue(client: redis.Redis) -> Finding:
    try:
        state = queue(client)
    except StreamError as error:
        return DoctorCheck("queue").fail(str(error), "set it right as the message says")
    workers, lag_ms = len(state["workers"]), state["lag_ms"]
    wait = f"{state['backlog']:,} entries wait"
    if not workers and state["away"]:
        # A worker's figures lie on one master of a cluster.
        found = f"{wait}; whether a worker runs is not known, as a node is away"
        return DoctorCheck("queue").warn(found, "bring the node back")
    if state["backlog"] and not workers:
        found = f"{wait}, and no worker runs"
        return DoctorCheck("queue").warn(found, "start one: countersink worker")
    if lag_ms > _LAG_WARN_MS:
        found = f"{wait}, the oldest for {output.ago(lag_ms / 1000)}"
        advice = "see countersink info; start another worker, one per core"
        return DoctorCheck("queue").warn(found, advice)
    return DoctorCheck("queue").ok(f"{wait}, {workers} workers run")


def _config(client: redis.Redis, name: str) -> str | None:
    try:
        reply = command(client, "CONFIG", "GET", name)
    except StreamError:
        return None
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return next((as_text(value) for key, value in pairs if as_text(key) == name), None)


def ahead_ms(client: redis.Redis) -> int | None:
    """Redis's clock minus this machine's in ms; None when it does not answer."""
    try:
        return each_master(client, {}, offset_ms)[0]
    except StreamError:
        return None

"""Checks of ``countersink doctor`` on Redis: version, role, sentinels, memory, persistence, rights,
queue, clocks; what warns, what fails (limits), and the advice for each. Nothing is written."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import redis

from countersink.cli import output
from countersink.cli.commands.maintain.info import as_text, queue
from countersink.cli.commands.repair.doctor import DoctorCheck, Finding
from countersink.stream.clock import offset_ms
from countersink.stream.connection import command, mapped
from countersink.stream.errors import StreamError
from countersink.stream.names import GROUP, PARTITIONS_KEY, applied_key, stream_key, worker_key
from countersink.stream.sentinel import watched

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


def lines(client: redis.Redis) -> Iterator[Finding]:
    """All lines about Redis; the first alone when it cannot be reached."""
    try:
        with mapped():
            info: dict[str, Any] = client.info()
    except StreamError as error:
        yield DoctorCheck("redis").fail(
            str(error),
            "start Redis, or correct COUNTERSINK_REDIS_URL (host, port, user, password, TLS)",
        )
        return
    yield _version(info)
    yield _role(info)
    yield from _sentinels(client)
    yield clock("redis clock", "Redis", "this machine", offset_ms(client))
    yield from _memory(info)
    yield from _persistence(client, info)
    yield _rights(client)
    yield _queue(client)


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
    if info.get("redis_mode") == "cluster":
        return DoctorCheck("redis").fail(
            f"{found}, a cluster", "use a single Redis (with replicas)"
        )
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


def _rights(client: redis.Redis) -> Finding:
    check = DoctorCheck("redis rights")
    try:
        user = as_text(command(client, "ACL", "WHOAMI"))
        replies = [as_text(command(client, "ACL", "DRYRUN", user, *needed)) for needed in _NEEDED]
    except StreamError:
        # Redis before 7 has no DRYRUN, and a careful administrator forbids ACL.
        return check.ok("not checked: ACL DRYRUN is not there, or not allowed")
    refused = [reply for reply in replies if reply != "OK"]
    if refused:
        return check.fail(
            f"{len(refused)} of {len(_NEEDED)} commands are refused: {refused[0]}",
            f"ACL SETUSER {user} ~*countersink:* +@all -@dangerous +info",
        )
    return check.ok(f"user {user} may do what is needed")


def _queue(client: redis.Redis) -> Finding:
    try:
        state = queue(client)
    except StreamError as error:
        return DoctorCheck("queue").fail(str(error), "set it right as the message says")
    workers, lag_ms = len(state["workers"]), state["lag_ms"]
    wait = f"{state['backlog']:,} entries wait"
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
        return offset_ms(client)
    except StreamError:
        return None

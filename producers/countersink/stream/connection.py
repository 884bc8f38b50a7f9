"""Connections to Redis and Valkey: their URLs and the errors in URLs, TLS, the socket timeout of
processes (``SOCKET_TIMEOUT``), URLs without passwords for logs. Also what servers are asked without
a consumer group: their clocks, their memory, and the ends of a stream. See ``sentinel.py`` for
Sentinel and ``cluster.py`` for Redis Cluster.

By default redis-py sends a command again up to 10 times if the connection is lost, so an XADD whose
reply was lost would be sent 11 times. Here every command is sent once, and the caller decides
whether it may be repeated.
"""

import os
import re
import select
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis._parsers import _RESP2Parser
from redis.backoff import NoBackoff
from redis.retry import Retry

from countersink.runtime.log import passwords
from countersink.stream.errors import StreamMisconfigured, translate
from countersink.stream.sentinel import sentinel_client

if TYPE_CHECKING:
    from countersink.stream.cluster import ClusterClient

SOCKET_TIMEOUT: Final = 5.0
"""Seconds without a reply after which a server counts as away; longer than any BLOCK of a
command.
"""

# Do not send the library's name for CLIENT LIST: that takes two commands per connection, and a
# right that Redis before 7.2 does not know, so no ACL could grant it on all versions.
_WITHOUT_NAME: Final[dict[str, Any]] = (
    {"driver_info": None}
    if "driver_info" in signature(redis.Redis.__init__).parameters
    else {"lib_name": None, "lib_version": None}
)
_CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")
_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", *_CLUSTER_SCHEMES)
_RAW_REPLIES = ("XREADGROUP", "XRANGE", "XPENDING")
"""Commands whose replies stay lists. redis-py would make dicts, in which a repeated field is
lost.
"""
_FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
"""Options of a URL whose value is the path of a file."""


def connect(
    url: str, *, socket_timeout: float = SOCKET_TIMEOUT, client_name: str | None = None
) -> redis.Redis:
    """Return a client for ``url``. It connects at the first command.

    These URLs name one server, or several; ``valkey`` may replace ``redis`` in each:

    * ``redis://``, ``rediss://`` (TLS, with a check of the certificate), ``unix://``: one server.
    * ``redis+sentinel://``, ``rediss+sentinel://``: sentinels; the client uses their master.
    * ``redis+cluster://``, ``rediss+cluster://``: nodes of a cluster; the client uses all nodes.

    Replies are bytes (RESP 2). Replies to XREADGROUP, XRANGE and XPENDING are nested lists, as in
    the protocol. No command is sent twice, except on a cluster: there a command that a node did not
    execute, but answered by a redirection, is sent again.

    Args:
        url: the URL.
        socket_timeout: seconds without a reply after which a command fails, because its server
            counts as away; an option ``socket_timeout`` in the URL overrides it.
        client_name: a name for Redis's CLIENT LIST; None for no name.

    Raises:
        StreamMisconfigured: the URL cannot be used; the message says why, without the password.
    """
    scheme, rest = _split(url)
    if scheme not in _SCHEMES:
        raise StreamMisconfigured(
            f"{redact(url)!r} is not a Redis URL: a Redis URL begins with redis://, rediss://,"
            " unix://, redis+sentinel:// or redis+cluster:// (or valkey instead of redis)"
        )
    tls = scheme.startswith("rediss")
    options: dict[str, Any] = {
        "socket_timeout": socket_timeout,
        "socket_connect_timeout": socket_timeout,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "protocol": 2,
        "decode_responses": False,
        "health_check_interval": 0,
        "client_name": client_name,
        **_WITHOUT_NAME,
        # eventlet removes select.poll, which the C parser calls if redis was imported before.
        **({} if hasattr(select, "poll") else {"parser_class": _RESP2Parser}),
        # redis-py before 6 checks the certificate but not the host name in it.
        **({"ssl_check_hostname": True} if tls else {}),
    }
    try:
        if scheme.endswith("+sentinel"):
            client = sentinel_client(rest, options, tls=tls, socket_timeout=socket_timeout)
        elif scheme in _CLUSTER_SCHEMES:
            from countersink.stream.cluster import cluster_client  # noqa: PLC0415 (few have one)

            client = cluster_client(rest, options, tls=tls)
        else:
            if scheme != "unix":
                parts = urlsplit(url)
                if re.fullmatch(r"/?\d*", parts.path) is None:
                    # redis-py would silently use database 0.
                    raise _unusable(url, "its path is not the number of a database")
                unquote(parts.hostname or "").encode("idna")  # ValueError: no host name
            client = redis.Redis.from_url(f"{scheme}://{rest}", **options)
        # Finds unknown options now instead of at the first command.
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (ValueError, TypeError, AttributeError, redis.RedisError):
        # Without the cause, which may quote the password.
        raise _unusable(url, "a part or an option of it is malformed or unknown") from None
    for name, path in parse_qsl(rest.partition("?")[2]):  # urllib cannot split several hosts
        if name in _FILES and not os.access(path, os.R_OK):
            raise _unusable(url, f"the file {path!r} of {name} does not exist or is not readable")
    for command in _RAW_REPLIES:
        client.set_response_callback(command, _raw)
    return client


def _unusable(url: str, why: str) -> StreamMisconfigured:
    return StreamMisconfigured(f"the Redis URL {redact(url)!r} cannot be used: {why}")


def _raw(reply: Any, **_: Any) -> Any:
    return reply


@contextmanager
def mapped() -> Iterator[None]:
    """Context manager that turns redis-py's errors, and OSError, inside its block into errors of
    the queue. The original error is the cause of the new one.

    Raises:
        StreamUnavailable, StreamMisconfigured: see :mod:`countersink.stream.errors`.
    """
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise translate(error) from error


def command(client: redis.Redis, *arguments: str | bytes | int) -> Any:
    """Send one command, written as in Redis's documentation, and return its reply. redis-py
    converts the reply by the response callbacks of the client.

    Raises:
        StreamUnavailable, StreamMisconfigured: see :mod:`countersink.stream.errors`.
    """
    execute: Any = client.execute_command  # redis-py leaves this one untyped
    with mapped():
        return execute(*arguments)


@cache
def script(name: str) -> str:
    """Return the text of ``scripts/NAME.lua``, a script for Redis, with the functions of
    ``entry.lua`` in front.
    """
    # Not with importlib.resources: every application that counts would import it.
    folder = Path(__file__).parent / "scripts"
    return "".join((folder / f"{part}.lua").read_text("utf-8") for part in ("entry", name))


class MemoryUse(NamedTuple):
    """The memory of a single server.

    Attributes:
        used: bytes that it uses. Buffers that it does not compare with its limit, such as those of
            replicas, are left out.
        limit: its ``maxmemory`` in bytes; 0 for no limit.
    """

    used: int
    limit: int

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Self:
        """Return the memory of a server, given its reply to INFO."""
        buffers = int(info.get("mem_not_counted_for_evict", 0))
        return cls(int(info.get("used_memory", 0)) - buffers, int(info.get("maxmemory", 0)))

    @property
    def full(self) -> bool:
        """Whether the server uses more than its limit, so that it refuses increments; False
        without a limit.
        """
        return 0 < self.limit < self.used


def memory_use(client: redis.Redis) -> MemoryUse:
    """Ask a single server, not a cluster, for its memory.

    Raises:
        StreamUnavailable, StreamMisconfigured: see :mod:`countersink.stream.errors`.
    """
    with mapped():
        info: Any = client.info("memory")
    return MemoryUse.of(info)


def ends(client: redis.Redis, stream: str) -> tuple[str, str] | None:
    """Return the stream ids of the first and the last entry, or None if the stream is empty or
    missing.

    Raises:
        StreamError: Redis did not answer, or refuses.
    """
    with mapped():
        reply = client.register_script(script("ends"))(keys=[stream])
    return (reply[0].decode(), reply[1].decode()) if reply else None


def is_cluster(url: str) -> bool:
    """Return whether ``url`` names a Redis Cluster."""
    return _split(url)[0] in _CLUSTER_SCHEMES


def check_single(url: str) -> None:
    """Check that ``url``, for the Redis of the scheduled jobs, does not name a cluster.

    Raises:
        StreamMisconfigured: the URL names a Redis Cluster, which RQ cannot use.
    """
    if is_cluster(url):
        raise StreamMisconfigured(
            "the scheduled jobs cannot use a Redis Cluster, since RQ cannot: set"
            " COUNTERSINK_JOBS_REDIS_URL to a redis://, rediss:// or redis+sentinel:// URL"
        )


def cluster_of(client: Any) -> "ClusterClient | None":
    """Return ``client`` if it is the client of a cluster, else None."""
    return client if getattr(client, "is_cluster", False) else None


def _split(url: str) -> tuple[str, str]:
    """Split a URL at ``://``. Return its scheme, with ``redis`` in place of ``valkey``, and the
    rest. Return ``''`` and the whole text if there is no ``://``.
    """
    scheme, divider, rest = url.partition("://")
    return (re.sub(r"^valkey(?=s?($|\+))", "redis", scheme), rest) if divider else ("", url)


def redact(url: str) -> str:
    """Return ``url`` with ``***`` in place of each password, also in the query."""
    for begin, end in reversed(passwords(url)):
        url = f"{url[:begin]}***{url[end:]}"
    return url


def time_us(server: redis.Redis) -> int:
    """Return the clock of one server, in Unix µs.

    Raises:
        redis.RedisError: the server did not answer, or refuses. The error is not translated,
            because the client of a cluster must see redis-py's error.
    """
    reply: Any = server.time()
    seconds, microseconds = reply
    return int(seconds) * 1_000_000 + int(microseconds)


def earliest_us(client: redis.Redis) -> int:
    """Return Redis's clock in Unix µs; on a cluster, the clock of the master that is most behind.
    No entry that any master gets after this call has an earlier time in its stream id (in ms).

    Raises:
        StreamError: Redis did not answer, or refuses; on a cluster, one of the masters did not
            answer within a second, or refuses.
    """
    return min(_all_us(client))


def latest_us(client: redis.Redis) -> int:
    """Return Redis's clock in Unix µs; on a cluster, the clock of the master that is most ahead.
    No entry that any master got before this call has a later time in its stream id.

    Raises:
        StreamError: Redis did not answer, or refuses; on a cluster, one of the masters did not
            answer within a second, or refuses.
    """
    return max(_all_us(client))


def _all_us(client: redis.Redis) -> list[int]:
    cluster = cluster_of(client)
    with mapped():
        if cluster is None:
            return [time_us(client)]
        times = []
        for address in cluster.masters():
            with cluster.with_short_timeout.asked(address) as node:
                times.append(time_us(node))
    return times

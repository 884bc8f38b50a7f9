"""Connections to Redis and Valkey: URLs and their errors (Sentinel: ``stream/sentinel.py``,
cluster: ``stream/cluster.py``), TLS, the socket timeout of processes (``SOCKET_TIMEOUT``), no
resending by the client, and URLs without passwords for logs.

redis-py retries a lost command up to 10 times by default: one XADD whose reply was lost would be
sent 11 times. Here every command is sent once; whoever sends it knows what a repetition would mean.
"""

import os
import re
import select
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any, Final
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
"""Seconds until a silent server counts as gone; a BLOCK must stay below it."""

# No name of the library for CLIENT LIST. To send it takes two commands per connection, and a right
# that Redis before 7.2 does not know, so that no list of rights could have it on all versions.
_WITHOUT_NAME: Final[dict[str, Any]] = (
    {"driver_info": None}
    if "driver_info" in signature(redis.Redis.__init__).parameters
    else {"lib_name": None, "lib_version": None}
)
_CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")
_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", *_CLUSTER_SCHEMES)
_RAW_REPLIES = ("XREADGROUP", "XRANGE", "XPENDING")
"""Commands whose replies stay lists: redis-py's dicts would drop a repeated field."""
_FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
"""Options of a URL that name files."""


def connect(
    url: str, *, socket_timeout: float = SOCKET_TIMEOUT, client_name: str | None = None
) -> redis.Redis:
    """A client for ``url`` (``redis://``, ``rediss://`` with the certificate verified, ``unix://``;
    ``redis+sentinel://`` and ``rediss+sentinel://``: the master that the sentinels name;
    ``redis+cluster://`` and ``rediss+cluster://``: all nodes of a cluster; ``valkey`` instead of
    ``redis`` means the same).

    Nothing is sent until the first command. Replies are bytes (RESP 2); those of XREADGROUP,
    XRANGE and XPENDING are the nested lists of the protocol. No command is ever sent
    twice.

    Raises:
        StreamMisconfigured: the URL cannot be used; the message says why, without the password.
    """
    scheme, rest = _split(url)
    if scheme not in _SCHEMES:
        raise StreamMisconfigured(
            f"{redact(url)!r} is not a Redis URL: it begins with redis://, rediss://, unix://,"
            " redis+sentinel:// or redis+cluster:// (valkey for redis in each)"
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
        # eventlet takes select.poll away, which the parser in C calls if redis was imported
        # before that.
        **({} if hasattr(select, "poll") else {"parser_class": _RESP2Parser}),
        # redis-py before 6 looks at the certificate and not at the name in it.
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
                    # redis-py would use database 0 without a word.
                    raise _unusable(url, "its path is not the number of a database")
                unquote(parts.hostname or "").encode("idna")  # ValueError: it is no name
            client = redis.Redis.from_url(f"{scheme}://{rest}", **options)
        # Options that no connection has would be found at the first command only.
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (ValueError, TypeError, AttributeError, redis.RedisError):
        # Without the cause, which may quote the password.
        raise _unusable(url, "a part of it, or an option, is malformed or unknown") from None
    for name, path in parse_qsl(rest.partition("?")[2]):  # several hosts are no URL of urllib's
        if name in _FILES and not os.access(path, os.R_OK):
            raise _unusable(url, f"there is no file {path!r} that can be read, its {name}")
    for command in _RAW_REPLIES:
        client.set_response_callback(command, _raw)
    return client


def _unusable(url: str, why: str) -> StreamMisconfigured:
    return StreamMisconfigured(f"the Redis URL {redact(url)!r} cannot be used: {why}")


def _raw(reply: Any, **_: Any) -> Any:
    return reply


@contextmanager
def mapped() -> Iterator[None]:
    """Raise redis-py's errors inside the block as ours, cause kept.

    Raises:
        StreamUnavailable, StreamMisconfigured: see :mod:`countersink.stream.errors`.
    """
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise translate(error) from error


def command(client: redis.Redis, *arguments: str | bytes | int) -> Any:
    """Send one command as it is written in Redis's documentation; the reply is what the client's
    callbacks make of it.

    Raises:
        StreamUnavailable, StreamMisconfigured: see :mod:`countersink.stream.errors`.
    """
    execute: Any = client.execute_command  # redis-py leaves this one untyped
    with mapped():
        return execute(*arguments)


def is_cluster(url: str) -> bool:
    """Whether it is the URL of a Redis Cluster."""
    return _split(url)[0] in _CLUSTER_SCHEMES


def check_single(url: str) -> None:
    """Check the URL of the Redis of the scheduled jobs.

    Raises:
        StreamMisconfigured: it is that of a Redis Cluster, which RQ cannot use; the message says
            what to set.
    """
    if is_cluster(url):
        raise StreamMisconfigured(
            "the scheduled jobs cannot use a Redis Cluster, since RQ cannot: set"
            " COUNTERSINK_JOBS_REDIS_URL to a redis://, rediss:// or redis+sentinel:// URL"
        )


def cluster_of(client: Any) -> "ClusterClient | None":
    """The client if it is one of a cluster, else None."""
    return client if getattr(client, "is_cluster", False) else None


def _split(url: str) -> tuple[str, str]:
    """The scheme in Redis's spelling, and what follows ``://``."""
    scheme, divider, rest = url.partition("://")
    return (re.sub(r"^valkey(?=s?($|\+))", "redis", scheme), rest) if divider else ("", url)


def redact(url: str) -> str:
    """``url`` with its password, and any in its query, replaced by ``***``."""
    for begin, end in reversed(passwords(url)):
        url = f"{url[:begin]}***{url[end:]}"
    return url


def time_us(server: redis.Redis) -> int:
    """The time of one server in Unix µs.

    Raises:
        redis.RedisError: it did not answer; a cluster's client has to see that before
            :func:`mapped` makes ours of it.
    """
    reply: Any = server.time()
    seconds, microseconds = reply
    return int(seconds) * 1_000_000 + int(microseconds)


def earliest_us(client: redis.Redis) -> int:
    """Redis's time in Unix µs; of a cluster that of the master whose clock is behind all others:
    whatever is sent from now on, to whichever of them, is sent later than this.

    Raises:
        StreamError: Redis did not answer; of a cluster, one of the masters did not within a second.
    """
    return min(_all_us(client))


def latest_us(client: redis.Redis) -> int:
    """Redis's time in Unix µs; of a cluster that of the master whose clock is ahead of all others:
    whatever was sent before, to whichever of them, was sent earlier than this.

    Raises:
        StreamError: see :func:`earliest_us`.
    """
    return max(_all_us(client))


def _all_us(client: redis.Redis) -> list[int]:
    cluster = cluster_of(client)
    with mapped():
        if cluster is None:
            return [time_us(client)]
        times = []
        for address in cluster.masters():
            with cluster.hasty.asked(address) as node:
                times.append(time_us(node))
    return times
